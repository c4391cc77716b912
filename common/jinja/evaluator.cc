#include "common/jinja/evaluator.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/jinja/functions.h"
#include "common/jinja/text.h"

namespace atl::jinja {
namespace {

constexpr int kMaxDepth = 600;  // of expressions, blocks and macros inside of each other

using ExpressionKind = Expression::Kind;

std::string Name(const Value& value) { return absl::StrCat("a value of type ", TypeName(value)); }

bool IsLoop(const Value& space) {
  return space.namespace_attributes().Find(Value("revindex0")) != nullptr;
}

}  // namespace

const Value* Scope::Find(const std::string& name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent_) {
    for (const auto& [here, value] : scope->names_) {
      if (here == name) return &value;
    }
  }
  return nullptr;
}

void Scope::Set(const std::string& name, Value value) {
  for (auto& [here, old] : names_) {
    if (here == name) {
      old = std::move(value);
      return;
    }
  }
  names_.emplace_back(name, std::move(value));
}

Value Evaluator::Fail(const std::string& problem) {
  if (ok()) status_ = absl::InvalidArgumentError(absl::StrCat("line ", line_, ": ", problem));
  return {};
}

bool Evaluator::Charge(size_t bytes) {
  bytes_ += static_cast<int64_t>(bytes);
  steps_ += static_cast<int64_t>(bytes / 64);
  if (ok() && (bytes_ > options_.bytes_max || steps_ > options_.steps_max)) {
    status_ = absl::ResourceExhaustedError(
        absl::StrCat("line ", line_, ": the template makes more than its limit of ",
                     bytes_ > options_.bytes_max ? absl::StrCat(options_.bytes_max, " bytes")
                                                 : absl::StrCat(options_.steps_max, " steps")));
  }
  return ok();
}

bool Evaluator::Step(int line) {
  if (line > 0) line_ = line;
  ++steps_;
  return Charge(0);
}

Scope* Evaluator::NewScope(const Scope* parent) {
  Charge(sizeof(Scope));
  return &scopes_.emplace_back(parent);
}

Value Evaluator::NewText(std::string text) {
  if (!Charge(text.size() + sizeof(std::string))) return {};
  return Value(std::move(text));
}

Value Evaluator::NewList(std::vector<Value> items, bool tuple) {
  if (!Charge((items.size() + 1) * sizeof(Value))) return {};
  Value list = Value::MakeList(std::move(items), tuple);
  return list.nesting() > kMaxNesting ? Fail("a list is nested too deeply") : list;
}

Value Evaluator::NewDict(Dict dict) {
  if (!Charge((dict.entries.size() + 1) * 2 * sizeof(Value))) return {};
  Value value(std::move(dict));
  return value.nesting() > kMaxNesting ? Fail("a dict is nested too deeply") : value;
}

std::string Evaluator::ToString(const Value& value) {
  std::optional<std::string> text = ToText(value);
  if (!text.has_value()) {
    Fail(absl::StrCat("printing ", Name(value), " as Python does is not implemented"));
    return "";
  }
  Charge(text->size());
  return *std::move(text);
}

std::vector<Value> Evaluator::Items(const Value& value) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Value::Kind::kUndefined:
      break;
    case Value::Kind::kString: {
      const std::vector<size_t> starts = CharacterStarts(value.text());
      if (!Charge(starts.size() * 2 * sizeof(Value))) break;
      for (size_t i = 0; i + 1 < starts.size(); ++i) {
        items.emplace_back(value.text().substr(starts[i], starts[i + 1] - starts[i]));
      }
      break;
    }
    case Value::Kind::kList:
      if (Charge(value.items().size() * sizeof(Value))) items = value.items();
      break;
    case Value::Kind::kDict:
      if (!Charge(value.dict().entries.size() * sizeof(Value))) break;
      for (const auto& [name, entry] : value.dict().entries) items.push_back(name);
      break;
    default:
      Fail(absl::StrCat(Name(value), " has no items"));
  }
  return items;
}

