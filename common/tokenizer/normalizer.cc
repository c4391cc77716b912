#include "common/tokenizer/normalizer.h"

#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_replace.h"
#include "common/tokenizer/added_tokens.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/charsmap.h"
#include "common/tokenizer/unicode.h"
#include "common/tokenizer/views.h"

namespace atl::tokenizer {
namespace {

// One that always works, given as a function of the text.
template <typename Function>
Normalizer MakeAlways(Function function) {
  return [function = std::move(function)](std::string* text, bool /*continues*/) {
    *text = function(*text);
    return absl::OkStatus();
  };
}

template <typename Keep>
std::string Filtered(std::string_view text, Keep keep) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const Character c = CharacterAt(text, i);
    if (keep(c.code)) result.append(text, i, c.bytes);
    i += c.bytes;
  }
  return result;
}

std::string Stripped(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const Character c = CharacterAt(text, 0);
    if (!IsWhiteSpace(c.code)) break;
    text.remove_prefix(c.bytes);
  }
  while (right && !text.empty()) {
    const size_t bytes = LastCharacterBytes(text);
    if (!IsWhiteSpace(CharacterAt(text, text.size() - bytes).code)) break;
    text.remove_suffix(bytes);
  }
  return std::string(text);
}

// Ranges as Hugging Face has them: the block at U+2B820 begins at U+2B920.
bool IsChinese(int32_t c) {
  return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) ||
         (c >= 0x20000 && c <= 0x2a6df) || (c >= 0x2a700 && c <= 0x2b73f) ||
         (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
         (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

struct BertOptions {
  bool clean_text = true, chinese = true, strip_accents = true, lowercase = true;
};

std::string BertNormalized(const BertOptions& options, std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const Character c = CharacterAt(text, i);
    const bool blank = c.code == '\t' || c.code == '\n' || c.code == '\r';
    if (options.clean_text && !blank && (c.code == 0 || c.code == 0xfffd || IsOther(c.code))) {
      // dropped
    } else if (options.clean_text && IsWhiteSpace(c.code)) {
      result += ' ';
    } else if (options.chinese && IsChinese(c.code)) {
      absl::StrAppend(&result, " ", View(text.substr(i, c.bytes)), " ");
    } else {
      result.append(text, i, c.bytes);
    }
    i += c.bytes;
  }
  if (options.strip_accents) {
    result =
        Filtered(Normalized(result, Form::kNfd), [](int32_t c) { return !IsNonspacingMark(c); });
  }
  return options.lowercase ? Lowercased(result) : result;
}

absl::StatusOr<Normalizer> ParseBert(const Json& json, const std::string& where) {
  BertOptions options;
  ATOLL_ASSIGN_OR_RETURN(options.clean_text, BoolField(json, "clean_text", where, true));
  ATOLL_ASSIGN_OR_RETURN(options.chinese, BoolField(json, "handle_chinese_chars", where, true));
  ATOLL_ASSIGN_OR_RETURN(options.lowercase, BoolField(json, "lowercase", where, true));
  ATOLL_ASSIGN_OR_RETURN(options.strip_accents,
                         BoolField(json, "strip_accents", where, options.lowercase));
  return MakeAlways([options](std::string_view text) { return BertNormalized(options, text); });
}

// SentencePiece's clean-up of text from the web, which T5's descendants name "Nmt".
std::string NmtNormalized(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const Character c = CharacterAt(text, i);
    const int32_t code = c.code;
    const bool dropped = (code >= 1 && code <= 8) || code == 0xb || (code >= 0xe && code <= 0x1f) ||
                         code == 0x7f || code == 0x8f || code == 0x9f;
    const bool space = code == 9 || code == 0xa || code == 0xc || code == 0xd || code == 0x1680 ||
                       (code >= 0x200b && code <= 0x200f) || code == 0x2028 || code == 0x2029 ||
                       code == 0x2581 || code == 0xfeff || code == 0xfffd;
    if (space) {
      result += ' ';
    } else if (!dropped) {
      result.append(text, i, c.bytes);
    }
    i += c.bytes;
  }
  return result;
}

absl::StatusOr<Normalizer> ParseSequence(const Json& json, const std::string& where, int depth) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<Json> list, ListField(json, "normalizers", where));
  std::vector<Normalizer> steps;
  for (size_t i = 0; i < list.size(); ++i) {
    ATOLL_ASSIGN_OR_RETURN(steps.emplace_back(),
                           ParseNormalizer(list[i], absl::StrCat(where, "[", i, "]"), depth + 1));
  }
  return [steps](std::string* text, bool continues) -> absl::Status {
    for (const Normalizer& step : steps) ATOLL_RETURN_IF_ERROR(step(text, continues));
    return absl::OkStatus();
  };
}

absl::StatusOr<Normalizer> ParseReplace(const Json& json, const std::string& where) {
  ATOLL_ASSIGN_OR_RETURN(std::string content, StringField(json, "content", where));
  const Json& pattern = Member(json, "pattern");
  if (Member(pattern, "String").is_string()) {
    ATOLL_ASSIGN_OR_RETURN(std::string from, TextField(pattern, "String", where, ""));
    return MakeAlways([from, content](std::string_view text) {
      return absl::StrReplaceAll(View(text), {{from, content}});
    });
  }
  ATOLL_ASSIGN_OR_RETURN(Regex regex, ParsePattern(json, where));
  auto shared = std::make_shared<const Regex>(std::move(regex));
  return [shared, content](std::string* text, bool /*continues*/) -> absl::Status {
    ATOLL_ASSIGN_OR_RETURN(*text, Replaced(*shared, *text, content));
    return absl::OkStatus();
  };
}

