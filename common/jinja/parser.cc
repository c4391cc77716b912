#include "common/jinja/parser.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/jinja/parse_expression.h"
#include "common/status.h"

namespace atl::jinja {
namespace {

using Kind = Statement::Kind;

class Parser {
 public:
  explicit Parser(const std::vector<Token>& tokens) : in_(tokens), expressions_(&in_) {}

  absl::StatusOr<Body> Run() {
    Body body = Until({});
    if (in_.ok() && !in_.Is(Token::Kind::kEnd)) {
      in_.Fail(absl::StrCat("\"", in_.current().text, "\" ends nothing"));
    }
    ATOLL_RETURN_IF_ERROR(in_.status());
    return body;
  }

 private:
  std::unique_ptr<Statement> New(Kind kind) {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = in_.current().line;
    return statement;
  }

  // Statements up to a block that begins with one of `ends`, whose word is what is read next, or to
  // the template's end.
  Body Until(std::vector<const char*> ends) {
    Body body;
    const bool entered = in_.Enter();
    while (entered && in_.ok() && !in_.Is(Token::Kind::kEnd)) {
      if (in_.Is(Token::Kind::kText)) {
        body.push_back(New(Kind::kText));
        body.back()->text = in_.current().text;
        in_.Advance();
      } else if (in_.Is(Token::Kind::kOutputBegin)) {
        body.push_back(New(Kind::kOutput));
        in_.Advance();
        body.back()->expressions.push_back(expressions_.ParseTuple());
        End(Token::Kind::kOutputEnd);
      } else {
        in_.Advance();  // {%
        const bool ended =
            std::any_of(ends.begin(), ends.end(), [&](const char* end) { return in_.IsName(end); });
        if (ended) break;
        Block(&body);
      }
    }
    if (in_.ok() && in_.Is(Token::Kind::kEnd) && !ends.empty()) {
      in_.Fail(absl::StrCat("there is no {% ", ends.back(), " %}"));
    }
    in_.Leave();
    return body;
  }

  void End(Token::Kind kind) {
    if (!in_.ok()) return;
    if (!in_.Is(kind)) return in_.Fail(absl::StrCat("expected the tag's end, not ", in_.Here()));
    in_.Advance();
  }
  // The body behind the tag that ends here, up to and with the block `end`; of an `outside` one see
  // Outside.
  void LastBody(const char* end, bool outside, Statement* statement) {
    End(Token::Kind::kBlockEnd);
    statement->bodies.push_back(outside ? Outside({end}) : Until({end}));
    EndBlock(end);
  }
  // The body of an else, if there is one, and the block `end`.
  void ElseBody(const char* end, Statement* statement) {
    if (in_.ok() && in_.TakeName("else")) return LastBody(end, false, statement);
    EndBlock(end);
  }
  // Ends the block whose last word is `word`.
  void EndBlock(const char* word) {
    if (in_.ok() && !in_.TakeName(word)) {
      return in_.Fail(absl::StrCat("expected \"", word, "\", not ", in_.Here()));
    }
    End(Token::Kind::kBlockEnd);
  }

  void Block(Body* body) {
    const std::string word = in_.ExpectName();
    if (!in_.ok()) return;
    if (word == "if") return body->push_back(If());
    if (word == "for") return body->push_back(For());
    if (word == "set") return body->push_back(Set());
    if (word == "macro") return body->push_back(Macro());
    if (word == "with") return body->push_back(With());
    if (word == "filter" || word == "generation") {  // the latter marks answers for other tools
      const bool filters = word == "filter";
      auto block = New(filters ? Kind::kFilterBlock : Kind::kBody);
      if (filters) block->expressions.push_back(expressions_.ParseFilters(nullptr));
      LastBody(filters ? "endfilter" : "endgeneration", filters, block.get());
      return body->push_back(std::move(block));
    }
    if (word == "break" || word == "continue") {
      if (loops_ == 0) return in_.Fail(absl::StrCat("\"", word, "\" is outside of a loop"));
      body->push_back(New(word == "break" ? Kind::kBreak : Kind::kContinue));
      return End(Token::Kind::kBlockEnd);
    }
    in_.Fail(absl::StrCat("the block \"", word, "\" is not implemented, or ends nothing"));
  }

