#include "worker/data/formats/json_line.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status.h"
#include "common/utf8.h"

namespace atl {
namespace {

// An object with this key alone stands for an odd number, whose spelling is the value. U+FFFF is no
// character: exporters write no field of this name.
constexpr const char* kOddKey = "\xef\xbf\xbf";

constexpr const char* kNulProblem =
    "a NUL (byte 0x00) outside of a value; was the file written to its end?";

class Scanner {
 public:
  Scanner(std::string_view text, std::vector<JsonOddNumber>* odd) : text_(text), odd_(odd) {}

  std::optional<JsonFault> Scan() {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;  // a mark of UTF-8 in front of a file
    bool wants_value = true;
    while (!fault_.has_value()) {
      SkipSpace();
      if (wants_value) {
        wants_value = ScanValue();
        continue;
      }
      if (open_.empty()) {
        if (at_ < text_.size()) FailBehind();
        break;
      }
      wants_value = ScanSeparator();
    }
    return fault_;
  }

 private:
  bool Fail(size_t at, std::string problem) {
    if (!fault_.has_value()) fault_ = JsonFault{at, std::move(problem)};
    return false;
  }
  bool FailEnd() {
    return Fail(text_.size(), open_.empty() ? "there is no JSON value"
                                            : "the line breaks off inside a JSON value");
  }
  void FailBehind() {
    const size_t end = text_.find_last_not_of(" \t\r\n", at_ - 1) + 1;
    if (text_.substr(end, at_ - end).find('\r') != std::string_view::npos) {
      Fail(end, "lines end in a carriage return alone; write line feeds: tr '\\r' '\\n'");
    } else if (text_[at_] == '\0') {
      Fail(at_, kNulProblem);
    } else {
      Fail(at_, "more follows the JSON value; a line holds one");
    }
  }
  void SkipSpace() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r' || text_[at_] == '\n')) {
      ++at_;
    }
  }
  bool Consume(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  // Scans a value; returns whether another one has to follow: the first one inside.
  bool ScanValue() {
    if (at_ == text_.size()) return FailEnd();
    const char c = text_[at_];
    if (c == '{' || c == '[') {
      ++at_;
      SkipSpace();
      if (Consume(c == '{' ? "}" : "]")) return false;
      open_.push_back(c);
      return c == '[' || ScanKey();
    }
    if (c == '"') return ScanString();
    if (Consume("true") || Consume("false") || Consume("null")) return false;
    if (c == '-' || (c >= '0' && c <= '9') || c == 'N' || c == 'I') return ScanNumber();
    if (c == '\'') return Fail(at_, "a text in single quotes; JSON's are double");
    if (c == '\0') return Fail(at_, kNulProblem);
    for (const char* word : {"True", "False", "None"}) {
      if (Consume(word)) {
        return Fail(at_, absl::StrCat(word,
                                      ", which Python has and JSON has not; write the file "
                                      "with json.dumps"));
      }
    }
    return Fail(at_, open_.empty() ? "is not JSON; is this plain text?" : "no JSON value");
  }

  // The key and its colon. True: a value follows.
  bool ScanKey() {
    SkipSpace();
    if (at_ == text_.size()) return FailEnd();
    if (text_[at_] != '"') return Fail(at_, "a field's name must begin here, in double quotes");
    ScanString();
    if (fault_.has_value()) return false;
    SkipSpace();
    if (at_ == text_.size()) return FailEnd();
    return Consume(":") || Fail(at_, "a field's name has no ':' behind it");
  }

  bool ScanSeparator() {
    if (at_ == text_.size()) return FailEnd();
    const bool object = open_.back() == '{';
    if (Consume(",")) return !object || ScanKey();
    if (Consume(object ? "}" : "]")) {
      open_.pop_back();
      return false;
    }
    return Fail(at_, absl::StrCat("a ',' or '", object ? "}" : "]", "' must stand here"));
  }

  bool ScanNumber() {
    const size_t begin = at_;
    Consume("-");
    if (Consume("NaN") || Consume("Infinity")) {
      odd_->push_back({begin, at_});
      return false;
    }
    const auto digits = [&] {
      const size_t from = at_;
      while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
      return at_ > from;
    };
    const size_t first = at_;
    if (!digits()) return Fail(begin, "no JSON value");
    if (text_[first] == '0' && at_ > first + 1) return Fail(begin, "a number that begins with 0");
    if (Consume(".") && !digits()) return Fail(begin, "a number that ends with '.'");
    if ((Consume("e") || Consume("E")) && (Consume("+") || Consume("-") || true) && !digits()) {
      return Fail(begin, "a number without its exponent");
    }
    double value = 0;
    const auto word = text_.substr(begin, at_ - begin);
    if (!absl::SimpleAtod({word.data(), word.size()}, &value) || !std::isfinite(value)) {
      odd_->push_back({begin, at_});
    }
    return false;
  }

  // False always: nothing has to follow.
  bool ScanString() {
    for (++at_; at_ < text_.size();) {
      const auto c = static_cast<unsigned char>(text_[at_]);
      if (c == '"') {
        ++at_;
        return false;
      }
      if (c == '\\') {
        if (!ScanEscape()) return false;
      } else if (c < 0x20) {
        const char* name = c == '\t' ? "tab" : c == 0 ? "NUL" : "control character";
        return Fail(at_, absl::StrFormat("a raw %s (byte 0x%02x) in a text; JSON writes \\u%04x",
                                         name, c, c));
      } else {
        const size_t bytes = CharacterBytes({text_.data(), text_.size()}, at_);
        if (bytes == 0) return FailByte(c);
        at_ += bytes;
      }
    }
    return Fail(text_.size(), "the line breaks off inside a text");
  }
  bool FailByte(unsigned byte) {
    return Fail(at_, absl::StrFormat("byte 0x%02x is not UTF-8; if the file is Latin-1: "
                                     "iconv -f latin1 -t utf-8",
                                     byte));
  }

  bool ScanEscape() {
    const size_t begin = at_++;
    if (at_ == text_.size()) return Fail(begin, "the line breaks off inside a text");
    const char c = text_[at_++];
    if (c != 'u') {
      const bool known = std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos;
      return known || Fail(begin, "an escape that JSON has not");
    }
    const int unit = ScanUnit();
    if (unit < 0) return Fail(begin, "\\u without four hexadecimal digits");
    const bool high = unit >= 0xd800 && unit < 0xdc00, low = unit >= 0xdc00 && unit < 0xe000;
    if (high && Consume("\\u")) {
      const int next = ScanUnit();
      if (next >= 0xdc00 && next < 0xe000) return true;
    }
    if (!high && !low) return true;
    return Fail(begin, absl::StrFormat("a lone surrogate (\\u%04x): half of a character that was "
                                       "cut",
                                       unit));
  }
  int ScanUnit() {
    uint32_t unit = 0;
    const auto digits = text_.substr(at_, 4);
    const bool whole = digits.size() == 4 && std::all_of(digits.begin(), digits.end(), [](char c) {
                         return std::isxdigit(static_cast<unsigned char>(c)) != 0;
                       });
    if (!whole || !absl::SimpleHexAtoi({digits.data(), 4}, &unit)) return -1;
    at_ += 4;
    return static_cast<int>(unit);
  }

  const std::string_view text_;
  std::vector<JsonOddNumber>* const odd_;
  size_t at_ = 0;
  std::vector<char> open_;  // of the objects and lists that the place is in
  std::optional<JsonFault> fault_;
};

// Returns the column of a byte: characters before it, and one.
int64_t Column(std::string_view text, size_t at) {
  const auto before = text.substr(0, at);
  return 1 + std::count_if(before.begin(), before.end(),
                           [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

// The text with a marked object in the place of each odd number.
std::string MarkOddNumbers(std::string_view json, const std::vector<JsonOddNumber>& odd) {
  std::string text;
  size_t done = 0;
  for (const JsonOddNumber& number : odd) {
    text.append(json.substr(done, number.begin - done));
    text.append("{\"").append(kOddKey).append("\":\"");
    text.append(json.substr(number.begin, number.end - number.begin)).append("\"}");
    done = number.end;
  }
  return text.append(json.substr(done));
}

template <typename Json>
bool IsOddNumber(const Json& value) {
  return value.is_object() && value.size() == 1 && value.begin().key() == kOddKey &&
         value.begin()->is_string();
}

}  // namespace

std::optional<JsonFault> FindJsonFault(std::string_view text, std::vector<JsonOddNumber>* odd) {
  return Scanner(text, odd).Scan();
}

template <typename Json>
absl::StatusOr<std::optional<Json>> ParseJsonLine(std::string_view json, const std::string& file,
                                                  int64_t line) {
  const auto bad = [&](size_t at, const std::string& problem) {
    return absl::InvalidArgumentError(
        absl::StrCat("data file ", file, ":", line, ":", Column(json, at), ": ", problem));
  };
  const size_t begin = json.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return std::nullopt;
  Json object = Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  // The parser takes a NUL for the end.
  if (object.is_discarded() || json.find('\0') != std::string_view::npos) {
    std::vector<JsonOddNumber> odd;
    const auto fault = FindJsonFault(json, &odd);
    if (fault.has_value()) {
      const bool goes_on = line == 1 && fault->at == json.size();
      const char* const of_file = !goes_on             ? ""
                                  : json[begin] == '[' ? "; of a file that is one list: jq -c '.[]'"
                                  : json[begin] == '{' ? "; of a file that is one object: jq -c ."
                                                       : "";
      return bad(fault->at, absl::StrCat(fault->problem, of_file));
    }
    object = Json::parse(MarkOddNumbers(json, odd), nullptr, /*allow_exceptions=*/false);
    if (object.is_discarded()) return bad(begin, "is not JSON");
  }
  if (object.is_object()) return object;
  return bad(begin, absl::StrCat("is ", DescribeJson(object), ", not a JSON object",
                                 object.is_array() && line == 1
                                     ? "; of a file that is one list: jq -c '.[]'"
                                     : ""));
}

template <typename Json>
std::string DescribeJson(const Json& value) {
  if (IsOddNumber(value)) {
    const auto& spelling = value.begin()->template get_ref<const std::string&>();
    const bool named = spelling.find_first_of("NI") != std::string::npos;
    return named ? absl::StrCat(spelling, ", which JSON has not")
                 : absl::StrCat(spelling.substr(0, 40), ", too large a number");
  }
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "a list";
    case Json::value_t::string:
      return "a text";
    case Json::value_t::boolean:
      return value.template get<bool>() ? "true" : "false";
    default:
      return "a number";
  }
}

size_t JsonDepth(std::string_view json) {
  size_t depth = 0, deepest = 0;
  bool in_text = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '"') in_text = !in_text;
    if (c == '\\') ++i;
    if (in_text) continue;
    if (c == '{' || c == '[') deepest = std::max(deepest, ++depth);
    if ((c == '}' || c == ']') && depth > 0) --depth;
  }
  return deepest;
}

