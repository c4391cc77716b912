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

// Cuts each piece: `find(piece, its begin, parts)` finds the parts.
template <typename Find>
PreTokenizer MakeSplit(Behavior behavior, Find find) {
  return [behavior, find = std::move(find)](Pieces* pieces) -> absl::Status {
    std::vector<Pieces::Range> out;
    std::vector<Part> parts;
    for (const Pieces::Range& range : pieces->ranges) {
      parts.clear();
      ATOLL_RETURN_IF_ERROR(find(pieces->piece(range), range.begin, &parts));
      AppendPieces(parts, behavior, &out);
    }
    pieces->ranges = std::move(out);
    return absl::OkStatus();
  };
}

PreTokenizer SplitByRegex(Regex regex, Behavior behavior, bool invert) {
  auto shared = std::make_shared<const Regex>(std::move(regex));
  return MakeSplit(behavior,
                   [shared, invert](std::string_view piece, size_t begin,
                                    std::vector<Part>* parts) -> absl::Status {
                     ATOLL_RETURN_IF_ERROR(PartsByRegex(*shared, piece, begin, parts));
                     for (Part& part : *parts) part.match = part.match != invert;
                     return absl::OkStatus();
                   });
}

PreTokenizer SplitByPredicate(Predicate predicate, Behavior behavior) {
  return MakeSplit(behavior,
                   [predicate](std::string_view piece, size_t begin, std::vector<Part>* parts) {
                     PartsByPredicate(predicate, piece, begin, parts);
                     return absl::OkStatus();
                   });
}

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

absl::Status PrefixSpace(Pieces* pieces) {
  Rewrite(pieces, [&](std::string_view piece, bool first) {
    const bool wanted = !piece.starts_with(' ') && !(first && pieces->continues);
    return wanted ? absl::StrCat(" ", View(piece)) : std::string(piece);
  });
  return absl::OkStatus();
}

absl::Status SpellBytes(Pieces* pieces) {
  Rewrite(pieces, [](std::string_view piece, bool) { return ByteLevelText(piece); });
  return absl::OkStatus();
}

using Parsed = std::vector<PreTokenizer>;

absl::Status AddRegex(std::string_view pattern, Behavior behavior, bool invert, Parsed* out) {
  ATOLL_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(pattern));
  out->push_back(SplitByRegex(std::move(regex), behavior, invert));
  return absl::OkStatus();
}

absl::Status AddMetaspace(const Json& json, const std::string& where, Parsed* out) {
  ATOLL_ASSIGN_OR_RETURN(const std::string replacement,
                         TextField(json, "replacement", where, "\xe2\x96\x81"));
  ATOLL_ASSIGN_OR_RETURN(const bool add, BoolField(json, "add_prefix_space", where, true));
  ATOLL_ASSIGN_OR_RETURN(const std::string scheme,
                         StringField(json, "prepend_scheme", where, add ? "always" : "never"));
  ATOLL_ASSIGN_OR_RETURN(const bool split, BoolField(json, "split", where, true));
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    return Bad(absl::StrCat(where, ".prepend_scheme"), "must be always, first or never");
  }
  out->push_back([replacement, scheme](Pieces* pieces) {
    Rewrite(pieces, [&](std::string_view piece, bool first) {
      std::string text = absl::StrReplaceAll(View(piece), {{" ", replacement}});
      const bool wanted = scheme == "always" || (scheme == "first" && first && pieces->at_start);
      if (!wanted || absl::StartsWith(text, replacement)) return text;
      return absl::StrCat(replacement, text);
    });
    return absl::OkStatus();
  });
  if (!split) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(Regex regex, Regex::Literal(replacement));
  out->push_back(SplitByRegex(std::move(regex), Behavior::kMergedWithNext, false));
  return absl::OkStatus();
}

absl::Status AddByteLevel(const Json& json, const std::string& where, Parsed* out) {
  ATOLL_ASSIGN_OR_RETURN(const bool prefix, BoolField(json, "add_prefix_space", where, true));
  ATOLL_ASSIGN_OR_RETURN(const bool use_regex, BoolField(json, "use_regex", where, true));
  if (prefix) out->push_back(PrefixSpace);
  if (use_regex) {
    ATOLL_RETURN_IF_ERROR(AddRegex(kGpt2Pattern, Behavior::kIsolated, false, out));
  }
  out->push_back(SpellBytes);
  return absl::OkStatus();
}

absl::Status AddSplit(const Json& json, const std::string& where, Parsed* out) {
  ATOLL_ASSIGN_OR_RETURN(const std::string name, StringField(json, "behavior", where, "Removed"));
  ATOLL_ASSIGN_OR_RETURN(const Behavior behavior, ParseBehavior(name, where));
  ATOLL_ASSIGN_OR_RETURN(const bool invert, BoolField(json, "invert", where, false));
  ATOLL_ASSIGN_OR_RETURN(Regex regex, ParsePattern(json, where));
  out->push_back(SplitByRegex(std::move(regex), behavior, invert));
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
    out->push_back(SplitByPredicate(p, behavior));
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
    out->push_back(SplitByPredicate(IsWhiteSpace, Behavior::kRemoved));
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
    out->push_back(SplitByRegex(std::move(regex), Behavior::kRemoved, false));
    return absl::OkStatus();
  }
  return Unsupported(where, type);
}

}  // namespace

absl::StatusOr<ParsedPreTokenizer> ParsePreTokenizer(const Json& json, const std::string& where) {
  Parsed steps;
  ATOLL_RETURN_IF_ERROR(Add(json, where, 0, &steps));
  ParsedPreTokenizer result;
  using Plain = absl::Status (*)(Pieces*);
  const Plain* const last = steps.empty() ? nullptr : steps.back().target<Plain>();
  if (last != nullptr && *last == SpellBytes) {
    result.bytes_are_symbols = true;
    steps.pop_back();
  }
  result.steps = std::move(steps);
  return result;
}

}  // namespace atl::tokenizer