std::optional<Bound> Evaluator::Bind(const std::string& function, const Arguments& arguments,
                                     const std::vector<const char*>& parameters) {
  Bound bound;
  bound.values.resize(parameters.size());
  if (arguments.positional.size() > parameters.size()) {
    Fail(absl::StrCat("\"", function, "\" takes at most ", parameters.size(), " arguments"));
    return std::nullopt;
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    bound.values[i] = arguments.positional[i];
  }
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(parameters.begin(), parameters.end(), name);
    if (found == parameters.end() || bound.Has(static_cast<size_t>(found - parameters.begin()))) {
      Fail(absl::StrCat("\"", function, "\" takes no argument \"", name,
                        "\" here, or it is not implemented"));
      return std::nullopt;
    }
    bound.values[static_cast<size_t>(found - parameters.begin())] = value;
  }
  return bound;
}

bool Evaluator::IsIn(const Value& item, const Value& container) {
  switch (container.kind()) {
    case Value::Kind::kString:
      if (!item.is_string()) {
        Fail(absl::StrCat(Name(item), " cannot be in a text"));
        return false;
      }
      Charge(container.text().size());
      return container.text().find(item.text()) != std::string::npos;
    case Value::Kind::kDict:
      Charge(container.dict().entries.size() * 8);
      return container.dict().Find(item) != nullptr;
    case Value::Kind::kUndefined:
      return false;
    case Value::Kind::kList:
      Charge(container.items().size() * 8);
      return std::find(container.items().begin(), container.items().end(), item) !=
             container.items().end();
    default:
      Fail(absl::StrCat("nothing can be in ", Name(container)));
      return false;
  }
}

bool Evaluator::IsLess(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return a.is_whole() && b.is_whole() ? a.integer() < b.integer() : a.real() < b.real();
  }
  if (a.is_string() && b.is_string()) return a.text() < b.text();
  if (a.is_list() && b.is_list() && a.is_tuple() == b.is_tuple()) {
    for (size_t i = 0; i < a.items().size() && i < b.items().size() && Step(0); ++i) {
      if (!(a.items()[i] == b.items()[i])) return IsLess(a.items()[i], b.items()[i]);
    }
    return a.items().size() < b.items().size();
  }
  Fail(absl::StrCat(Name(a), " and ", Name(b), " have no order"));
  return false;
}

Value Evaluator::Attribute(const Value& subject, const std::string& name) {
  if (subject.is_undefined()) {
    return Fail(absl::StrCat(subject.what().empty() ? "a value" : subject.what(),
                             " is undefined, and so is its \"", name, "\""));
  }
  if (subject.is(Value::Kind::kNamespace)) {
    const Value* const found = subject.namespace_attributes().Find(Value(name));
    if (found != nullptr) return *found;
    if (IsLoop(subject) && (name == "cycle" || name == "changed" || name.starts_with("depth"))) {
      return Fail(absl::StrCat("\"loop.", name, "\" is not implemented"));
    }
    return Value::Undefined(absl::StrCat("\"", name, "\""));
  }
  if (HasMethod(subject, name)) {
    return Value(Function{name, std::make_shared<const Value>(subject)});
  }
  if (IsUnknownMethod(subject, name)) {
    return Fail(
        absl::StrCat("the method \"", name, "\" of ", TypeName(subject), " is not implemented"));
  }
  if (subject.is_dict()) {
    const Value* const found = subject.dict().Find(Value(name));
    if (found != nullptr) return *found;
  }
  return Value::Undefined(absl::StrCat("\"", name, "\""));
}

