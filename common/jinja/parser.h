// Tokens to a tree. What is not implemented is refused here, by its name.

#ifndef ATOLL_COMMON_JINJA_PARSER_H_
#define ATOLL_COMMON_JINJA_PARSER_H_

#include <vector>

#include "common/jinja/ast.h"
#include "common/jinja/lexer.h"

namespace atl::jinja {

// INVALID_ARGUMENT names the line.
absl::StatusOr<Body> Parse(const std::vector<Token>& tokens);

}  // namespace atl::jinja

#endif  // ATOLL_COMMON_JINJA_PARSER_H_
