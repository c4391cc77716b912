// Statements of templates.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/jinja/evaluator.h"

namespace atl::jinja {

using Kind = Statement::Kind;

void Evaluator::Append(std::string_view text, std::string* out) {
  if (Charge(text.size())) *out += text;
}

Evaluator::Flow Evaluator::Run(const Body& body, Scope* scope, std::string* out) {
  Flow flow = Flow::kOn;
  for (size_t i = 0; i < body.size() && ok() && flow == Flow::kOn; ++i) {
    if (!Step(body[i]->line)) break;
    flow = RunOne(*body[i], scope, out);
  }
  return flow;
}

Evaluator::Flow Evaluator::RunOne(const Statement& s, Scope* scope, std::string* out) {
  switch (s.kind) {
    case Kind::kText:
      Append(s.text, out);
      break;
    case Kind::kOutput:
      Append(ToString(Evaluate(s.expressions[0].get(), scope)), out);
      break;
    case Kind::kIf:
      for (size_t i = 0; i < s.bodies.size() && ok(); ++i) {
        const bool holds =
            i >= s.expressions.size() || Evaluate(s.expressions[i].get(), scope).IsTrue();
        if (ok() && holds) return Run(s.bodies[i], scope, out);
      }
      break;
    case Kind::kFor:
      return RunFor(s, scope, out);
    case Kind::kSet:
    case Kind::kSetBlock:
      Set(s, scope);
      break;
    case Kind::kFilterBlock:
      Append(ToString(Captured(s.bodies[0], s.expressions[0].get(), NewScope(scope))), out);
      break;
    case Kind::kWith: {
      Scope* const inner = NewScope(scope);
      for (size_t i = 0; i < s.targets.size() && ok(); ++i) {
        inner->Set(s.targets[i], Evaluate(s.expressions[i].get(), scope));
      }
      return Run(s.bodies[0], inner, out);
    }
    case Kind::kMacro:
      scope->Set(s.text, Value(Function{s.text, nullptr, &s, scope}));
      break;
    case Kind::kBody:
      return Run(s.bodies[0], scope, out);
    case Kind::kBreak:
      return Flow::kBreak;
    case Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kOn;
}

Value Evaluator::Captured(const Body& body, const Expression* filters, Scope* scope) {
  std::string text;
  Run(body, scope, &text);
  if (!ok()) return {};
  const Value value = NewText(std::move(text));
  return filters == nullptr ? value : EvaluateFilter(*filters, &value, scope);
}

void Evaluator::Set(const Statement& s, Scope* scope) {
  const Expression* const expression = s.expressions[0].get();
  Value value = s.kind == Kind::kSet ? Evaluate(expression, scope)
                                     : Captured(s.bodies[0], expression, NewScope(scope));
  if (!ok()) return;
  if (s.text.empty()) return Assign(s.targets, std::move(value), scope);
  const Value* const space = scope->Find(s.text);
  if (space == nullptr || !space->is(Value::Kind::kNamespace)) {
    Fail(absl::StrCat("\"", s.text, "\" is no namespace: its attributes cannot be set"));
    return;
  }
  if (s.text == "loop") {
    Fail("attributes of \"loop\" cannot be set");
    return;
  }
  if (value.nesting() >= kMaxNesting) {
    Fail("a namespace, or a value that is nested too deeply, cannot lie in a namespace");
    return;
  }
  Dict& attributes = space->namespace_attributes();
  Charge((attributes.entries.size() + 1) * 8);
  attributes.Set(Value(s.targets[0]), std::move(value));
}

void Evaluator::Assign(const std::vector<std::string>& targets, Value value, Scope* scope) {
  if (targets.size() == 1) return scope->Set(targets[0], std::move(value));
  const std::vector<Value> items = Items(value);
  if (!ok()) return;
  if (items.size() != targets.size()) {
    Fail(absl::StrCat(items.size(), " values for ", targets.size(), " names"));
    return;
  }
  for (size_t i = 0; i < items.size(); ++i) scope->Set(targets[i], items[i]);
}

// Returns the items that the loop's condition leaves, where it has one.
std::vector<Value> Evaluator::LoopItems(const Statement& s, Scope* scope) {
  const Value sequence = Evaluate(s.expressions[0].get(), scope);
  std::vector<Value> items = ok() ? Items(sequence) : std::vector<Value>();
  if (s.expressions[1] == nullptr) return items;
  std::vector<Value> left;
  for (Value& item : items) {
    if (!ok()) break;
    Scope* const inner = NewScope(scope);
    Assign(s.targets, item, inner);
    if (Evaluate(s.expressions[1].get(), inner).IsTrue()) left.push_back(std::move(item));
  }
  return left;
}

Value Evaluator::LoopVariable(const std::vector<Value>& items, size_t i) {
  const auto number = [](size_t value) { return Value(static_cast<int64_t>(value)); };
  const size_t count = items.size();
  Dict loop;
  const auto add = [&](const char* name, Value value) {
    loop.entries.emplace_back(Value(name), std::move(value));
  };
  add("index", number(i + 1));
  add("index0", number(i));
  add("revindex", number(count - i));
  add("revindex0", number(count - i - 1));
  add("first", Value(i == 0));
  add("last", Value(i + 1 == count));
  add("length", number(count));
  add("previtem", i > 0 ? items[i - 1] : Value::Undefined("there is no previous item, it"));
  add("nextitem", i + 1 < count ? items[i + 1] : Value::Undefined("there is no next item, it"));
  Charge(loop.entries.size() * sizeof(Value));
  Value value = Value::MakeNamespace(std::move(loop));
  return value;
}

Evaluator::Flow Evaluator::RunFor(const Statement& s, Scope* scope, std::string* out) {
  const std::vector<Value> items = LoopItems(s, scope);
  if (items.empty() && ok() && s.bodies.size() > 1) return Run(s.bodies[1], scope, out);
  for (size_t i = 0; i < items.size() && Step(s.line); ++i) {
    Scope* const inner = NewScope(scope);
    Assign(s.targets, items[i], inner);
    inner->Set("loop", LoopVariable(items, i));
    if (Run(s.bodies[0], inner, out) == Flow::kBreak) break;
  }
  return Flow::kOn;
}

}  // namespace atl::jinja
