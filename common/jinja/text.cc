#include "common/jinja/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace atl::jinja {
namespace {

// Letters whose upper case is several letters.
bool HasLongUpperCase(uint32_t code) {
  return code == 0xdf || code == 0x149 || code == 0x1f0 || code == 0x390 || code == 0x3b0 ||
         code == 0x587 || (code >= 0x1e96 && code <= 0x1e9a) || (code >= 0x1f50 && code < 0x2000) ||
         (code >= 0xfb00 && code <= 0xfb17);
}

// I with a dot, whose lower case is two letters, and sigma, which is another one at a word's end.
bool HasOtherLowerCase(uint32_t code) { return code == 0x130 || code == 0x3a3; }

std::optional<std::string> Mapped(std::string_view text, bool (*is_other)(uint32_t),
                                  int32_t (*map)(int32_t)) {
  std::string result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Character c = CharacterAt(text, at);
    if (is_other(c.code)) return std::nullopt;
    AppendCharacter(static_cast<uint32_t>(map(static_cast<int32_t>(c.code))), &result);
    at += c.bytes;
  }
  return result;
}

// A text in quotes, as repr has it. nullopt: characters that Python may or may not print.
std::optional<std::string> Quoted(std::string_view text) {
  const bool doubled = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = doubled ? '"' : '\'';
  std::string result(1, quote);
  for (size_t at = 0; at < text.size();) {
    const Character c = CharacterAt(text, at);
    if (c.code == static_cast<unsigned char>(quote) || c.code == '\\') {
      result += '\\';
      result += static_cast<char>(c.code);
    } else if (c.code == '\n') {
      result += "\\n";
    } else if (c.code == '\r') {
      result += "\\r";
    } else if (c.code == '\t') {
      result += "\\t";
    } else if (c.code < 0x20 || c.code == 0x7f) {
      absl::StrAppendFormat(&result, "\\x%02x", c.code);
    } else {
      switch (utf8proc_category(static_cast<int32_t>(c.code))) {
        case UTF8PROC_CATEGORY_CC:
        case UTF8PROC_CATEGORY_CF:
        case UTF8PROC_CATEGORY_CN:
        case UTF8PROC_CATEGORY_CO:
        case UTF8PROC_CATEGORY_CS:
        case UTF8PROC_CATEGORY_ZL:
        case UTF8PROC_CATEGORY_ZP:
          return std::nullopt;
        case UTF8PROC_CATEGORY_ZS:
          if (c.code != ' ') return std::nullopt;
          break;
        default:
          break;
      }
      result += text.substr(at, c.bytes);
    }
    at += c.bytes;
  }
  return result + quote;
}

std::optional<std::string> Repr(const Value& value, int depth);

// Items between brackets; nullopt as soon as one has no text.
template <typename Range, typename Print>
std::optional<std::string> Joined(const Range& range, const char* open, const char* close,
                                  const Print& print) {
  std::string text = open;
  bool first = true;
  for (const auto& item : range) {
    const std::optional<std::string> part = print(item);
    if (!part.has_value()) return std::nullopt;
    absl::StrAppend(&text, first ? "" : ", ", *part);
    first = false;
  }
  return text + close;
}

std::optional<std::string> Repr(const Value& value, int depth) {
  if (depth > kMaxNesting) return std::nullopt;
  switch (value.kind()) {
    case Value::Kind::kUndefined:
      return "Undefined";
    case Value::Kind::kNone:
      return "None";
    case Value::Kind::kBool:
      return value.integer() != 0 ? "True" : "False";
    case Value::Kind::kInteger:
      return absl::StrCat(value.integer());
    case Value::Kind::kFloat:
      return FloatText(value.real());
    case Value::Kind::kString:
      return Quoted(value.text());
    case Value::Kind::kList: {
      const bool single = value.is_tuple() && value.items().size() == 1;
      return Joined(value.items(), value.is_tuple() ? "(" : "[",
                    single             ? ",)"
                    : value.is_tuple() ? ")"
                                       : "]",
                    [&](const Value& item) { return Repr(item, depth + 1); });
    }
    case Value::Kind::kDict:
      return Joined(value.dict().entries, "{", "}",
                    [&](const auto& entry) -> std::optional<std::string> {
                      const auto name = Repr(entry.first, depth + 1);
                      const auto text = Repr(entry.second, depth + 1);
                      if (!name.has_value() || !text.has_value()) return std::nullopt;
                      return absl::StrCat(*name, ": ", *text);
                    });
    case Value::Kind::kNamespace:
    case Value::Kind::kFunction:
      return std::nullopt;
  }
  return std::nullopt;
}

void AppendJsonText(std::string_view text, bool ascii, std::string* out) {
  using Json = nlohmann::json;
  *out += Json(std::string(text)).dump(-1, ' ', ascii, Json::error_handler_t::replace);
}

