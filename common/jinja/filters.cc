#include "common/jinja/filters.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/jinja/evaluator.h"
#include "common/jinja/functions.h"
#include "common/jinja/tests.h"
#include "common/jinja/text.h"

namespace atl::jinja {
namespace {

using Kind = Value::Kind;

struct FilterRow {
  std::vector<const char*> parameters;
  Value (*apply)(Evaluator& run, const Value& v, const Bound& a);
};

// ---- texts ----

Value Cased(Evaluator& run, std::optional<std::string> text) {
  return text.has_value() ? run.NewText(*std::move(text))
                          : run.Fail("the case of a letter in it is not known here");
}

Value Trim(Evaluator& run, const Value& v, const Bound& a) {
  const std::string text = run.ToString(v);
  const bool plain = !a.Has(0) || a.values[0]->is_none();
  if (plain) return run.NewText(std::string(Strip(text, true, true)));
  return run.NewText(std::string(Strip(text, true, true, run.ToString(*a.values[0]))));
}

// Every word with an upper-case letter first: words are between white space, hyphens and brackets.
Value Title(Evaluator& run, const Value& v, const Bound&) {
  const std::string text = run.ToString(v);
  std::string result;
  bool begins = true;
  for (size_t at = 0; at < text.size();) {
    const Character c = CharacterAt(text, at);
    const std::string_view letter = std::string_view(text).substr(at, c.bytes);
    const auto cased = begins ? ToUpper(letter) : ToLower(letter);
    if (!cased.has_value()) return Cased(run, cased);
    result += *cased;
    begins = IsSpace(c.code) || c.code == '-' || c.code == '(' || c.code == '{' || c.code == '[' ||
             c.code == '<';
    at += c.bytes;
  }
  return run.NewText(std::move(result));
}

Value Capitalize(Evaluator& run, const Value& v, const Bound&) {
  const std::string text = run.ToString(v);
  if (text.empty()) return Value("");
  const size_t first = CharacterAt(text, 0).bytes;
  const auto head = ToUpper(std::string_view(text).substr(0, first));
  const auto tail = ToLower(std::string_view(text).substr(first));
  if (!head.has_value() || !tail.has_value()) return Cased(run, std::nullopt);
  return run.NewText(*head + *tail);
}

Value Replace(Evaluator& run, const Value& v, const Bound& a) {
  if (!a.Has(0) || !a.Has(1)) return run.Fail("\"replace\" takes two texts");
  Arguments arguments;
  arguments.positional = {Value(run.ToString(*a.values[0])), Value(run.ToString(*a.values[1]))};
  if (a.Has(2) && !a.values[2]->is_none()) arguments.positional.push_back(*a.values[2]);
  return run.ok() ? CallMethod(run, Value(run.ToString(v)), "replace", arguments) : Value();
}

Value Indent(Evaluator& run, const Value& v, const Bound& a) {
  const Value width = a.Get(0, Value(int64_t{4}));
  std::string margin;
  if (width.is_string()) {
    margin = width.text();
  } else if (!width.is_whole() || width.integer() > 1000) {
    return run.Fail("\"indent\" takes a text, or a number of at most 1000");
  } else {
    margin.assign(static_cast<size_t>(std::max<int64_t>(0, width.integer())), ' ');
  }
  const bool first = a.IsTrue(1), blank = a.IsTrue(2);
  const std::string text = run.ToString(v);
  if (text.find_first_of("\r\v\f\x1c\x1d\x1e") != std::string::npos ||
      text.find("\xc2\x85") != std::string::npos ||
      text.find("\xe2\x80\xa8") != std::string::npos ||
      text.find("\xe2\x80\xa9") != std::string::npos) {
    return run.Fail("\"indent\" of a text with other line ends than line feeds is not implemented");
  }
  std::string result = first ? margin : "";
  for (size_t at = 0, line = 0; at <= text.size(); ++line) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const bool margins = line > 0 && (blank || end > at);
    if (line > 0) result += '\n';
    if (!run.Charge(margins ? margin.size() : 0)) return {};
    if (margins) result += margin;
    result += text.substr(at, end - at);
    at = end + 1;
  }
  return run.NewText(std::move(result));
}

Value Escape(Evaluator& run, const Value& v, const Bound&) {
  return run.NewText(absl::StrReplaceAll(
      run.ToString(v),
      {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}}));
}

