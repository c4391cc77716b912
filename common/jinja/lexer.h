// The text of a template to tokens. White space around tags is what transformers makes of it: the
// line end behind a block is dropped, and the blanks before one that begins its line.

#ifndef ATOLL_COMMON_JINJA_LEXER_H_
#define ATOLL_COMMON_JINJA_LEXER_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace atl::jinja {

struct Token {
  enum class Kind : uint8_t {
    kText,
    kOutputBegin,  // {{
    kOutputEnd,
    kBlockBegin,  // {%
    kBlockEnd,
    kName,
    kString,  // text without quotes and escapes
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };

  Kind kind = Kind::kEnd;
  std::string text;
  int line = 0;
};

// INVALID_ARGUMENT names the line. The last token is kEnd. REQUIRES: well-formed UTF-8.
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view text);

}  // namespace atl::jinja

#endif  // ATOLL_COMMON_JINJA_LEXER_H_
