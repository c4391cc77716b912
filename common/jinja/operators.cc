// Operators of expressions, as Python has them.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/jinja/evaluator.h"
#include "common/jinja/text.h"

namespace atl::jinja {
namespace {

std::string BothTypes(const Value& a, const Value& b) {
  return absl::StrCat(TypeName(a), " and ", TypeName(b));
}

}  // namespace

Value Evaluator::Binary(const Expression& e, Scope* scope) {
  const Value left = Evaluate(e.parts[0].get(), scope);
  if (!ok()) return {};
  if (e.text == "and") return left.IsTrue() ? Evaluate(e.parts[1].get(), scope) : left;
  if (e.text == "or") return left.IsTrue() ? left : Evaluate(e.parts[1].get(), scope);
  const Value right = Evaluate(e.parts[1].get(), scope);
  if (!ok()) return {};
  if (e.text == "~") return NewText(ToString(left) + ToString(right));
  return Arithmetic(e.text, left, right);
}

Value Evaluator::Arithmetic(const std::string& op, const Value& left, const Value& right) {
  if (left.is_undefined() || right.is_undefined()) {
    const Value& one = left.is_undefined() ? left : right;
    return Fail(absl::StrCat(one.what().empty() ? "a value" : one.what(), " is undefined, and has ",
                             "no operator \"", op, "\""));
  }
  if (op == "+" && left.is_string() && right.is_string()) {
    if (!Charge(left.text().size() + right.text().size())) return {};
    return NewText(left.text() + right.text());
  }
  if (op == "+" && left.is_list() && right.is_list() && left.is_tuple() == right.is_tuple()) {
    if (!Charge((left.items().size() + right.items().size()) * sizeof(Value))) return {};
    std::vector<Value> items = left.items();
    items.insert(items.end(), right.items().begin(), right.items().end());
    return NewList(std::move(items), left.is_tuple());
  }
  if (op == "%" && left.is_string()) {
    return Fail("the operator \"%\" of a text is not implemented; join texts by \"~\"");
  }
  if (op == "*" && right.is_whole() && (left.is_string() || left.is_list())) {
    return Repeated(left, right.integer());
  }
  if (op == "*" && left.is_whole() && (right.is_string() || right.is_list())) {
    return Repeated(right, left.integer());
  }
  if (!left.is_number() || !right.is_number()) {
    return Fail(absl::StrCat(BothTypes(left, right), " have no operator \"", op, "\""));
  }
  if (op != "+" && op != "-") return Product(op, left, right);
  const bool adds = op == "+";
  if (!left.is_whole() || !right.is_whole()) {
    return Value(adds ? left.real() + right.real() : left.real() - right.real());
  }
  int64_t result = 0;
  const bool beyond = adds ? __builtin_add_overflow(left.integer(), right.integer(), &result)
                           : __builtin_sub_overflow(left.integer(), right.integer(), &result);
  return beyond ? Fail("a whole number is beyond 64 bits") : Value(result);
}

// Applies * / // % to numbers.
Value Evaluator::Product(const std::string& op, const Value& left, const Value& right) {
  if (op != "*" && right.real() == 0) return Fail("a division by zero");
  if (op == "/") return Value(left.real() / right.real());
  if (!left.is_whole() || !right.is_whole()) {
    if (op == "*") return Value(left.real() * right.real());
    return Fail(absl::StrCat("the operator \"", op, "\" of floats is not implemented"));
  }
  const int64_t a = left.integer(), b = right.integer();
  int64_t result = 0;
  if (op == "*") {
    if (__builtin_mul_overflow(a, b, &result)) return Fail("a whole number is beyond 64 bits");
    return Value(result);
  }
  if (b == -1) return op == "%" ? Value(int64_t{0}) : Arithmetic("-", Value(int64_t{0}), left);
  const bool below = a % b != 0 && (a < 0) != (b < 0);  // Python rounds down
  return op == "//" ? Value(a / b - (below ? 1 : 0)) : Value(a % b + (below ? b : 0));
}

Value Evaluator::Repeated(const Value& sequence, int64_t times) {
  const bool text = sequence.is_string();
  const size_t size = text ? sequence.text().size() : sequence.items().size() * sizeof(Value);
  times = std::max<int64_t>(times, 0);
  if (size == 0) times = 0;
  if (times > options_.bytes_max || !Charge(static_cast<size_t>(times))) {
    Charge(static_cast<size_t>(options_.bytes_max) + 1);
    return {};
  }
  if (static_cast<double>(size) * static_cast<double>(times) >
      static_cast<double>(options_.bytes_max)) {
    Charge(static_cast<size_t>(options_.bytes_max) + 1);
    return {};
  }
  std::string repeated;
  std::vector<Value> items;
  for (int64_t i = 0; i < times; ++i) {
    if (text) {
      repeated += sequence.text();
    } else {
      items.insert(items.end(), sequence.items().begin(), sequence.items().end());
    }
  }
  return text ? NewText(std::move(repeated)) : NewList(std::move(items), sequence.is_tuple());
}

Value Evaluator::Compare(const Expression& e, Scope* scope) {
  Value left = Evaluate(e.parts[0].get(), scope);
  for (size_t i = 0; i < e.operators.size() && ok(); ++i) {
    const Value right = Evaluate(e.parts[i + 1].get(), scope);
    if (!ok()) return {};
    const std::string& op = e.operators[i];
    if ((op[0] == '<' || op[0] == '>') && (left.is_undefined() || right.is_undefined())) {
      return Arithmetic(op, left, right);  // which refuses it
    }
    Charge(left.is_string() ? left.text().size() : 8);
    const bool holds = op == "=="       ? left == right
                       : op == "!="     ? !(left == right)
                       : op == "in"     ? IsIn(left, right)
                       : op == "not in" ? !IsIn(left, right)
                       : op == "<"      ? IsLess(left, right)
                       : op == ">"      ? IsLess(right, left)
                       : op == "<="     ? left == right || IsLess(left, right)
                                        : left == right || IsLess(right, left);
    if (!holds) return Value(false);
    left = right;
  }
  return Value(true);
}

Value Evaluator::Slice(const Expression& e, Scope* scope) {
  const Value subject = Evaluate(e.parts[0].get(), scope);
  std::optional<int64_t> bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (e.parts[i + 1] == nullptr || !ok()) continue;
    const Value bound = Evaluate(e.parts[i + 1].get(), scope);
    if (bound.is_none()) continue;
    if (!bound.is_whole()) return Fail("a slice's bound is no whole number");
    bounds[i] = bound.integer();
  }
  if (!ok()) return {};
  if (!subject.is_string() && !subject.is_list()) {
    return Fail(absl::StrCat("a value of type ", TypeName(subject), " has no slices"));
  }
  const std::vector<Value> items = Items(subject);
  const auto count = static_cast<int64_t>(items.size());
  const int64_t step = bounds[2].value_or(1);
  if (step == 0) return Fail("a slice's step is 0");
  const auto clamped = [&](std::optional<int64_t> bound, int64_t absent) {
    if (!bound.has_value()) return absent;
    int64_t i = *bound;
    if (i < 0) i = i < -count ? -1 : i + count;
    return step > 0 ? std::clamp<int64_t>(i, 0, count) : std::clamp<int64_t>(i, -1, count - 1);
  };
  const int64_t begin = clamped(bounds[0], step > 0 ? 0 : count - 1);
  const int64_t end = clamped(bounds[1], step > 0 ? count : -1);
  std::vector<Value> taken;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    taken.push_back(items[static_cast<size_t>(i)]);
    if (step > count || step < -count) break;
    i += step;
  }
  if (subject.is_list()) return NewList(std::move(taken), subject.is_tuple());
  std::string text;
  for (const Value& character : taken) text += character.text();
  return NewText(std::move(text));
}

}  // namespace atl::jinja
