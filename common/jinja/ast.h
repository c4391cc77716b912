// A parsed template.

#ifndef ATOLL_COMMON_JINJA_AST_H_
#define ATOLL_COMMON_JINJA_AST_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/jinja/value.h"

namespace atl::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind : uint8_t {
    kConstant,     // value
    kName,         // text
    kList,         // parts
    kTuple,        // parts
    kDict,         // parts: name, value, name, value, ...
    kAttribute,    // parts[0].text
    kItem,         // parts[0][parts[1]]
    kSlice,        // parts[0][parts[1]:parts[2]:parts[3]]; these may be null
    kCall,         // parts[0](parts[1..], named)
    kFilter,       // parts[0] | text(parts[1..], named); parts[0] null: of a block
    kTest,         // parts[0] is text(parts[1..])
    kNot,          // parts[0]
    kNegative,     // -parts[0]
    kPositive,     // +parts[0]
    kBinary,       // parts[0] text parts[1], and "and", "or" and "~"
    kCompare,      // parts[0] operators[0] parts[1] operators[1] parts[2] ...
    kConditional,  // parts[0] if parts[1] else parts[2]; the last may be null
  };

  Kind kind = Kind::kConstant;
  int line = 0;
  std::string text;
  Value value;
  std::vector<ExpressionPtr> parts;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  std::vector<std::string> operators;
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

struct Statement {
  enum class Kind : uint8_t {
    kText,         // text
    kOutput,       // expressions[0]
    kIf,           // expressions[i] guards bodies[i]; one body more is the else
    kFor,          // targets in expressions[0], [1] or null filters; bodies: loop, else
    kSet,          // targets = expressions[0], or text.targets[0], an attribute of a namespace
    kSetBlock,     // the same with bodies[0], filtered by expressions[0] or null
    kFilterBlock,  // bodies[0], filtered by expressions[0]
    kWith,         // targets[i] = expressions[i] in bodies[0]
    kMacro,        // text(targets[i] = expressions[i] or null): bodies[0]
    kBody,         // bodies[0], as it stands
    kBreak,
    kContinue,
  };

  Kind kind = Kind::kText;
  int line = 0;
  std::string text;
  std::vector<std::string> targets;
  std::vector<ExpressionPtr> expressions;
  std::vector<Body> bodies;
};

}  // namespace atl::jinja

#endif  // ATOLL_COMMON_JINJA_AST_H_
