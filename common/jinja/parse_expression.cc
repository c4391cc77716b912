#include "common/jinja/parse_expression.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/jinja/filters.h"
#include "common/jinja/tests.h"

namespace atl::jinja {
namespace {

constexpr int kMaxParseDepth = 150;  // of brackets and blocks inside of each other

constexpr int kMaxNodes = 1500;  // of one expression, which may all lie inside of each other

class Nested {
 public:
  explicit Nested(TokenReader* in) : in_(in), entered_(in->Enter()) {}
  ~Nested() { in_->Leave(); }
  bool entered() const { return entered_; }

 private:
  TokenReader* const in_;
  const bool entered_;
};

}  // namespace

bool TokenReader::TakeName(const char* name) {
  if (!IsName(name)) return false;
  Advance();
  return true;
}

bool TokenReader::TakeOperator(const char* op) {
  if (!IsOperator(op)) return false;
  Advance();
  return true;
}

void TokenReader::Expect(const char* op) {
  if (!TakeOperator(op)) Fail(absl::StrCat("expected \"", op, "\", not ", Here()));
}

std::string TokenReader::ExpectName() {
  if (!Is(Token::Kind::kName)) {
    Fail(absl::StrCat("expected a name, not ", Here()));
    return "";
  }
  std::string name = current().text;
  Advance();
  return name;
}

void TokenReader::Fail(const std::string& problem) {
  if (ok()) {
    status_ = absl::InvalidArgumentError(absl::StrCat("line ", current().line, ": ", problem));
  }
}

std::string TokenReader::Here() const {
  const bool has_text = current().kind >= Token::Kind::kName && !Is(Token::Kind::kEnd);
  return has_text ? absl::StrCat("\"", current().text, "\"") : "the end";
}

bool TokenReader::Enter() {
  if (++depth_ > kMaxParseDepth) Fail("is nested too deeply");
  return ok();
}

ExpressionPtr ExpressionParser::New(Kind kind, std::string text) {
  if (++nodes_ > kMaxNodes) in_.Fail("an expression is too long");
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->line = in_.current().line;
  expression->text = std::move(text);
  return expression;
}

ExpressionPtr ExpressionParser::Binary(ExpressionPtr left, std::string op, ExpressionPtr right) {
  ExpressionPtr expression = New(Kind::kBinary, std::move(op));
  expression->parts.push_back(std::move(left));
  expression->parts.push_back(std::move(right));
  return expression;
}

ExpressionPtr ExpressionParser::Parse(bool conditional) {
  const Nested nested(&in_);
  if (!nested.entered()) return nullptr;
  if (open_ == 0) nodes_ = 0;
  ++open_;
  ExpressionPtr value = Or();
  while (conditional && in_.ok() && in_.TakeName("if")) {
    ExpressionPtr choice = New(Kind::kConditional);
    choice->parts.push_back(std::move(value));
    choice->parts.push_back(Or());
    choice->parts.push_back(in_.TakeName("else") ? Parse() : nullptr);
    value = std::move(choice);
  }
  --open_;
  return value;
}

ExpressionPtr ExpressionParser::ParseTuple(bool conditional) {
  ExpressionPtr first = Parse(conditional);
  if (!in_.IsOperator(",")) return first;
  ExpressionPtr tuple = New(Kind::kTuple);
  tuple->parts.push_back(std::move(first));
  while (in_.ok() && in_.TakeOperator(",")) {
    if (in_.Is(Token::Kind::kBlockEnd) || in_.Is(Token::Kind::kOutputEnd) || in_.IsOperator(")") ||
        in_.IsOperator("=")) {
      break;
    }
    tuple->parts.push_back(Parse(conditional));
  }
  return tuple;
}

ExpressionPtr ExpressionParser::Chain(std::initializer_list<const char*> operators, Level next) {
  ExpressionPtr left = (this->*next)();
  while (in_.ok()) {
    const auto* const op = std::find_if(operators.begin(), operators.end(), [&](const char* each) {
      return in_.IsName(each) || in_.IsOperator(each);
    });
    if (op == operators.end()) break;
    in_.Advance();
    left = Binary(std::move(left), *op, (this->*next)());
  }
  return left;
}

ExpressionPtr ExpressionParser::Or() { return Chain({"or"}, &ExpressionParser::And); }

ExpressionPtr ExpressionParser::And() { return Chain({"and"}, &ExpressionParser::Not); }

ExpressionPtr ExpressionParser::Not() {
  if (!in_.IsName("not")) return Comparison();
  const Nested nested(&in_);
  if (!nested.entered()) return nullptr;
  ExpressionPtr expression = New(Kind::kNot);
  in_.Advance();
  expression->parts.push_back(Not());
  return expression;
}

ExpressionPtr ExpressionParser::Comparison() {
  ExpressionPtr left = Sum();
  ExpressionPtr comparison;
  while (in_.ok()) {
    std::string op;
    for (const char* name : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (in_.IsOperator(name)) op = name;
    }
    if (in_.IsName("in")) op = "in";
    if (in_.IsName("not") && in_.ahead().kind == Token::Kind::kName && in_.ahead().text == "in") {
      op = "not in";
      in_.Advance();
    }
    if (op.empty()) break;
    in_.Advance();
    if (comparison == nullptr) {
      comparison = New(Kind::kCompare);
      comparison->parts.push_back(std::move(left));
    }
    comparison->operators.push_back(op);
    comparison->parts.push_back(Sum());
  }
  return comparison == nullptr ? std::move(left) : std::move(comparison);
}

ExpressionPtr ExpressionParser::Sum() {
  return Chain({"+", "-"}, &ExpressionParser::Concatenation);
}

ExpressionPtr ExpressionParser::Concatenation() { return Chain({"~"}, &ExpressionParser::Product); }

ExpressionPtr ExpressionParser::Product() {
  return Chain({"*", "/", "//", "%"}, &ExpressionParser::Power);
}

ExpressionPtr ExpressionParser::Power() {
  ExpressionPtr left = Unary(true);
  if (in_.ok() && in_.IsOperator("**")) in_.Fail("the operator \"**\" is not implemented");
  return left;
}

ExpressionPtr ExpressionParser::Unary(bool with_filters) {
  const Nested nested(&in_);
  if (!nested.entered()) return nullptr;
  ExpressionPtr value;
  if (in_.IsOperator("-") || in_.IsOperator("+")) {
    value = New(in_.IsOperator("-") ? Kind::kNegative : Kind::kPositive);
    in_.Advance();
    value->parts.push_back(Unary(false));
  } else {
    value = Postfix(Primary());
  }
  while (with_filters && in_.ok()) {
    if (in_.TakeOperator("|")) {
      value = Postfix(Filter(std::move(value)));
    } else if (in_.TakeName("is")) {
      value = Test(std::move(value));
    } else {
      break;
    }
  }
  return value;
}

ExpressionPtr ExpressionParser::Primary() {
  if (in_.IsOperator("(")) return Bracketed();
  if (in_.IsOperator("[")) return Literal(Kind::kList, "]");
  if (in_.IsOperator("{")) return Literal(Kind::kDict, "}");
  return Constant();
}

ExpressionPtr ExpressionParser::Bracketed() {
  in_.Advance();
  if (in_.TakeOperator(")")) return New(Kind::kTuple);
  ExpressionPtr inner = ParseTuple();
  in_.Expect(")");
  return inner;
}

ExpressionPtr ExpressionParser::Literal(Kind kind, const char* end) {
  ExpressionPtr literal = New(kind);
  in_.Advance();
  while (in_.ok() && !in_.IsOperator(end)) {
    literal->parts.push_back(Parse());
    if (kind == Kind::kDict) {
      in_.Expect(":");
      literal->parts.push_back(Parse());
    }
    if (!in_.TakeOperator(",")) break;
  }
  in_.Expect(end);
  return literal;
}

ExpressionPtr ExpressionParser::Constant() {
  ExpressionPtr constant = New(Kind::kConstant);
  const Token& token = in_.current();
  int64_t whole = 0;
  double real = 0;
  switch (token.kind) {
    case Token::Kind::kName: {
      const std::string& name = token.text;
      if (name == "true" || name == "True") {
        constant->value = Value(true);
      } else if (name == "false" || name == "False") {
        constant->value = Value(false);
      } else if (name == "none" || name == "None") {
        constant->value = Value::None();
      } else {
        constant->kind = Kind::kName;
        constant->text = name;
      }
      break;
    }
    case Token::Kind::kString: {
      std::string text;
      while (in_.ahead().kind == Token::Kind::kString) {  // texts side by side are one
        text += in_.current().text;
        in_.Advance();
      }
      constant->value = Value(text + in_.current().text);
      break;
    }
    case Token::Kind::kInteger:
      if (!absl::SimpleAtoi(token.text, &whole)) in_.Fail("a whole number is beyond 64 bits");
      constant->value = Value(whole);
      break;
    case Token::Kind::kFloat:
      if (!absl::SimpleAtod(token.text, &real)) in_.Fail("a number is not one");
      constant->value = Value(real);
      break;
    default:
      in_.Fail(absl::StrCat("expected a value, not ", in_.Here()));
  }
  in_.Advance();
  return constant;
}

ExpressionPtr ExpressionParser::Postfix(ExpressionPtr subject) {
  while (in_.ok()) {
    if (in_.TakeOperator(".")) {
      const bool is_index = in_.Is(Token::Kind::kInteger);
      ExpressionPtr part = New(is_index ? Kind::kItem : Kind::kAttribute);
      part->parts.push_back(std::move(subject));
      if (is_index) {
        part->parts.push_back(Constant());
      } else {
        part->text = in_.ExpectName();
      }
      subject = std::move(part);
    } else if (in_.TakeOperator("[")) {
      subject = Subscript(std::move(subject));
    } else if (in_.TakeOperator("(")) {
      ExpressionPtr call = New(Kind::kCall);
      call->parts.push_back(std::move(subject));
      Arguments(call.get());
      subject = std::move(call);
    } else {
      break;
    }
  }
  return subject;
}

// Behind "[".
ExpressionPtr ExpressionParser::Subscript(ExpressionPtr subject) {
  ExpressionPtr part = New(Kind::kItem);
  part->parts.push_back(std::move(subject));
  const auto bound = [&] { return in_.IsOperator(":") || in_.IsOperator("]") ? nullptr : Parse(); };
  part->parts.push_back(bound());
  for (int i = 0; i < 2 && in_.ok() && in_.TakeOperator(":"); ++i) {
    part->kind = Kind::kSlice;
    part->parts.push_back(bound());
  }
  if (part->kind == Kind::kSlice) part->parts.resize(4);
  if (part->kind == Kind::kItem && part->parts[1] == nullptr) in_.Fail("an index is missing");
  in_.Expect("]");
  return part;
}

ExpressionPtr ExpressionParser::Filter(ExpressionPtr subject) {
  ExpressionPtr filter = New(Kind::kFilter);
  filter->text = in_.ExpectName();
  if (in_.ok() && !IsFilter(filter->text)) {
    in_.Fail(absl::StrCat("the filter \"", filter->text, "\" is not implemented"));
  }
  filter->parts.push_back(std::move(subject));
  if (in_.TakeOperator("(")) Arguments(filter.get());
  return filter;
}

ExpressionPtr ExpressionParser::ParseFilters(ExpressionPtr subject) {
  do {
    subject = Filter(std::move(subject));
  } while (in_.ok() && in_.TakeOperator("|"));
  return subject;
}

// Behind "is".
ExpressionPtr ExpressionParser::Test(ExpressionPtr subject) {
  const bool negated = in_.TakeName("not");
  ExpressionPtr test = New(Kind::kTest);
  test->text = in_.ExpectName();
  if (in_.ok() && !IsTest(test->text)) {
    in_.Fail(absl::StrCat("the test \"", test->text, "\" is not implemented"));
  }
  test->parts.push_back(std::move(subject));
  const bool named = in_.Is(Token::Kind::kName) && !in_.IsName("else") && !in_.IsName("or") &&
                     !in_.IsName("and") && !in_.IsName("if") && !in_.IsName("is") &&
                     !in_.IsName("not") && !in_.IsName("in");
  if (in_.TakeOperator("(")) {
    Arguments(test.get());
  } else if (named || in_.Is(Token::Kind::kString) || in_.Is(Token::Kind::kInteger) ||
             in_.Is(Token::Kind::kFloat) || in_.IsOperator("[") || in_.IsOperator("{")) {
    test->parts.push_back(Postfix(Primary()));
  }
  if (!negated) return test;
  ExpressionPtr no = New(Kind::kNot);
  no->parts.push_back(std::move(test));
  return no;
}

// Behind "(".
void ExpressionParser::Arguments(Expression* call) {
  while (in_.ok() && !in_.IsOperator(")")) {
    if (in_.IsOperator("*") || in_.IsOperator("**")) {
      return in_.Fail("arguments from a list or a dict are not implemented");
    }
    if (in_.Is(Token::Kind::kName) && in_.ahead().kind == Token::Kind::kOperator &&
        in_.ahead().text == "=") {
      std::string name = in_.ExpectName();
      in_.Advance();
      call->named.emplace_back(std::move(name), Parse());
    } else {
      if (!call->named.empty()) return in_.Fail("an argument without a name follows one with it");
      call->parts.push_back(Parse());
    }
    if (!in_.TakeOperator(",")) break;
  }
  in_.Expect(")");
}

}  // namespace atl::jinja
