#include "common/jinja/lexer.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "common/jinja/text.h"
#include "common/status.h"

namespace atl::jinja {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsName(char c) { return IsNameStart(c) || IsDigit(c); }

// Longer ones first.
constexpr const char* kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                      "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                      ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (status_.ok() && at_ < text_.size()) Next();
    ATOLL_RETURN_IF_ERROR(status_);
    Add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void Fail(absl::string_view problem) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat("line ", line_, ": ", problem));
    }
  }
  void Add(Token::Kind kind, std::string text) {
    tokens_.push_back({kind, std::move(text), line_});
  }

  // Goes on to `end`, and counts lines.
  void Skip(size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<ptrdiff_t>(at_),
                                         text_.begin() + static_cast<ptrdiff_t>(end), '\n'));
    begins_line_ = end > 0 && text_[end - 1] == '\n';
    at_ = end;
  }
  void SkipSpaces() {
    const std::string_view rest = text_.substr(at_);
    Skip(at_ + rest.size() - Strip(rest, true, false).size());
  }
  bool Has(size_t at, std::string_view what) const {
    return at <= text_.size() && text_.substr(at).starts_with(what);
  }

  // Text up to the next tag, and that tag.
  void Next() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = text_.find('{', tag);
      if (tag == text_.npos ||
          (tag + 1 < text_.size() &&
           (text_[tag + 1] == '{' || text_[tag + 1] == '%' || text_[tag + 1] == '#'))) {
        break;
      }
    }
    if (tag == text_.npos) {
      Add(Token::Kind::kText, std::string(text_.substr(at_)));
      at_ = text_.size();
      return;
    }
    const char sign = tag + 2 < text_.size() ? text_[tag + 2] : ' ';
    AddText(text_.substr(at_, tag - at_), sign, text_[tag + 1] != '{');
    Skip(tag);
    if (text_[tag + 1] == '#') return Comment();
    const bool signed_ = sign == '-' || sign == '+';
    const bool block = text_[tag + 1] == '%';
    Skip(tag + (signed_ ? 3 : 2));
    if (block && Raw()) return;
    Add(block ? Token::Kind::kBlockBegin : Token::Kind::kOutputBegin, "");
    Inside(block);
  }

  void AddText(std::string_view text, char sign, bool strips_line) {
    if (sign == '-') {
      text = Strip(text, false, true);
    } else if (sign != '+' && strips_line) {
      const size_t line = text.rfind('\n') + 1;  // npos + 1 is 0
      if ((line > 0 || begins_line_) && Strip(text.substr(line), true, false).empty()) {
        text = text.substr(0, line);
      }
    }
    if (!text.empty()) Add(Token::Kind::kText, std::string(text));
  }

  // Behind the end of a block or comment whose sign, before the end, is `sign`.
  void AfterBlock(size_t end, char sign) {
    Skip(end);
    if (sign == '-') {
      SkipSpaces();
    } else if (sign != '+' && Has(at_, "\n")) {
      Skip(at_ + 1);
    }
  }

  void Comment() {
    const size_t end = text_.find("#}", at_ + 2);
    if (end == text_.npos) return Fail("a comment has no end");
    AfterBlock(end + 2, text_[end - 1]);
  }

  // Behind "{%": the word, and the end of the block, or npos.
  size_t EndOfWordBlock(size_t at, std::string_view word, char* sign) const {
    const auto spaces = [&] {
      while (at < text_.size() && IsSpace(static_cast<unsigned char>(text_[at]))) ++at;
    };
    spaces();
    if (!Has(at, word)) return text_.npos;
    at += word.size();
    spaces();
    *sign = at < text_.size() ? text_[at] : ' ';
    if (*sign == '-' || *sign == '+') ++at;
    return Has(at, "%}") ? at + 2 : text_.npos;
  }

  // {% raw %} ... {% endraw %}
  bool Raw() {
    char sign = ' ';
    const size_t begin = EndOfWordBlock(at_, "raw", &sign);
    if (begin == text_.npos) return false;
    AfterBlock(begin, sign);
    for (size_t tag = text_.find("{%", at_); tag != text_.npos; tag = text_.find("{%", tag + 2)) {
      const char before = tag + 2 < text_.size() ? text_[tag + 2] : ' ';
      const size_t word = tag + (before == '-' || before == '+' ? 3 : 2);
      const size_t end = EndOfWordBlock(word, "endraw", &sign);
      if (end == text_.npos) continue;
      AddText(text_.substr(at_, tag - at_), before, true);
      AfterBlock(end, sign);
      return true;
    }
    Fail("a raw block has no end");
    return true;
  }

  // The expression or statement up to its end.
  void Inside(bool block) {
    const std::string_view close = block ? "%}" : "}}";
    std::string brackets;
    while (status_.ok()) {
      SkipSpaces();
      if (at_ >= text_.size())
        return Fail(absl::StrCat("a tag has no end \"", std::string(close), "\""));
      if (brackets.empty()) {
        const bool is_signed = text_[at_] == '-' || (block && text_[at_] == '+');
        const size_t end = at_ + (is_signed ? 1 : 0);
        if (Has(end, close)) {
          Add(block ? Token::Kind::kBlockEnd : Token::Kind::kOutputEnd, "");
          const char sign = is_signed ? text_[at_] : ' ';
          if (block) return AfterBlock(end + 2, sign);
          Skip(end + 2);
          if (sign == '-') SkipSpaces();
          return;
        }
      }
      One(&brackets);
    }
  }

  void One(std::string* brackets) {
    const char c = text_[at_];
    if (IsNameStart(c)) {
      size_t end = at_;
      while (end < text_.size() && IsName(text_[end])) ++end;
      Add(Token::Kind::kName, std::string(text_.substr(at_, end - at_)));
      return Skip(end);
    }
    if (IsDigit(c)) return Number();
    if (c == '\'' || c == '"') return String(c);
    for (const char* op : kOperators) {
      if (!Has(at_, op)) continue;
      if (c == '(' || c == '[' || c == '{') {
        *brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
      } else if (c == ')' || c == ']' || c == '}') {
        if (brackets->empty() || brackets->back() != c) {
          return Fail(absl::StrCat("\"", op, "\" closes nothing"));
        }
        brackets->pop_back();
      }
      Add(Token::Kind::kOperator, op);
      return Skip(at_ + std::string_view(op).size());
    }
    Fail(absl::StrCat("\"", std::string(text_.substr(at_, CharacterAt(text_, at_).bytes)),
                      "\" has no meaning in a tag"));
  }

  void Number() {
    size_t end = at_;
    bool real = false;
    const auto digits = [&] {
      while (end < text_.size() && (IsDigit(text_[end]) || text_[end] == '_')) ++end;
    };
    digits();
    if (end + 1 < text_.size() && text_[end] == '.' && IsDigit(text_[end + 1])) {
      real = true;
      ++end;
      digits();
    }
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      const size_t sign =
          end + 1 < text_.size() && (text_[end + 1] == '-' || text_[end + 1] == '+');
      if (end + 1 + sign < text_.size() && IsDigit(text_[end + 1 + sign])) {
        real = true;
        end += 1 + sign;
        digits();
      }
    }
    std::string number(text_.substr(at_, end - at_));
    number.erase(std::remove(number.begin(), number.end(), '_'), number.end());
    Add(real ? Token::Kind::kFloat : Token::Kind::kInteger, std::move(number));
    Skip(end);
  }

  void String(char quote) {
    std::string value;
    size_t at = at_ + 1;
    while (at < text_.size() && text_[at] != quote) {
      if (text_[at] != '\\') {
        value += text_[at++];
        continue;
      }
      if (at + 1 >= text_.size()) break;
      at = Escape(at + 1, &value);
      if (!status_.ok()) return;
    }
    if (at >= text_.size()) return Fail("a text has no closing quote");
    Add(Token::Kind::kString, std::move(value));
    Skip(at + 1);
  }

  // The escape whose letter is at `at`; returns where the text goes on.
  size_t Escape(size_t at, std::string* value) {
    const char c = text_[at];
    constexpr std::string_view kLetters = "nrtbfav\\'\"";
    constexpr std::string_view kMeanings = "\n\r\t\b\f\a\v\\'\"";
    if (const size_t i = kLetters.find(c); i != kLetters.npos) {
      *value += kMeanings[i];
      return at + 1;
    }
    if (c == '\n') return at + 1;
    const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (count > 0) {
      uint32_t code = 0;
      const std::string_view hex = text_.substr(at + 1, count);
      const bool all = hex.size() == count && std::all_of(hex.begin(), hex.end(), [](char h) {
                         return absl::ascii_isxdigit(static_cast<unsigned char>(h));
                       });
      if (!all || !absl::SimpleHexAtoi(std::string(hex), &code) || code > 0x10ffff ||
          (code >= 0xd800 && code < 0xe000)) {
        Fail(absl::StrCat("the escape \"\\", std::string(text_.substr(at, 1 + count)),
                          "\" is no character"));
        return at;
      }
      AppendCharacter(code, value);
      return at + 1 + count;
    }
    if (c == 'N' || IsDigit(c)) {
      Fail(absl::StrCat("the escape \"\\", std::string(text_.substr(at, 1)),
                        "\" is not implemented"));
      return at;
    }
    *value += '\\';  // as Python leaves what it does not know
    return at;
  }

  const std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  bool begins_line_ = true;  // what was read last ends a line
  std::vector<Token> tokens_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view text) {
  std::string lines = absl::StrReplaceAll(std::string(text), {{"\r\n", "\n"}, {"\r", "\n"}});
  if (lines.ends_with("\n")) lines.pop_back();
  return Lexer(lines).Run();
}

}  // namespace atl::jinja