Value Json(Evaluator& run, const Value& v, const Bound& a) {
  JsonStyle style;
  style.ascii = a.IsTrue(0);
  style.sort_keys = a.IsTrue(3);
  if (a.Has(1) && !a.values[1]->is_none()) {
    if (!a.values[1]->is(Kind::kInteger) || a.values[1]->integer() > 64) {
      return run.Fail("\"tojson\" takes an indent of at most 64");
    }
    style.indent = static_cast<int>(std::max<int64_t>(0, a.values[1]->integer()));
    style.item_separator = ",";
  }
  if (a.Has(2) && !a.values[2]->is_none()) {
    const Value& separators = *a.values[2];
    if (!separators.is_list() || separators.items().size() != 2 ||
        !separators.items()[0].is_string() || !separators.items()[1].is_string()) {
      return run.Fail("\"tojson\" takes a pair of texts as separators");
    }
    style.item_separator = separators.items()[0].text();
    style.key_separator = separators.items()[1].text();
  }
  auto text = ToJson(v, style);
  if (!text.has_value()) {
    return run.Fail(absl::StrCat("a value of type ", TypeName(v),
                                 ", or what is in it, has no JSON, or keys that are no texts"));
  }
  return run.NewText(*std::move(text));
}

// ---- numbers ----

Value ToInteger(Evaluator& run, const Value& v, const Bound& a) {
  const Value otherwise = a.Get(0, Value(int64_t{0}));
  if (a.Has(1)) return run.Fail("the base of \"int\" is not implemented");
  if (v.is_whole()) return Value(v.integer());
  double real = 0;
  if (v.is_string()) {
    const std::string text(Strip(v.text(), true, true));
    int64_t whole = 0;
    if (absl::SimpleAtoi(text, &whole)) return Value(whole);
    if (!absl::SimpleAtod(text, &real)) return otherwise;
  } else if (v.is(Kind::kFloat)) {
    real = v.real();
  } else {
    return otherwise;
  }
  if (!std::isfinite(real)) return otherwise;
  if (std::abs(real) >= 0x1p62) return run.Fail("a whole number is beyond 64 bits");
  return Value(static_cast<int64_t>(real));
}

Value ToFloat(Evaluator&, const Value& v, const Bound& a) {
  const Value otherwise = a.Get(0, Value(0.0));
  double real = 0;
  if (v.is_number()) return Value(v.real());
  if (v.is_string() && absl::SimpleAtod(std::string(Strip(v.text(), true, true)), &real))
    return Value(real);
  return otherwise;
}

Value Absolute(Evaluator& run, const Value& v, const Bound&) {
  if (!v.is_number()) return run.Fail("\"abs\" is a filter of numbers");
  if (!v.is_whole()) return Value(std::abs(v.real()));
  if (v.integer() == INT64_MIN) return run.Fail("a whole number is beyond 64 bits");
  return Value(std::abs(v.integer()));
}

Value Round(Evaluator& run, const Value& v, const Bound& a) {
  const Value precision = a.Get(0, Value(int64_t{0})), method = a.Get(1, Value("common"));
  if (!v.is_number() || !precision.is_whole() || precision.integer() < 0 ||
      precision.integer() > 15 || !method.is_string()) {
    return run.Fail("\"round\" takes a number and 0 to 15 digits");
  }
  const auto digits = static_cast<int>(precision.integer());
  if (method.text() == "common") {
    if (v.is_whole()) return Value(v.integer());
    double rounded = 0;
    (void)absl::SimpleAtod(absl::StrFormat("%.*f", digits, v.real()), &rounded);
    return Value(rounded);
  }
  const double scale = std::pow(10.0, digits);
  if (method.text() == "ceil") return Value(std::ceil(v.real() * scale) / scale);
  if (method.text() == "floor") return Value(std::floor(v.real() * scale) / scale);
  return run.Fail("\"round\" rounds by \"common\", \"ceil\" or \"floor\"");
}