absl::StatusOr<Normalizer> ParseCharsmap(const Json& json, const std::string& where) {
  const std::string field = absl::StrCat(where, ".precompiled_charsmap");
  ATOLL_ASSIGN_OR_RETURN(const std::string text, StringField(json, "precompiled_charsmap", where));
  std::string bytes;
  if (!absl::Base64Unescape(text, &bytes)) return Bad(field, "is not base64");
  auto map = Charsmap::Parse(std::move(bytes));
  if (!map.ok()) return Annotate(map.status(), field);
  auto shared = std::make_shared<const Charsmap>(*std::move(map));
  ATOLL_ASSIGN_OR_RETURN(const bool longest_key, BoolField(json, "longest_key", where, false));
  if (!longest_key) {
    return MakeAlways(
        [shared](std::string_view text) { return shared->NormalizedByCluster(text); });
  }
  ATOLL_ASSIGN_OR_RETURN(const std::vector<Json> kept, ListField(json, "kept", where));
  AddedTokenFinder finder;
  for (const Json& text : kept) {
    if (!text.is_string()) return Bad(absl::StrCat(where, ".kept"), "must be a list of texts");
    finder.Add(text, {});
  }
  return MakeAlways([shared, finder = std::move(finder)](std::string_view text) {
    std::vector<AddedTokenFinder::Segment> segments;
    finder.Split(text, &segments);
    std::string result;
    for (const AddedTokenFinder::Segment& segment : segments) {
      const bool is_kept = segment.id >= 0;
      result += is_kept ? std::string(segment.text) : shared->NormalizedByLongestKey(segment.text);
    }
    return result;
  });
}

// Makes a normalizer that is a function of the text without parameters; null: another type.
Normalizer Plain(const std::string& type) {
  struct Named {
    const char* type;
    Form form;
  };
  constexpr Named kForms[] = {
      {"NFC", Form::kNfc}, {"NFD", Form::kNfd}, {"NFKC", Form::kNfkc}, {"NFKD", Form::kNfkd}};
  for (const auto& [name, form] : kForms) {
    if (type == name) {
      return MakeAlways([form = form](std::string_view text) { return Normalized(text, form); });
    }
  }
  if (type == "Lowercase") return MakeAlways(Lowercased);
  if (type == "Nmt") return MakeAlways(NmtNormalized);
  if (type == "ByteLevel") return MakeAlways(ByteLevelText);
  if (type == "StripAccents") {
    return MakeAlways(
        [](std::string_view text) { return Filtered(text, [](int32_t c) { return !IsMark(c); }); });
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<Regex> ParsePattern(const Json& object, const std::string& where) {
  const std::string field = absl::StrCat(where, ".pattern");
  const Json& pattern = Member(object, "pattern");
  if (Member(pattern, "Regex").is_string()) {
    ATOLL_ASSIGN_OR_RETURN(const std::string text, TextField(pattern, "Regex", field, ""));
    auto regex = Regex::Compile(text);
    return regex.ok() ? std::move(regex) : Annotate(regex.status(), field);
  }
  if (pattern.is_object() || pattern.is_string()) {
    ATOLL_ASSIGN_OR_RETURN(const std::string text, pattern.is_string()
                                                       ? absl::StatusOr<std::string>(pattern)
                                                       : TextField(pattern, "String", field, ""));
    return Regex::Literal(text);
  }
  return Bad(field, "must be {\"String\": ...} or {\"Regex\": ...}");
}

absl::StatusOr<std::string> Replaced(const Regex& pattern, std::string_view text,
                                     std::string_view content) {
  std::string result;
  size_t at = 0;
  for (size_t from = 0; from <= text.size();) {
    ATOLL_ASSIGN_OR_RETURN(const Match match, pattern.Find(text, from));
    if (!match.found) break;
    result.append(text, at, match.begin - at);
    result += content;
    at = from = match.end;
    if (match.begin == match.end) {  // an empty match: the next one begins a character further
      if (from >= text.size()) break;
      from += CharacterAt(text, from).bytes;
    }
  }
  result.append(text, at, std::string_view::npos);
  return result;
}

absl::StatusOr<Normalizer> ParseNormalizer(const Json& json, const std::string& where, int depth) {
  if (depth > kMaxDepth) return Bad(where, "is nested too deeply");
  if (json.is_null()) return [](std::string*, bool) { return absl::OkStatus(); };
  ATOLL_ASSIGN_OR_RETURN(const std::string type, StringField(json, "type", where));
  if (auto plain = Plain(type); plain != nullptr) return plain;
  if (type == "Sequence") return ParseSequence(json, where, depth);
  if (type == "BertNormalizer") return ParseBert(json, where);
  if (type == "Replace") return ParseReplace(json, where);
  if (type == "Precompiled") return ParseCharsmap(json, where);
  if (type == "Strip") {
    ATOLL_ASSIGN_OR_RETURN(const bool left, BoolField(json, "strip_left", where, true));
    ATOLL_ASSIGN_OR_RETURN(const bool right, BoolField(json, "strip_right", where, true));
    return MakeAlways([left, right](std::string_view text) { return Stripped(text, left, right); });
  }
  if (type == "Prepend") {
    ATOLL_ASSIGN_OR_RETURN(std::string prefix, TextField(json, "prepend", where, ""));
    ATOLL_ASSIGN_OR_RETURN(const bool continued, BoolField(json, "if_continued", where, false));
    return [prefix, continued](std::string* text, bool continues) {
      if (!text->empty() && (!continues || continued)) text->insert(0, prefix);
      return absl::OkStatus();
    };
  }
  return Unsupported(where, type);
}

}  // namespace atl::tokenizer
