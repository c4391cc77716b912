#include "common/tokenizer/pre_tokenizer.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/split.h"
#include "common/tokenizer/unicode.h"
#include "common/tokenizer/views.h"

namespace atl::tokenizer {
namespace {

constexpr std::string_view kGpt2Pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

class Steps : public PreTokenizer {
 public:
  explicit Steps(std::vector<std::unique_ptr<PreTokenizer>> steps) : steps_(std::move(steps)) {}
  absl::Status Apply(Pieces* pieces) const override {
    for (const auto& step : steps_) ATOLL_RETURN_IF_ERROR(step->Apply(pieces));
    return absl::OkStatus();
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

class SplitByRegex : public PreTokenizer {
 public:
  SplitByRegex(Regex regex, Behavior behavior, bool invert)
      : regex_(std::move(regex)), behavior_(behavior), invert_(invert) {}
  absl::Status Apply(Pieces* pieces) const override {
    std::vector<Pieces::Range> out;
    std::vector<Part> parts;
    for (const Pieces::Range& range : pieces->ranges) {
      parts.clear();
      ATOLL_RETURN_IF_ERROR(PartsByRegex(regex_, pieces->piece(range), range.begin, &parts));
      if (invert_) {
        for (Part& part : parts) part.match = !part.match;
      }
      AppendPieces(parts, behavior_, &out);
    }
    pieces->ranges = std::move(out);
    return absl::OkStatus();
  }

 private:
  Regex regex_;
  Behavior behavior_;
  bool invert_;
};

class SplitByPredicate : public PreTokenizer {
 public:
  SplitByPredicate(Predicate predicate, Behavior behavior)
      : predicate_(predicate), behavior_(behavior) {}
  absl::Status Apply(Pieces* pieces) const override {
    std::vector<Pieces::Range> out;
    std::vector<Part> parts;
    for (const Pieces::Range& range : pieces->ranges) {
      parts.clear();
      PartsByPredicate(predicate_, pieces->piece(range), range.begin, &parts);
      AppendPieces(parts, behavior_, &out);
    }
    pieces->ranges = std::move(out);
    return absl::OkStatus();
  }

 private:
  Predicate predicate_;
  Behavior behavior_;
};

// Writes each piece anew: function(piece, whether it is at the beginning of the text).
template <typename Function>
void Rewrite(Pieces* pieces, Function function) {
  std::string text;
  for (size_t i = 0; i < pieces->ranges.size(); ++i) {
    Pieces::Range& range = pieces->ranges[i];
    const std::string piece = function(pieces->piece(range), range.begin == 0);
    range = {text.size(), text.size() + piece.size()};
    text += piece;
  }
  pieces->text = std::move(text);
}

class PrefixSpace : public PreTokenizer {
 public:
  absl::Status Apply(Pieces* pieces) const override {
    Rewrite(pieces, [&](std::string_view piece, bool first) {
      const bool wanted = !piece.starts_with(' ') && !(first && pieces->continues);
      return wanted ? absl::StrCat(" ", View(piece)) : std::string(piece);
    });
    return absl::OkStatus();
  }
};

class SpellBytes : public PreTokenizer {
 public:
  absl::Status Apply(Pieces* pieces) const override {
    Rewrite(pieces, [](std::string_view piece, bool) { return ByteLevelText(piece); });
    return absl::OkStatus();
  }
};

class Metaspace : public PreTokenizer {
 public:
  enum class Prepend : uint8_t { kAlways, kFirst, kNever };
  Metaspace(std::string replacement, Prepend prepend)
      : replacement_(std::move(replacement)), prepend_(prepend) {}
  absl::Status Apply(Pieces* pieces) const override {
    Rewrite(pieces, [&](std::string_view piece, bool first) {
      std::string text = absl::StrReplaceAll(View(piece), {{" ", replacement_}});
      const bool wanted = prepend_ == Prepend::kAlways ||
                          (prepend_ == Prepend::kFirst && first && pieces->at_start);
      if (!wanted || absl::StartsWith(text, replacement_)) return text;
      return absl::StrCat(replacement_, text);
    });
    return absl::OkStatus();
  }

 private:
  std::string replacement_;
  Prepend prepend_;
};

using Parsed = std::vector<std::unique_ptr<PreTokenizer>>;

absl::Status AddRegex(std::string_view pattern, Behavior behavior, bool invert, Parsed* out) {
  ATOLL_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(pattern));
  out->push_back(std::make_unique<SplitByRegex>(std::move(regex), behavior, invert));
  return absl::OkStatus();
}

absl::Status AddMetaspace(const Json& json, const std::string& where, Parsed* out) {
  ATOLL_ASSIGN_OR_RETURN(const std::string replacement,
                         TextField(json, "replacement", where, "\xe2\x96\x81"));
  ATOLL_ASSIGN_OR_RETURN(const bool add, BoolField(json, "add_prefix_space", where, true));
  ATOLL_ASSIGN_OR_RETURN(const std::string scheme,
                         StringField(json, "prepend_scheme", where, add ? "always" : "never"));
  ATOLL_ASSIGN_OR_RETURN(const bool split, BoolField(json, "split", where, true));
  Metaspace::Prepend prepend = Metaspace::Prepend::kAlways;
  if (scheme == "first") {
    prepend = Metaspace::Prepend::kFirst;
  } else if (scheme == "never") {
    prepend = Metaspace::Prepend::kNever;
  } else if (scheme != "always") {
    return Bad(absl::StrCat(where, ".prepend_scheme"), "must be always, first or never");
  }
  out->push_back(std::make_unique<Metaspace>(replacement, prepend));
  if (!split) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(Regex regex, Regex::Literal(replacement));
  out->push_back(
      std::make_unique<SplitByRegex>(std::move(regex), Behavior::kMergedWithNext, false));
  return absl::OkStatus();
}

absl::Status AddByteLevel(const Json& json, const std::string& where, Parsed* out) {
  ATOLL_ASSIGN_OR_RETURN(const bool prefix, BoolField(json, "add_prefix_space", where, true));
  ATOLL_ASSIGN_OR_RETURN(const bool use_regex, BoolField(json, "use_regex", where, true));
  if (prefix) out->push_back(std::make_unique<PrefixSpace>());
  if (use_regex) {
    ATOLL_RETURN_IF_ERROR(AddRegex(kGpt2Pattern, Behavior::kIsolated, false, out));
  }
  out->push_back(std::make_unique<SpellBytes>());
  return absl::OkStatus();
}

absl::Status AddSplit(const Json& json, const std::string& where, Parsed* out) {
  ATOLL_ASSIGN_OR_RETURN(const std::string name, StringField(json, "behavior", where, "Removed"));
  ATOLL_ASSIGN_OR_RETURN(const Behavior behavior, ParseBehavior(name, where));
  ATOLL_ASSIGN_OR_RETURN(const bool invert, BoolField(json, "invert", where, false));
  ATOLL_ASSIGN_OR_RETURN(Regex regex, ParsePattern(json, where));
  out->push_back(std::make_unique<SplitByRegex>(std::move(regex), behavior, invert));
  return absl::OkStatus();
}

bool IsAnyPunctuation(int32_t code) { return IsAsciiPunctuation(code) || IsPunctuation(code); }

absl::Status Add(const Json& json, const std::string& where, int depth, Parsed* out);

absl::Status AddSequence(const Json& json, const std::string& where, int depth, Parsed* out) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<Json> list, ListField(json, "pretokenizers", where));
  for (size_t i = 0; i < list.size(); ++i) {
    ATOLL_RETURN_IF_ERROR(Add(list[i], absl::StrCat(where, "[", i, "]"), depth + 1, out));
  }
  return absl::OkStatus();
}

absl::Status Add(const Json& json, const std::string& where, int depth, Parsed* out) {
  if (depth > kMaxDepth) return Bad(where, "is nested too deeply");
  if (json.is_null()) return absl::OkStatus();
  const auto predicate = [out](Predicate p, Behavior behavior) {
    out->push_back(std::make_unique<SplitByPredicate>(p, behavior));
    return absl::OkStatus();
  };
  ATOLL_ASSIGN_OR_RETURN(const std::string type, StringField(json, "type", where));
  if (type == "Sequence") return AddSequence(json, where, depth, out);
  if (type == "Split") return AddSplit(json, where, out);
  if (type == "ByteLevel") return AddByteLevel(json, where, out);
  if (type == "Metaspace") return AddMetaspace(json, where, out);
  if (type == "Whitespace") return AddRegex("\\w+|[^\\w\\s]+", Behavior::kRemoved, true, out);
  if (type == "WhitespaceSplit") return predicate(IsWhiteSpace, Behavior::kRemoved);
  if (type == "BertPreTokenizer") {
    out->push_back(std::make_unique<SplitByPredicate>(IsWhiteSpace, Behavior::kRemoved));
    return predicate(IsAnyPunctuation, Behavior::kIsolated);
  }
  if (type == "Punctuation") {
    ATOLL_ASSIGN_OR_RETURN(const std::string name,
                           StringField(json, "behavior", where, "Isolated"));
    ATOLL_ASSIGN_OR_RETURN(const Behavior behavior, ParseBehavior(name, where));
    return predicate(IsAnyPunctuation, behavior);
  }
  if (type == "Digits") {
    ATOLL_ASSIGN_OR_RETURN(const bool each, BoolField(json, "individual_digits", where, false));
    return predicate(IsNumber, each ? Behavior::kIsolated : Behavior::kContiguous);
  }
  if (type == "CharDelimiterSplit") {
    ATOLL_ASSIGN_OR_RETURN(const std::string delimiter, TextField(json, "delimiter", where, ""));
    ATOLL_ASSIGN_OR_RETURN(Regex regex, Regex::Literal(delimiter));
    out->push_back(std::make_unique<SplitByRegex>(std::move(regex), Behavior::kRemoved, false));
    return absl::OkStatus();
  }
  return Unsupported(where, type);
}

}  // namespace

absl::StatusOr<ParsedPreTokenizer> ParsePreTokenizer(const Json& json, const std::string& where) {
  Parsed steps;
  ATOLL_RETURN_IF_ERROR(Add(json, where, 0, &steps));
  ParsedPreTokenizer result;
  if (!steps.empty() && dynamic_cast<const SpellBytes*>(steps.back().get()) != nullptr) {
    result.bytes_are_symbols = true;
    steps.pop_back();
  }
  result.steps = std::make_unique<Steps>(std::move(steps));
  return result;
}

}  // namespace atl::tokenizer
