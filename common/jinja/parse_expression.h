// Expressions of a template: a part of the parser.

#ifndef ATOLL_COMMON_JINJA_PARSE_EXPRESSION_H_
#define ATOLL_COMMON_JINJA_PARSE_EXPRESSION_H_

#include <algorithm>
#include <string>
#include <vector>

#include "common/jinja/ast.h"
#include "common/jinja/lexer.h"

namespace atl::jinja {

// Where a parser is in its tokens. The first error stays; after it nothing is read.
class TokenReader {
 public:
  // `tokens` must outlive it, and ends with kEnd.
  explicit TokenReader(const std::vector<Token>& tokens) : tokens_(tokens) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void Advance() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool Is(Token::Kind kind) const { return current().kind == kind; }
  bool IsName(const char* name) const { return Is(Token::Kind::kName) && current().text == name; }
  bool IsOperator(const char* op) const {
    return Is(Token::Kind::kOperator) && current().text == op;
  }
  bool TakeName(const char* name);
  bool TakeOperator(const char* op);
  void Expect(const char* op);
  std::string ExpectName();

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  void Fail(const std::string& problem);
  std::string Here() const;  // what is read next, for messages

  // Counts what is open, so that the tree has a bound; false beyond it.
  bool Enter();
  void Leave() { --depth_; }

 private:
  const std::vector<Token>& tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  absl::Status status_;
};

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenReader* in) : in_(*in) {}

  // Parses an expression, with "a if b else c" unless `conditional` is false. After an error it may
  // be null.
  ExpressionPtr Parse(bool conditional = true);
  // One expression, or several with commas between: a tuple.
  ExpressionPtr ParseTuple(bool conditional = true);
  // The filters of a block: "trim | upper"; parts[0] of the innermost is null.
  ExpressionPtr ParseFilters(ExpressionPtr subject);

 private:
  using Kind = Expression::Kind;
  ExpressionPtr New(Kind kind, std::string text = "");
  ExpressionPtr Binary(ExpressionPtr left, std::string op, ExpressionPtr right);
  using Level = ExpressionPtr (ExpressionParser::*)();
  // Operands of `next` with such operators between them, from the left.
  ExpressionPtr Chain(std::initializer_list<const char*> operators, Level next);
  ExpressionPtr Or();
  ExpressionPtr And();
  ExpressionPtr Not();
  ExpressionPtr Comparison();
  ExpressionPtr Sum();
  ExpressionPtr Concatenation();
  ExpressionPtr Product();
  ExpressionPtr Power();
  ExpressionPtr Unary(bool with_filters);
  ExpressionPtr Primary();
  ExpressionPtr Bracketed();
  ExpressionPtr Literal(Kind kind, const char* end);  // a list, or a dict
  ExpressionPtr Constant();
  ExpressionPtr Postfix(ExpressionPtr subject);
  ExpressionPtr Subscript(ExpressionPtr subject);
  ExpressionPtr Filter(ExpressionPtr subject);
  ExpressionPtr Test(ExpressionPtr subject);
  void Arguments(Expression* call);

  TokenReader& in_;
  int open_ = 0;   // calls of Parse inside of each other
  int nodes_ = 0;  // of the outermost one
};

}  // namespace atl::jinja

#endif  // ATOLL_COMMON_JINJA_PARSE_EXPRESSION_H_