// ---- sequences ----

Value Length(Evaluator& run, const Value& v, const Bound&) {
  switch (v.kind()) {
    case Kind::kUndefined:
      return Value(int64_t{0});
    case Kind::kString:
      return Value(CountCharacters(v.text()));
    case Kind::kList:
      return Value(static_cast<int64_t>(v.items().size()));
    case Kind::kDict:
      return Value(static_cast<int64_t>(v.dict().entries.size()));
    default:
      return run.Fail(absl::StrCat("a value of type ", TypeName(v), " has no length"));
  }
}

Value First(Evaluator& run, const Value& v, const Bound&) {
  const std::vector<Value> items = run.Items(v);
  return items.empty() ? Value::Undefined("the first item of nothing") : items.front();
}

Value Last(Evaluator& run, const Value& v, const Bound&) {
  const std::vector<Value> items = run.Items(v);
  return items.empty() ? Value::Undefined("the last item of nothing") : items.back();
}

Value Reverse(Evaluator& run, const Value& v, const Bound&) {
  std::vector<Value> items = run.Items(v);
  std::reverse(items.begin(), items.end());
  if (!v.is_string()) return run.NewList(std::move(items));
  std::string text;
  for (const Value& character : items) text += character.text();
  return run.NewText(std::move(text));
}

Value Join(Evaluator& run, const Value& v, const Bound& a) {
  const std::string between = run.ToString(a.Get(0, Value("")));
  std::string text;
  bool first = true;
  for (const Value& item : run.Items(v)) {
    if (!run.Charge(between.size()) || !run.ok()) break;
    if (!first) text += between;
    first = false;
    text += run.ToString(a.Has(1) ? run.ItemByPath(item, *a.values[1]) : item);
  }
  return run.NewText(std::move(text));
}

// Returns the key by which items are compared: texts without their case, unless `cased`.
Value SortKey(Evaluator& run, const Value& item, const std::optional<Value>& attribute,
              bool cased) {
  Value key = item;
  if (attribute.has_value() && !attribute->is_none()) key = run.ItemByPath(item, *attribute);
  return key.is_string() && !cased ? Cased(run, ToLower(key.text())) : key;
}

std::vector<Value> Sorted(Evaluator& run, std::vector<std::pair<Value, Value>> keyed,
                          bool reverse) {
  // Stable in both directions, as Python's. A comparison that fails is false both ways.
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    if (!run.ok() || !run.Charge(64)) return false;
    return reverse ? run.IsLess(b.first, a.first) : run.IsLess(a.first, b.first);
  });
  std::vector<Value> items;
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return items;
}

Value Sort(Evaluator& run, const Value& v, const Bound& a) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : run.Items(v)) {
    Value key = SortKey(run, item, a.values[2], a.IsTrue(1));
    keyed.emplace_back(std::move(key), std::move(item));
  }
  if (!run.ok()) return {};
  return run.NewList(Sorted(run, std::move(keyed), a.IsTrue(0)));
}

Value DictSort(Evaluator& run, const Value& v, const Bound& a) {
  const Value by = a.Get(1, Value("key"));
  if (!v.is_dict() || (by != Value("key") && by != Value("value"))) {
    return run.Fail("\"dictsort\" sorts a dict by \"key\" or \"value\"");
  }
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [name, value] : v.dict().entries) {
    Value key = SortKey(run, by == Value("key") ? name : value, std::nullopt, a.IsTrue(0));
    keyed.emplace_back(std::move(key), run.NewList({name, value}, /*tuple=*/true));
  }
  if (!run.ok()) return {};
  return run.NewList(Sorted(run, std::move(keyed), a.IsTrue(2)));
}