Value Evaluator::Item(const Value& subject, const Value& index) {
  switch (subject.kind()) {
    case Value::Kind::kUndefined:
      return Fail(absl::StrCat(subject.what().empty() ? "a value" : subject.what(),
                               " is undefined, and so are its items"));
    case Value::Kind::kDict: {
      const Value* const found = subject.dict().Find(index);
      if (found != nullptr) return *found;
      break;
    }
    case Value::Kind::kList:
      if (index.is_whole()) {
        const auto count = static_cast<int64_t>(subject.items().size());
        const int64_t i = index.integer() < 0 ? index.integer() + count : index.integer();
        if (i >= 0 && i < count) return subject.items()[static_cast<size_t>(i)];
        return Value::Undefined("an item");
      }
      break;
    case Value::Kind::kString:
      if (index.is_whole()) {
        Charge(subject.text().size());
        const std::vector<size_t> starts = CharacterStarts(subject.text());
        const auto count = static_cast<int64_t>(starts.size()) - 1;
        const int64_t i = index.integer() < 0 ? index.integer() + count : index.integer();
        if (i < 0 || i >= count) return Value::Undefined("a character");
        const size_t at = starts[static_cast<size_t>(i)];
        return Value(subject.text().substr(at, starts[static_cast<size_t>(i) + 1] - at));
      }
      break;
    default:
      break;
  }
  if (index.is_string()) return Attribute(subject, index.text());
  return Value::Undefined("an item");
}

Value Evaluator::ItemByPath(const Value& subject, const Value& path) {
  if (!path.is_string()) return Item(subject, path);
  Value value = subject;
  size_t at = 0;
  while (ok() && at <= path.text().size()) {
    const size_t dot = std::min(path.text().find('.', at), path.text().size());
    const std::string part = path.text().substr(at, dot - at);
    const bool digits = !part.empty() && part.size() < 10 &&
                        part.find_first_not_of("0123456789") == std::string::npos;
    value = Item(value, digits ? Value(static_cast<int64_t>(std::stol(part))) : Value(part));
    at = dot + 1;
  }
  return value;
}

Value Evaluator::Evaluate(const Expression* expression, Scope* scope) {
  if (expression == nullptr || !Step(expression->line)) return {};
  if (++depth_ > kMaxDepth) {
    --depth_;
    return Fail("the template is nested too deeply, or a macro calls itself without an end");
  }
  Value value = EvaluateNow(*expression, scope);
  --depth_;
  return value;
}

Value Evaluator::EvaluateNow(const Expression& e, Scope* scope) {
  const auto part = [&](size_t i) { return Evaluate(e.parts[i].get(), scope); };
  const auto all = [&] {
    std::vector<Value> items;
    for (size_t i = 0; i < e.parts.size() && ok(); ++i) items.push_back(part(i));
    return items;
  };
  switch (e.kind) {
    case ExpressionKind::kConstant:
      return e.value;
    case ExpressionKind::kName: {
      if (const Value* const found = scope->Find(e.text); found != nullptr) return *found;
      if (IsFunction(e.text)) return Value(Function{e.text});
      return Value::Undefined(absl::StrCat("\"", e.text, "\""));
    }
    case ExpressionKind::kList:
      return NewList(all());
    case ExpressionKind::kTuple:
      return NewList(all(), /*tuple=*/true);
    case ExpressionKind::kDict: {
      Dict dict;
      for (size_t i = 0; i + 1 < e.parts.size() && Charge(dict.entries.size() * 8); i += 2) {
        Value name = part(i);
        dict.Set(std::move(name), part(i + 1));
      }
      return NewDict(std::move(dict));
    }
    case ExpressionKind::kAttribute:
      return Attribute(part(0), e.text);
    case ExpressionKind::kItem: {
      const Value subject = part(0);
      return Item(subject, part(1));
    }
    case ExpressionKind::kSlice:
      return Slice(e, scope);
    case ExpressionKind::kCall: {
      const Value callee = part(0);
      const Arguments arguments = EvaluateArguments(e, scope);
      return ok() ? Call(callee, arguments) : Value();
    }
    case ExpressionKind::kFilter:
      return EvaluateFilter(e, nullptr, scope);
    case ExpressionKind::kTest: {
      const Value subject = part(0);
      const Arguments arguments = EvaluateArguments(e, scope);
      return ok() ? Value(Test(e.text, subject, arguments)) : Value();
    }
    case ExpressionKind::kNot:
      return Value(!part(0).IsTrue());
    case ExpressionKind::kNegative:
    case ExpressionKind::kPositive: {
      const Value value = part(0);
      if (!value.is_number()) return Fail(absl::StrCat(Name(value), " has no sign"));
      const bool negative = e.kind == ExpressionKind::kNegative;
      if (!value.is_whole()) return Value(negative ? -value.real() : value.real());
      return Arithmetic(negative ? "-" : "+", Value(int64_t{0}), value);
    }
    case ExpressionKind::kBinary:
      return Binary(e, scope);
    case ExpressionKind::kCompare:
      return Compare(e, scope);
    case ExpressionKind::kConditional:
      if (part(1).IsTrue()) return part(0);
      return e.parts[2] == nullptr ? Value::Undefined("an \"if\" without \"else\"") : part(2);
  }
  return {};
}

