#include "common/jinja/tests.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/jinja/evaluator.h"
#include "common/jinja/text.h"

namespace atl::jinja {
namespace {

using Kind = Value::Kind;

// Returns whether a text has at least one letter with a case, and all such letters are `upper`.
bool HasCase(Evaluator& run, const Value& value, bool upper) {
  const std::string text = run.ToString(value);
  const auto as_upper = ToUpper(text), as_lower = ToLower(text);
  if (!as_upper.has_value() || !as_lower.has_value()) {
    run.Fail("the case of a letter is not known here");
    return false;
  }
  return *as_upper != *as_lower && text == (upper ? *as_upper : *as_lower);
}

bool IsOdd(Evaluator& run, const Value& value) {
  if (!value.is_whole()) run.Fail("\"odd\" and \"even\" are tests of whole numbers");
  return value.is_whole() && value.integer() % 2 != 0;
}

bool IsSameAs(Evaluator& run, const Value& a, const Value& b) {
  if (a.kind() == b.kind() && !a.is_none() && !a.is(Kind::kBool) && a == b) {
    run.Fail("the test \"sameas\" is implemented for none, true and false alone");
  }
  return a.IsSame(b);
}

bool IsDivisibleBy(Evaluator& run, const Value& a, const Value& b) {
  if (!a.is_whole() || !b.is_whole() || b.integer() == 0) {
    run.Fail("\"divisibleby\" is a test of whole numbers, and not by 0");
    return false;
  }
  return b.integer() == -1 || a.integer() % b.integer() == 0;
}

using R = Evaluator&;
using V = const Value&;

struct TestRow {
  const char* names;
  size_t arguments;  // besides the value: none or one
  bool (*holds)(Evaluator& run, const Value& value, const Value& argument);
};
constexpr TestRow kTests[] = {
    {"defined", 0, [](R, V v, V) { return !v.is_undefined(); }},
    {"undefined", 0, [](R, V v, V) { return v.is_undefined(); }},
    {"none", 0, [](R, V v, V) { return v.is_none(); }},
    {"boolean", 0, [](R, V v, V) { return v.is(Kind::kBool); }},
    {"true", 0, [](R, V v, V) { return v.is(Kind::kBool) && v.IsTrue(); }},
    {"false", 0, [](R, V v, V) { return v.is(Kind::kBool) && !v.IsTrue(); }},
    {"integer", 0, [](R, V v, V) { return v.is(Kind::kInteger); }},
    {"float", 0, [](R, V v, V) { return v.is(Kind::kFloat); }},
    {"number", 0, [](R, V v, V) { return v.is_number(); }},
    {"string", 0, [](R, V v, V) { return v.is_string(); }},
    {"mapping", 0, [](R, V v, V) { return v.is_dict(); }},
    {"iterable sequence", 0,
     [](R, V v, V) { return v.is_string() || v.is_list() || v.is_dict() || v.is_undefined(); }},
    {"callable", 0, [](R, V v, V) { return v.is(Kind::kFunction); }},
    {"odd", 0, [](R run, V v, V) { return IsOdd(run, v); }},
    {"even", 0, [](R run, V v, V) { return !IsOdd(run, v); }},
    {"lower", 0, [](R run, V v, V) { return HasCase(run, v, false); }},
    {"upper", 0, [](R run, V v, V) { return HasCase(run, v, true); }},
    {"eq equalto ==", 1, [](R, V a, V b) { return a == b; }},
    {"ne !=", 1, [](R, V a, V b) { return !(a == b); }},
    {"lt lessthan <", 1, [](R run, V a, V b) { return run.IsLess(a, b); }},
    {"gt greaterthan >", 1, [](R run, V a, V b) { return run.IsLess(b, a); }},
    {"le <=", 1, [](R run, V a, V b) { return a == b || run.IsLess(a, b); }},
    {"ge >=", 1, [](R run, V a, V b) { return a == b || run.IsLess(b, a); }},
    {"in", 1, [](R run, V a, V b) { return run.IsIn(a, b); }},
    {"sameas", 1, IsSameAs},
    {"divisibleby", 1, IsDivisibleBy}};

const TestRow* FindTest(const std::string& name) {
  for (const TestRow& row : kTests) {
    for (const absl::string_view own : absl::StrSplit(row.names, ' ')) {
      if (name == own) return &row;
    }
  }
  return nullptr;
}

}  // namespace

bool IsTest(const std::string& name) { return FindTest(name) != nullptr; }

bool Evaluator::Test(const std::string& name, const Value& subject, const Arguments& arguments) {
  const TestRow* const row = FindTest(name);
  if (row == nullptr) {
    Fail(absl::StrCat("the test \"", name, "\" is not implemented"));
    return false;
  }
  if (arguments.positional.size() != row->arguments || !arguments.named.empty()) {
    Fail(absl::StrCat("the test \"", name, "\" takes ", row->arguments == 0 ? "no" : "one",
                      " argument"));
    return false;
  }
  return row->holds(*this, subject, row->arguments == 0 ? Value() : arguments.positional[0]);
}

}  // namespace atl::jinja