Value Unique(Evaluator& run, const Value& v, const Bound& a) {
  std::vector<Value> keys, items;
  for (Value& item : run.Items(v)) {
    Value key = SortKey(run, item, a.values[1], a.IsTrue(0));
    if (!run.Charge(keys.size() * 8)) break;
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    keys.push_back(std::move(key));
    items.push_back(std::move(item));
  }
  return run.NewList(std::move(items));
}

template <bool largest>
Value Extreme(Evaluator& run, const Value& v, const Bound& a) {
  std::optional<std::pair<Value, Value>> best;
  for (Value& item : run.Items(v)) {
    Value key = SortKey(run, item, a.values[1], a.IsTrue(0));
    if (!run.ok()) return {};
    if (best.has_value() &&
        !(largest ? run.IsLess(best->first, key) : run.IsLess(key, best->first)))
      continue;
    best.emplace(std::move(key), std::move(item));
  }
  return best.has_value() ? best->second : Value::Undefined("an item of nothing");
}

Value Sum(Evaluator& run, const Value& v, const Bound& a) {
  Value sum = a.Get(1, Value(int64_t{0}));
  for (const Value& item : run.Items(v)) {
    const Value number = a.Has(0) ? run.ItemByPath(item, *a.values[0]) : item;
    if (!run.ok() || !sum.is_number() || !number.is_number()) {
      return run.Fail("\"sum\" is a filter of numbers");
    }
    int64_t whole = 0;
    if (!sum.is_whole() || !number.is_whole()) {
      sum = Value(sum.real() + number.real());
    } else if (__builtin_add_overflow(sum.integer(), number.integer(), &whole)) {
      return run.Fail("a whole number is beyond 64 bits");
    } else {
      sum = Value(whole);
    }
  }
  return sum;
}

Value DictItems(Evaluator& run, const Value& v, const Bound&) {
  if (v.is_undefined()) return run.NewList({});
  if (!v.is_dict()) return run.Fail("\"items\" is a filter of dicts");
  return CallMethod(run, v, "items", {});
}

Value Text(Evaluator& run, const Value& v, const Bound&) { return run.NewText(run.ToString(v)); }

Value ToList(Evaluator& run, const Value& v, const Bound&) { return run.NewList(run.Items(v)); }

template <std::optional<std::string> (*map)(std::string_view)>
Value InCase(Evaluator& run, const Value& v, const Bound&) {
  return Cased(run, map(run.ToString(v)));
}

Value Default(Evaluator&, const Value& v, const Bound& a) {
  const bool absent = v.is_undefined() || (a.IsTrue(1) && !v.IsTrue());
  return absent ? a.Get(0, Value("")) : v;
}

const std::map<std::string, FilterRow>& Filters() {
  static const auto* const kFilters = [] {
    const FilterRow length = {{}, Length}, fallback = {{"default_value", "boolean"}, Default},
                    escape = {{}, Escape};
    return new std::map<std::string, FilterRow>{
        {"abs", {{}, Absolute}},
        {"capitalize", {{}, Capitalize}},
        {"count", length},
        {"d", fallback},
        {"default", fallback},
        {"dictsort", {{"case_sensitive", "by", "reverse"}, DictSort}},
        {"e", escape},
        {"escape", escape},
        {"first", {{}, First}},
        {"float", {{"default"}, ToFloat}},
        {"indent", {{"width", "first", "blank"}, Indent}},
        {"int", {{"default", "base"}, ToInteger}},
        {"items", {{}, DictItems}},
        {"join", {{"d", "attribute"}, Join}},
        {"last", {{}, Last}},
        {"length", length},
        {"list", {{}, ToList}},
        {"lower", {{}, InCase<ToLower>}},
        {"max", {{"case_sensitive", "attribute"}, Extreme<true>}},
        {"min", {{"case_sensitive", "attribute"}, Extreme<false>}},
        {"replace", {{"old", "new", "count"}, Replace}},
        {"reverse", {{}, Reverse}},
        {"round", {{"precision", "method"}, Round}},
        {"safe", {{}, Text}},
        {"sort", {{"reverse", "case_sensitive", "attribute"}, Sort}},
        {"string", {{}, Text}},
        {"sum", {{"attribute", "start"}, Sum}},
        {"title", {{}, Title}},
        {"tojson", {{"ensure_ascii", "indent", "separators", "sort_keys"}, Json}},
        {"trim", {{"chars"}, Trim}},
        {"unique", {{"case_sensitive", "attribute"}, Unique}},
        {"upper", {{}, InCase<ToUpper>}}};
  }();
  return *kFilters;
}