class JsonPrinter {
 public:
  explicit JsonPrinter(const JsonStyle& style) : style_(style) {}

  bool Print(const Value& value, int depth) {
    if (depth > kMaxNesting) return false;
    switch (value.kind()) {
      case Value::Kind::kNone:
        out_ += "null";
        return true;
      case Value::Kind::kBool:
        out_ += value.integer() != 0 ? "true" : "false";
        return true;
      case Value::Kind::kInteger:
        absl::StrAppend(&out_, value.integer());
        return true;
      case Value::Kind::kFloat:
        out_ += std::isnan(value.real())   ? "NaN"
                : std::isinf(value.real()) ? (value.real() > 0 ? "Infinity" : "-Infinity")
                                           : FloatText(value.real());
        return true;
      case Value::Kind::kString:
        AppendJsonText(value.text(), style_.ascii, &out_);
        return true;
      case Value::Kind::kList:
        return PrintAll(value.items(), '[', ']', depth,
                        [&](const Value& item) { return Print(item, depth + 1); });
      case Value::Kind::kDict:
        return PrintDict(value.dict().entries, depth);
      default:
        return false;
    }
  }
  std::string Take() { return std::move(out_); }

 private:
  bool PrintDict(std::vector<std::pair<Value, Value>> entries, int depth) {
    for (const auto& [name, value] : entries) {
      if (!name.is_string()) return false;
    }
    if (style_.sort_keys) {
      std::sort(entries.begin(), entries.end(),
                [](const auto& a, const auto& b) { return a.first.text() < b.first.text(); });
    }
    return PrintAll(entries, '{', '}', depth, [&](const auto& entry) {
      AppendJsonText(entry.first.text(), style_.ascii, &out_);
      out_ += style_.key_separator;
      return Print(entry.second, depth + 1);
    });
  }
  template <typename Range, typename PrintItem>
  bool PrintAll(const Range& range, char open, char close, int depth, const PrintItem& print) {
    out_ += open;
    bool first = true;
    for (const auto& item : range) {
      if (!first) out_ += style_.item_separator;
      first = false;
      NewLine(depth + 1);
      if (!print(item)) return false;
    }
    if (!first) NewLine(depth);
    out_ += close;
    return true;
  }
  void NewLine(int depth) {
    if (style_.indent < 0) return;
    out_ += '\n';
    out_.append(static_cast<size_t>(style_.indent) * static_cast<size_t>(depth), ' ');
  }

  const JsonStyle& style_;
  std::string out_;
};

}  // namespace

Character CharacterAt(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char lead = byte(0);
  const size_t bytes = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (bytes == 1 || at + bytes > text.size()) return {lead, 1};
  uint32_t code = lead & (0xffU >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) code = code << 6 | (byte(i) & 0x3fU);
  return {code, bytes};
}

void AppendCharacter(uint32_t code, std::string* text) {
  utf8proc_uint8_t bytes[4];
  const auto count = utf8proc_encode_char(static_cast<int32_t>(code), bytes);
  text->append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(count));
}

std::vector<size_t> CharacterStarts(std::string_view text) {
  std::vector<size_t> starts;
  starts.reserve(text.size() + 1);
  for (size_t at = 0; at < text.size(); at += CharacterAt(text, at).bytes) starts.push_back(at);
  starts.push_back(text.size());
  return starts;
}

int64_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

bool IsSpace(uint32_t code) {
  return (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x20) || code == 0x85 ||
         code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
         code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

std::string_view Strip(std::string_view text, bool left, bool right,
                       std::optional<std::string_view> chars) {
  const auto goes = [&](size_t at, const Character& c) {
    return chars.has_value() ? chars->find(text.substr(at, c.bytes)) != chars->npos
                             : IsSpace(c.code);
  };
  while (left && !text.empty()) {
    const Character c = CharacterAt(text, 0);
    if (!goes(0, c)) break;
    text.remove_prefix(c.bytes);
  }
  while (right && !text.empty()) {
    size_t at = text.size() - 1;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
    if (!goes(at, CharacterAt(text, at))) break;
    text = text.substr(0, at);
  }
  return text;
}

std::optional<std::string> ToUpper(std::string_view text) {
  return Mapped(text, HasLongUpperCase, utf8proc_toupper);
}

std::optional<std::string> ToLower(std::string_view text) {
  return Mapped(text, HasOtherLowerCase, utf8proc_tolower);
}

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double size = std::abs(value);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, end.ptr);
  if (plain && text.find('.') == text.npos) text += ".0";
  return text;
}

std::optional<std::string> ToText(const Value& value) {
  if (value.is_string()) return value.text();
  if (value.is_undefined()) return "";
  return Repr(value, 0);
}

std::optional<std::string> ToJson(const Value& value, const JsonStyle& style) {
  JsonPrinter printer(style);
  if (!printer.Print(value, 0)) return std::nullopt;
  return printer.Take();
}

}  // namespace atl::jinja
