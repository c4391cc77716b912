#include "common/jinja/tests.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "common/jinja/evaluator.h"
#include "common/jinja/text.h"

namespace atl::jinja {
namespace {

using Kind = Value::Kind;

using Plain = bool (*)(const Value&);
using WithArgument = bool (*)(Evaluator&, const Value&, const Value&);

const std::map<std::string, Plain>& PlainTests() {
  static const auto* const kTests = new std::map<std::string, Plain>{
      {"defined", [](const Value& v) { return !v.is_undefined(); }},
      {"undefined", [](const Value& v) { return v.is_undefined(); }},
      {"none", [](const Value& v) { return v.is_none(); }},
      {"boolean", [](const Value& v) { return v.is(Kind::kBool); }},
      {"true", [](const Value& v) { return v.is(Kind::kBool) && v.IsTrue(); }},
      {"false", [](const Value& v) { return v.is(Kind::kBool) && !v.IsTrue(); }},
      {"integer", [](const Value& v) { return v.is(Kind::kInteger); }},
      {"float", [](const Value& v) { return v.is(Kind::kFloat); }},
      {"number", [](const Value& v) { return v.is_number(); }},
      {"string", [](const Value& v) { return v.is_string(); }},
      {"mapping", [](const Value& v) { return v.is_dict(); }},
      {"iterable",
       [](const Value& v) {
         return v.is_string() || v.is_list() || v.is_dict() || v.is_undefined();
       }},
      {"sequence",
       [](const Value& v) {
         return v.is_string() || v.is_list() || v.is_dict() || v.is_undefined();
       }},
      {"callable", [](const Value& v) { return v.is(Kind::kFunction); }}};
  return *kTests;
}

const std::map<std::string, WithArgument>& TestsWithArgument() {
  static const auto* const kTests = [] {
    const WithArgument eq = [](Evaluator&, const Value& a, const Value& b) { return a == b; };
    const WithArgument ne = [](Evaluator&, const Value& a, const Value& b) { return !(a == b); };
    const WithArgument lt = [](Evaluator& run, const Value& a, const Value& b) {
      return run.IsLess(a, b);
    };
    const WithArgument gt = [](Evaluator& run, const Value& a, const Value& b) {
      return run.IsLess(b, a);
    };
    const WithArgument le = [](Evaluator& run, const Value& a, const Value& b) {
      return a == b || run.IsLess(a, b);
    };
    const WithArgument ge = [](Evaluator& run, const Value& a, const Value& b) {
      return a == b || run.IsLess(b, a);
    };
    return new std::map<std::string, WithArgument>{
        {"eq", eq},
        {"equalto", eq},
        {"==", eq},
        {"ne", ne},
        {"!=", ne},
        {"lt", lt},
        {"lessthan", lt},
        {"<", lt},
        {"gt", gt},
        {"greaterthan", gt},
        {">", gt},
        {"le", le},
        {"<=", le},
        {"ge", ge},
        {">=", ge},
        {"in", [](Evaluator& run, const Value& a, const Value& b) { return run.IsIn(a, b); }},
        {"sameas",
         [](Evaluator& run, const Value& a, const Value& b) {
           if (a.kind() == b.kind() && !a.is_none() && !a.is(Kind::kBool) && a == b) {
             run.Fail("the test \"sameas\" is implemented for none, true and false alone");
           }
           return a.IsSame(b);
         }},
        {"divisibleby", [](Evaluator& run, const Value& a, const Value& b) {
           if (!a.is_whole() || !b.is_whole() || b.integer() == 0) {
             run.Fail("\"divisibleby\" is a test of whole numbers, and not by 0");
             return false;
           }
           return b.integer() == -1 || a.integer() % b.integer() == 0;
         }}};
  }();
  return *kTests;
}

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

}  // namespace

bool IsTest(const std::string& name) {
  return PlainTests().contains(name) || TestsWithArgument().contains(name) || name == "odd" ||
         name == "even" || name == "lower" || name == "upper";
}

bool Evaluator::Test(const std::string& name, const Value& subject, const Arguments& arguments) {
  const auto with = TestsWithArgument().find(name);
  const size_t count = with == TestsWithArgument().end() ? 0 : 1;
  if (arguments.positional.size() != count || !arguments.named.empty()) {
    Fail(absl::StrCat("the test \"", name, "\" takes ", count == 0 ? "no" : "one", " argument"));
    return false;
  }
  if (count == 1) return with->second(*this, subject, arguments.positional[0]);
  if (const auto plain = PlainTests().find(name); plain != PlainTests().end()) {
    return plain->second(subject);
  }
  if (name == "lower" || name == "upper") return HasCase(*this, subject, name == "upper");
  if (name != "odd" && name != "even") {
    Fail(absl::StrCat("the test \"", name, "\" is not implemented"));
    return false;
  }
  if (!subject.is_whole()) {
    Fail(absl::StrCat("the test \"", name, "\" is one of whole numbers"));
    return false;
  }
  return (subject.integer() % 2 != 0) == (name == "odd");
}

}  // namespace atl::jinja
