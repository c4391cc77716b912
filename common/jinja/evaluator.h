// Runs a parsed template. Whatever the template does, the run ends: steps, memory and depth have
// limits.

#ifndef ATOLL_COMMON_JINJA_EVALUATOR_H_
#define ATOLL_COMMON_JINJA_EVALUATOR_H_

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/jinja/ast.h"
#include "common/jinja/jinja.h"

namespace atl::jinja {

// Names of a template, a loop's turn, a macro's call.
class Scope {
 public:
  explicit Scope(const Scope* parent = nullptr) : parent_(parent) {}

  const Value* Find(const std::string& name) const;  // here and outwards; null: nowhere
  void Set(const std::string& name, Value value);    // here
  std::vector<std::pair<std::string, Value>>& names() { return names_; }

 private:
  const Scope* const parent_;
  std::vector<std::pair<std::string, Value>> names_;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Arguments by the names of a function's parameters.
class Bound {
 public:
  std::vector<std::optional<Value>> values;

  bool Has(size_t i) const { return values[i].has_value(); }
  Value Get(size_t i, Value otherwise) const { return values[i].value_or(std::move(otherwise)); }
  bool IsTrue(size_t i, bool otherwise = false) const {
    return values[i].has_value() ? values[i]->IsTrue() : otherwise;
  }
};

// The first error stays; values that come after it mean nothing.
class Evaluator {
 public:
  explicit Evaluator(const RenderOptions& options) : options_(options) {}
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  absl::StatusOr<std::string> Run(const Body& body, const Variables& variables);

  // ---- for filters, tests, methods and functions ----

  bool ok() const { return status_.ok(); }
  Value Fail(const std::string& problem);
  // Counts work or memory of so many bytes; false beyond the limits.
  bool Charge(size_t bytes);
  // Values with their cost, which fail where they are too large.
  Value NewText(std::string text);
  Value NewList(std::vector<Value> items, bool tuple = false);
  Value NewDict(Dict dict);
  // str(value)
  std::string ToString(const Value& value);
  // Returns the items that a loop over the value has; fails for a value without items.
  std::vector<Value> Items(const Value& value);
  std::optional<Bound> Bind(const std::string& function, const Arguments& arguments,
                            const std::vector<const char*>& parameters);
  bool IsIn(const Value& item, const Value& container);
  bool IsLess(const Value& a, const Value& b);
  Value Attribute(const Value& subject, const std::string& name);
  // subject[index], which dots in attribute="a.b" mean as well.
  Value Item(const Value& subject, const Value& index);
  Value ItemByPath(const Value& subject, const Value& path);
  Value Filter(const std::string& name, const Value& subject, const Arguments& arguments);
  bool Test(const std::string& name, const Value& subject, const Arguments& arguments);
  Value Call(const Value& callee, const Arguments& arguments);
  const RenderOptions& options() const { return options_; }

 private:
  enum class Flow : uint8_t { kOn, kBreak, kContinue };

  bool Step(int line);
  Scope* NewScope(const Scope* parent);
  Value Evaluate(const Expression* expression, Scope* scope);
  Value EvaluateNow(const Expression& expression, Scope* scope);
  Arguments EvaluateArguments(const Expression& call, Scope* scope);
  Value Binary(const Expression& expression, Scope* scope);
  Value Arithmetic(const std::string& op, const Value& left, const Value& right);
  Value Product(const std::string& op, const Value& left, const Value& right);
  Value Repeated(const Value& sequence, int64_t times);
  Value Compare(const Expression& expression, Scope* scope);
  Value Slice(const Expression& expression, Scope* scope);
  Value EvaluateFilter(const Expression& filter, const Value* block, Scope* scope);
  Value CallMacro(const Function& macro, const Arguments& arguments);

  Flow Run(const Body& body, Scope* scope, std::string* out);
  Flow RunOne(const Statement& statement, Scope* scope, std::string* out);
  Flow RunFor(const Statement& statement, Scope* scope, std::string* out);
  std::vector<Value> LoopItems(const Statement& statement, Scope* scope);
  Value LoopVariable(const std::vector<Value>& items, size_t i);
  void Assign(const std::vector<std::string>& targets, Value value, Scope* scope);
  void Set(const Statement& statement, Scope* scope);
  Value Captured(const Body& body, const Expression* filters, Scope* scope);
  void Append(std::string_view text, std::string* out);

  const RenderOptions& options_;
  absl::Status status_;
  int line_ = 0;
  int depth_ = 0;
  int64_t steps_ = 0;
  int64_t bytes_ = 0;
  std::deque<Scope> scopes_;
};

}  // namespace atl::jinja

#endif  // ATOLL_COMMON_JINJA_EVALUATOR_H_