// ---- filters whose arguments name others ----

Arguments Rest(const Arguments& arguments, size_t first) {
  Arguments rest;
  const auto begin = arguments.positional.begin() +
                     static_cast<ptrdiff_t>(std::min(first, arguments.positional.size()));
  rest.positional.assign(begin, arguments.positional.end());
  rest.named = arguments.named;
  return rest;
}

// map(attribute="name", default=...) or map("filter", ...).
Value Map(Evaluator& run, const Value& v, const Arguments& arguments) {
  std::vector<Value> items;
  if (!arguments.positional.empty()) {
    if (!arguments.positional[0].is_string() || !IsFilter(arguments.positional[0].text())) {
      return run.Fail("\"map\" names a filter that is not implemented");
    }
    const Arguments rest = Rest(arguments, 1);
    for (const Value& item : run.Items(v)) {
      if (!run.ok()) return {};
      items.push_back(run.Filter(arguments.positional[0].text(), item, rest));
    }
    return run.NewList(std::move(items));
  }
  const auto bound = run.Bind("map", arguments, {"attribute", "default"});
  if (!bound.has_value()) return {};
  if (!bound->Has(0)) return run.Fail("\"map\" takes a filter's name, or an attribute's");
  for (const Value& item : run.Items(v)) {
    if (!run.ok()) return {};
    const Value found = run.ItemByPath(item, *bound->values[0]);
    items.push_back(found.is_undefined() ? bound->Get(1, found) : found);
  }
  return run.NewList(std::move(items));
}

// select, reject; `by_attribute`: selectattr, rejectattr. `keeps`: the items that pass.
Value Select(Evaluator& run, const Value& v, const Arguments& arguments, bool by_attribute,
             bool keeps) {
  const size_t at = by_attribute ? 1 : 0;  // of the test's name
  const std::vector<Value>& given = arguments.positional;
  if (given.size() < at) return run.Fail("an attribute's name is missing");
  if (given.size() > at && (!given[at].is_string() || !IsTest(given[at].text()))) {
    return run.Fail("names a test that is not implemented");
  }
  const Arguments rest = Rest(arguments, at + 1);
  std::vector<Value> items;
  for (Value& item : run.Items(v)) {
    if (!run.ok() || !run.Charge(8)) return {};
    const Value subject = by_attribute ? run.ItemByPath(item, given[0]) : item;
    const bool passes =
        given.size() > at ? run.Test(given[at].text(), subject, rest) : subject.IsTrue();
    if (passes == keeps) items.push_back(std::move(item));
  }
  return run.NewList(std::move(items));
}

bool IsHigher(const std::string& name) {
  return name == "map" || name == "select" || name == "reject" || name == "selectattr" ||
         name == "rejectattr";
}

}  // namespace

bool IsFilter(const std::string& name) { return Filters().contains(name) || IsHigher(name); }

Value Evaluator::Filter(const std::string& name, const Value& subject, const Arguments& arguments) {
  if (name == "map") return Map(*this, subject, arguments);
  if (IsHigher(name)) {
    return Select(*this, subject, arguments, name.ends_with("attr"), name.starts_with("select"));
  }
  const auto found = Filters().find(name);
  if (found == Filters().end()) {
    return Fail(absl::StrCat("the filter \"", name, "\" is not implemented"));
  }
  const auto bound = Bind(name, arguments, found->second.parameters);
  return bound.has_value() ? found->second.apply(*this, subject, *bound) : Value();
}

}  // namespace atl::jinja