  std::unique_ptr<Statement> If() {
    auto statement = New(Kind::kIf);
    for (bool more = true; more && in_.ok();) {
      statement->expressions.push_back(expressions_.ParseTuple());
      End(Token::Kind::kBlockEnd);
      statement->bodies.push_back(Until({"elif", "else", "endif"}));
      more = in_.TakeName("elif");
    }
    ElseBody("endif", statement.get());
    return statement;
  }

  // "a" or "a, b" or "(a, b)".
  std::vector<std::string> Targets() {
    std::vector<std::string> targets;
    const bool bracket = in_.TakeOperator("(");
    do {
      if (!targets.empty() && !in_.Is(Token::Kind::kName)) break;
      targets.push_back(in_.ExpectName());
    } while (in_.ok() && in_.TakeOperator(","));
    if (bracket) in_.Expect(")");
    return targets;
  }

  std::unique_ptr<Statement> For() {
    auto statement = New(Kind::kFor);
    statement->targets = Targets();
    if (in_.ok() && !in_.TakeName("in"))
      in_.Fail(absl::StrCat("expected \"in\", not ", in_.Here()));
    statement->expressions.push_back(expressions_.ParseTuple(/*conditional=*/false));
    statement->expressions.push_back(in_.TakeName("if") ? expressions_.Parse() : nullptr);
    if (in_.IsName("recursive")) in_.Fail("recursive loops are not implemented");
    End(Token::Kind::kBlockEnd);
    ++loops_;
    statement->bodies.push_back(Until({"else", "endfor"}));
    --loops_;
    ElseBody("endfor", statement.get());
    return statement;
  }

  std::unique_ptr<Statement> Set() {
    auto statement = New(Kind::kSet);
    statement->targets = Targets();
    if (statement->targets.size() == 1 && in_.TakeOperator(".")) {
      statement->text = statement->targets[0];
      statement->targets[0] = in_.ExpectName();
    }
    if (in_.TakeOperator("=")) {
      statement->expressions.push_back(expressions_.ParseTuple());
      End(Token::Kind::kBlockEnd);
      return statement;
    }
    statement->kind = Kind::kSetBlock;
    statement->expressions.push_back(in_.TakeOperator("|") ? expressions_.ParseFilters(nullptr)
                                                           : nullptr);
    LastBody("endset", true, statement.get());
    return statement;
  }

  // A body whose text is not the loop's around it: a break there would leave it half made.
  Body Outside(std::vector<const char*> ends) {
    const int loops = std::exchange(loops_, 0);
    Body body = Until(std::move(ends));
    loops_ = loops;
    return body;
  }

  std::unique_ptr<Statement> Macro() {
    auto statement = New(Kind::kMacro);
    statement->text = in_.ExpectName();
    in_.Expect("(");
    while (in_.ok() && !in_.IsOperator(")")) {
      statement->targets.push_back(in_.ExpectName());
      statement->expressions.push_back(in_.TakeOperator("=") ? expressions_.Parse() : nullptr);
      if (!in_.TakeOperator(",")) break;
    }
    in_.Expect(")");
    LastBody("endmacro", true, statement.get());
    return statement;
  }

  std::unique_ptr<Statement> With() {
    auto statement = New(Kind::kWith);
    while (in_.ok() && !in_.Is(Token::Kind::kBlockEnd)) {
      statement->targets.push_back(in_.ExpectName());
      in_.Expect("=");
      statement->expressions.push_back(expressions_.Parse());
      if (!in_.TakeOperator(",")) break;
    }
    LastBody("endwith", false, statement.get());
    return statement;
  }

  TokenReader in_;
  ExpressionParser expressions_;
  int loops_ = 0;  // around what is read
};

}  // namespace

absl::StatusOr<Body> Parse(const std::vector<Token>& tokens) { return Parser(tokens).Run(); }

}  // namespace atl::jinja