Arguments Evaluator::EvaluateArguments(const Expression& call, Scope* scope) {
  Arguments arguments;
  for (size_t i = 1; i < call.parts.size() && ok(); ++i) {
    arguments.positional.push_back(Evaluate(call.parts[i].get(), scope));
  }
  for (const auto& [name, expression] : call.named) {
    if (!ok()) break;
    arguments.named.emplace_back(name, Evaluate(expression.get(), scope));
  }
  return arguments;
}

// `block`: the text of a block whose filter has no subject of its own.
Value Evaluator::EvaluateFilter(const Expression& filter, const Value* block, Scope* scope) {
  const Expression* const inner = filter.parts[0].get();
  if (++depth_ > kMaxDepth) {
    --depth_;
    return Fail("filters are nested too deeply");
  }
  const Value subject = inner == nullptr   ? *block
                        : block != nullptr ? EvaluateFilter(*inner, block, scope)
                                           : Evaluate(inner, scope);
  --depth_;
  const Arguments arguments = EvaluateArguments(filter, scope);
  if (!ok()) return {};
  line_ = filter.line;
  return Filter(filter.text, subject, arguments);
}

Value Evaluator::Call(const Value& callee, const Arguments& arguments) {
  if (!callee.is(Value::Kind::kFunction)) {
    return Fail(absl::StrCat(
        callee.is_undefined() && !callee.what().empty() ? callee.what() : Name(callee),
        callee.is_undefined() ? " is undefined, and cannot be called" : " cannot be called"));
  }
  const Function& function = callee.function();
  if (function.macro != nullptr) return CallMacro(function, arguments);
  if (function.self != nullptr) return CallMethod(*this, *function.self, function.name, arguments);
  return CallFunction(*this, function.name, arguments);
}

Value Evaluator::CallMacro(const Function& function, const Arguments& arguments) {
  const Statement& macro = *function.macro;
  std::vector<const char*> parameters;
  for (const std::string& name : macro.targets) parameters.push_back(name.c_str());
  const std::optional<Bound> bound = Bind(macro.text, arguments, parameters);
  if (!bound.has_value()) return {};
  Scope* const scope = NewScope(function.macro_scope);
  for (size_t i = 0; i < macro.targets.size() && ok(); ++i) {
    const Expression* const otherwise = macro.expressions[i].get();
    scope->Set(macro.targets[i], bound->Has(i)          ? *bound->values[i]
                                 : otherwise != nullptr ? Evaluate(otherwise, scope)
                                                        : Value::Undefined(macro.targets[i]));
  }
  return Captured(macro.bodies[0], nullptr, scope);
}

absl::StatusOr<std::string> Evaluator::Run(const Body& body, const Variables& variables) {
  Scope* const root = NewScope(nullptr);
  for (const auto& [name, value] : variables) root->Set(name, value);
  std::string out;
  Run(body, root, &out);
  if (!ok()) return status_;
  return out;
}

}  // namespace atl::jinja