std::string FindOddNumber(const nlohmann::ordered_json& value) {
  if (IsOddNumber(value)) return DescribeJson(value);
  std::string found;
  if (!value.is_structured()) return found;
  for (auto it = value.begin(); found.empty() && it != value.end(); ++it) {
    found = FindOddNumber(*it);
  }
  return found;
}

template absl::StatusOr<std::optional<nlohmann::json>> ParseJsonLine(std::string_view,
                                                                     const std::string&, int64_t);
template absl::StatusOr<std::optional<nlohmann::ordered_json>> ParseJsonLine(std::string_view,
                                                                             const std::string&,
                                                                             int64_t);
template std::string DescribeJson(const nlohmann::json&);

absl::StatusOr<std::optional<std::string>> JsonlText(std::string_view json,
                                                     const std::string& field,
                                                     const std::string& file, int64_t line) {
  const auto bad = [&](const std::string& problem) {
    return absl::InvalidArgumentError(absl::StrCat("data file ", file, ":", line, ": ", problem));
  };
  ATOLL_ASSIGN_OR_RETURN(auto object, ParseJsonLine<nlohmann::json>(json, file, line));
  if (!object.has_value()) return std::nullopt;
  const auto found = object->find(field);
  if (found == object->end()) {
    std::string names;
    for (const auto& [name, value] : object->items()) {
      if (names.size() < 200) absl::StrAppend(&names, names.empty() ? "" : ", ", name);
    }
    return bad(absl::StrCat(
        "has no field \"", field, "\" (data.field), but ", names.empty() ? "none" : names,
        object->contains("messages") ? "; data.format = \"chat\" reads messages" : ""));
  }
  if (found->is_string()) return std::move(found->get_ref<std::string&>());
  return bad(absl::StrCat("its field \"", field, "\" is ", DescribeJson(*found), ", not text"));
}

}  // namespace atl
