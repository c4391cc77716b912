#include "common/jinja/functions.h"

#include <algorithm>
#include <ctime>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/jinja/text.h"

namespace atl::jinja {
namespace {

using Kind = Value::Kind;

constexpr const char* kFunctions[] = {"range", "namespace", "dict", "raise_exception",
                                      "strftime_now"};
constexpr int64_t kRangeMax = 100'000;  // as of Jinja's sandbox

Value Range(Evaluator& run, const Arguments& arguments) {
  int64_t bounds[3] = {0, 0, 1};
  const size_t count = arguments.positional.size();
  if (count < 1 || count > 3 || !arguments.named.empty()) {
    return run.Fail("\"range\" takes one to three whole numbers");
  }
  for (size_t i = 0; i < count; ++i) {
    if (!arguments.positional[i].is_whole()) return run.Fail("\"range\" takes whole numbers");
    bounds[count == 1 ? 1 : i] = arguments.positional[i].integer();
  }
  const auto [begin, end, step] = bounds;
  if (step == 0) return run.Fail("\"range\" has a step of 0");
  std::vector<Value> items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<int64_t>(items.size()) >= kRangeMax) {
      return run.Fail(absl::StrCat("\"range\" is longer than ", kRangeMax));
    }
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return run.NewList(std::move(items));
}

// namespace(a=1) and dict(a=1), or of a dict.
Value Named(Evaluator& run, const Arguments& arguments, bool is_namespace) {
  Dict dict;
  if (arguments.positional.size() > 1 ||
      (arguments.positional.size() == 1 && !arguments.positional[0].is_dict())) {
    return run.Fail("\"namespace\" and \"dict\" take names with values, or a dict");
  }
  if (!arguments.positional.empty()) dict = arguments.positional[0].dict();
  for (const auto& [name, value] : arguments.named) dict.Set(Value(name), value);
  for (const auto& [name, value] : dict.entries) {
    if (is_namespace && value.nesting() >= kMaxNesting) {
      return run.Fail("a namespace cannot lie in a namespace");
    }
  }
  return is_namespace ? Value::MakeNamespace(std::move(dict)) : run.NewDict(std::move(dict));
}

Value ShowNow(Evaluator& run, const Arguments& arguments) {
  if (arguments.positional.size() != 1 || !arguments.positional[0].is_string()) {
    return run.Fail("\"strftime_now\" takes a format");
  }
  if (!run.options().now.has_value()) {
    return run.Fail("the template shows today's date (strftime_now), and none is given");
  }
  const std::string& format = arguments.positional[0].text();
  constexpr std::string_view kKnown = "aAbBdeHIjmMpSyYFTD%-";
  for (size_t at = format.find('%'); at != std::string::npos; at = format.find('%', at + 2)) {
    const bool unpadded = at + 1 < format.size() && format[at + 1] == '-';
    const size_t letter = at + (unpadded ? 2 : 1);
    if (letter >= format.size() || kKnown.find(format[letter]) == kKnown.npos ||
        format[letter] == '-') {
      return run.Fail(absl::StrCat("the format \"", format.substr(at, 2),
                                   "\" of \"strftime_now\" is not implemented"));
    }
    if (unpadded) ++at;
  }
  if (format.size() > 1000) return run.Fail("a format of \"strftime_now\" is too long");
  const absl::CivilSecond now = *run.options().now;
  std::tm parts{};
  parts.tm_year = static_cast<int>(now.year()) - 1900;
  parts.tm_mon = now.month() - 1;
  parts.tm_mday = now.day();
  parts.tm_hour = now.hour();
  parts.tm_min = now.minute();
  parts.tm_sec = now.second();
  parts.tm_wday = (static_cast<int>(absl::GetWeekday(now)) + 1) % 7;
  parts.tm_yday = absl::GetYearDay(now) - 1;
  std::string text(20 * format.size() + 1, '\0');
  text.resize(std::strftime(text.data(), text.size(), format.c_str(), &parts));
  return run.NewText(std::move(text));
}

// ---- methods of texts ----

// The first argument as a text; `otherwise` where it is absent or none.
std::optional<std::string> TextAt(Evaluator& run, const Bound& a, size_t i) {
  if (!a.Has(i) || a.values[i]->is_none()) return std::nullopt;
  if (a.values[i]->is_string()) return a.values[i]->text();
  run.Fail(absl::StrCat("an argument is of type ", TypeName(*a.values[i]), ", not a text"));
  return "";
}

int64_t WholeAt(Evaluator& run, const Bound& a, size_t i, int64_t otherwise) {
  if (!a.Has(i)) return otherwise;
  if (a.values[i]->is_whole()) return a.values[i]->integer();
  run.Fail("an argument is no whole number");
  return otherwise;
}

template <bool left, bool right>
Value StripText(Evaluator& run, const std::string& text, const Bound& a) {
  const std::optional<std::string> chars = TextAt(run, a, 0);
  return run.NewText(std::string(
      Strip(text, left, right,
            chars.has_value() ? std::optional<std::string_view>(*chars) : std::nullopt)));
}

// By white space, where there is no separator.
std::vector<Value> SplitWords(const std::string& text, int64_t most) {
  std::vector<Value> parts;
  std::string_view rest = Strip(text, true, false);
  while (!rest.empty()) {
    if (most >= 0 && static_cast<int64_t>(parts.size()) == most) {
      parts.emplace_back(rest);
      break;
    }
    size_t end = 0;
    while (end < rest.size() && !IsSpace(CharacterAt(rest, end).code)) {
      end += CharacterAt(rest, end).bytes;
    }
    parts.emplace_back(rest.substr(0, end));
    rest = Strip(rest.substr(end), true, false);
  }
  return parts;
}

template <bool from_right>
Value SplitText(Evaluator& run, const std::string& text, const Bound& a) {
  const std::optional<std::string> separator = TextAt(run, a, 0);
  const int64_t most = WholeAt(run, a, 1, -1);
  if (!run.ok()) return {};
  std::vector<Value> parts;
  if (!separator.has_value()) {
    if (from_right && most >= 0) return run.Fail("\"rsplit\" by white space is not implemented");
    return run.NewList(SplitWords(text, most));
  }
  if (separator->empty()) return run.Fail("a text is split by an empty one");
  std::string_view rest = text;
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t at = from_right ? rest.rfind(*separator) : rest.find(*separator);
    if (at == rest.npos || !run.Charge(sizeof(Value))) break;
    parts.emplace_back(from_right ? rest.substr(at + separator->size()) : rest.substr(0, at));
    rest = from_right ? rest.substr(0, at) : rest.substr(at + separator->size());
  }
  parts.emplace_back(rest);
  if (from_right) std::reverse(parts.begin(), parts.end());
  run.Charge(text.size());
  return run.NewList(std::move(parts));
}

template <bool begins>
Value BeginsOrEnds(Evaluator& run, const std::string& text, const Bound& a) {
  if (!a.Has(0)) return run.Fail("a text to look for is missing");
  const bool several = a.values[0]->is_list() && a.values[0]->is_tuple();
  const std::vector<Value> wanted =
      several ? a.values[0]->items() : std::vector<Value>{*a.values[0]};
  for (const Value& one : wanted) {
    if (!one.is_string()) return run.Fail("what is looked for is no text");
    if (begins ? text.starts_with(one.text()) : text.ends_with(one.text())) {
      return Value(true);
    }
  }
  return Value(false);
}

Value ReplaceText(Evaluator& run, const std::string& text, const Bound& a) {
  const std::optional<std::string> old = TextAt(run, a, 0), by = TextAt(run, a, 1);
  const int64_t most = WholeAt(run, a, 2, -1);
  if (!run.ok()) return {};
  if (!old.has_value() || !by.has_value()) return run.Fail("\"replace\" takes two texts");
  if (old->empty()) return run.Fail("replacing an empty text is not implemented");
  std::string result;
  size_t at = 0;
  for (int64_t i = 0; most < 0 || i < most; ++i) {
    const size_t found = text.find(*old, at);
    if (found == std::string::npos || !run.Charge(by->size())) break;
    result.append(text, at, found - at).append(*by);
    at = found + old->size();
  }
  run.Charge(text.size());
  return run.NewText(result.append(text, at));
}

template <bool last>
Value FindText(Evaluator& run, const std::string& text, const Bound& a) {
  const std::optional<std::string> wanted = TextAt(run, a, 0);
  if (!run.ok() || !wanted.has_value()) return run.Fail("a text to look for is missing");
  run.Charge(text.size());
  const size_t at = last ? text.rfind(*wanted) : text.find(*wanted);
  if (at == std::string::npos) return Value(int64_t{-1});
  return Value(CountCharacters(std::string_view(text).substr(0, at)));
}

Value CountText(Evaluator& run, const std::string& text, const Bound& a) {
  const std::optional<std::string> wanted = TextAt(run, a, 0);
  if (!run.ok() || !wanted.has_value() || wanted->empty()) {
    return run.Fail("\"count\" takes a text that is not empty");
  }
  run.Charge(text.size());
  int64_t count = 0;
  for (size_t at = text.find(*wanted); at != std::string::npos;
       at = text.find(*wanted, at + wanted->size())) {
    ++count;
  }
  return Value(count);
}

template <bool prefix>
Value WithoutEnd(Evaluator& run, const std::string& text, const Bound& a) {
  const std::optional<std::string> end = TextAt(run, a, 0);
  if (!run.ok() || !end.has_value()) return run.Fail("a text is missing");
  if (prefix && text.starts_with(*end)) return run.NewText(text.substr(end->size()));
  if (!prefix && text.ends_with(*end)) {
    return run.NewText(text.substr(0, text.size() - end->size()));
  }
  return run.NewText(text);
}

Value SplitLines(Evaluator& run, const std::string& text, const Bound&) {
  if (text.find_first_of("\r\v\f\x1c\x1d\x1e") != std::string::npos) {
    return run.Fail("other line ends than line feeds are not implemented");
  }
  std::vector<Value> lines;
  for (size_t at = 0; at < text.size() && run.Charge(sizeof(Value));) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return run.NewList(std::move(lines));
}

// Returns whether the text has characters, all of which are of `kind` in ASCII. Other characters
// fail.
template <bool (*is)(unsigned char)>
Value AllAre(Evaluator& run, const std::string& text, const Bound&) {
  if (std::any_of(text.begin(), text.end(), [](char c) { return (c & 0x80) != 0; })) {
    return run.Fail("classes of letters beyond ASCII are not implemented");
  }
  return Value(!text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return is(static_cast<unsigned char>(c));
  }));
}

// str.title: a letter behind one that has a case is small, any other is large.
Value TitleText(Evaluator& run, const std::string& text, const Bound&) {
  std::string result;
  bool in_word = false;
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = CharacterAt(text, at).bytes;
    const std::string_view letter = std::string_view(text).substr(at, bytes);
    const auto upper = ToUpper(letter), lower = ToLower(letter);
    if (!upper.has_value() || !lower.has_value()) {
      return run.Fail("the case of a letter in it is not known here");
    }
    result += in_word ? *lower : *upper;
    in_word = *upper != *lower;
    at += bytes;
  }
  return run.NewText(std::move(result));
}

struct TextMethod {
  std::vector<const char*> parameters;
  Value (*call)(Evaluator& run, const std::string& text, const Bound& a);
};

Value IsSpaceText(Evaluator&, const std::string& text, const Bound&) {
  return Value(!text.empty() && Strip(text, true, false).empty());
}

Value JoinBy(Evaluator& run, const std::string& text, const Bound& a) {
  const Value items = a.Get(0, Value());
  for (const Value& item : run.Items(items)) {
    if (!item.is_string()) return run.Fail("\"join\" joins texts");
  }
  return run.Filter("join", items, {{Value(text)}, {}});
}

const std::map<std::string, TextMethod>& TextMethods() {
  static const auto* const kMethods =
      new std::map<std::string, TextMethod>{{"strip", {{"chars"}, StripText<true, true>}},
                                            {"lstrip", {{"chars"}, StripText<true, false>}},
                                            {"rstrip", {{"chars"}, StripText<false, true>}},
                                            {"split", {{"sep", "maxsplit"}, SplitText<false>}},
                                            {"rsplit", {{"sep", "maxsplit"}, SplitText<true>}},
                                            {"splitlines", {{}, SplitLines}},
                                            {"startswith", {{"prefix"}, BeginsOrEnds<true>}},
                                            {"endswith", {{"suffix"}, BeginsOrEnds<false>}},
                                            {"removeprefix", {{"prefix"}, WithoutEnd<true>}},
                                            {"removesuffix", {{"suffix"}, WithoutEnd<false>}},
                                            {"replace", {{"old", "new", "count"}, ReplaceText}},
                                            {"find", {{"sub"}, FindText<false>}},
                                            {"rfind", {{"sub"}, FindText<true>}},
                                            {"count", {{"sub"}, CountText}},
                                            {"title", {{}, TitleText}},
                                            {"isdigit", {{}, AllAre<absl::ascii_isdigit>}},
                                            {"isalpha", {{}, AllAre<absl::ascii_isalpha>}},
                                            {"isalnum", {{}, AllAre<absl::ascii_isalnum>}},
                                            {"isspace", {{}, IsSpaceText}},
                                            {"join", {{"iterable"}, JoinBy}}};
  return *kMethods;
}

// Methods that are filters, too.
bool IsFilterMethod(const std::string& name) {
  return name == "upper" || name == "lower" || name == "capitalize";
}

// Methods that Python's types have besides.
bool IsPythons(const std::string& name, std::initializer_list<const char*> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value CallDictMethod(Evaluator& run, const Value& self, const std::string& name,
                     const Arguments& arguments) {
  const auto& entries = self.dict().entries;
  if (name == "get") {
    const auto bound = run.Bind("get", arguments, {"key", "default"});
    if (!bound.has_value()) return {};
    const Value* const found = self.dict().Find(bound->Get(0, Value::None()));
    return found != nullptr ? *found : bound->Get(1, Value::None());
  }
  if (!run.Bind(name, arguments, {}).has_value()) return {};
  if (name == "copy") return self;
  std::vector<Value> items;
  for (const auto& [key, value] : entries) {
    items.push_back(name == "keys"     ? key
                    : name == "values" ? value
                                       : run.NewList({key, value}, /*tuple=*/true));
  }
  return run.NewList(std::move(items));
}

}  // namespace

bool IsFunction(const std::string& name) {
  return std::find(std::begin(kFunctions), std::end(kFunctions), name) != std::end(kFunctions);
}

Value CallFunction(Evaluator& run, const std::string& name, const Arguments& arguments) {
  if (name == "range") return Range(run, arguments);
  if (name == "namespace" || name == "dict") return Named(run, arguments, name == "namespace");
  if (name == "strftime_now") return ShowNow(run, arguments);
  if (name == "raise_exception") {
    const auto bound = run.Bind(name, arguments, {"message"});
    return run.Fail(absl::StrCat("the template refuses the conversation: ",
                                 bound.has_value() ? run.ToString(bound->Get(0, Value(""))) : ""));
  }
  return run.Fail(absl::StrCat("the function \"", name, "\" is not implemented"));
}

bool HasMethod(const Value& value, const std::string& name) {
  if (value.is_string()) return TextMethods().contains(name) || IsFilterMethod(name);
  if (value.is_dict()) return IsPythons(name, {"get", "items", "keys", "values", "copy"});
  return false;
}

bool IsUnknownMethod(const Value& value, const std::string& name) {
  if (value.is_string()) {
    return IsPythons(
        name, {"casefold",    "center",  "encode",     "expandtabs",   "format",    "format_map",
               "index",       "isascii", "isdecimal",  "isidentifier", "islower",   "isnumeric",
               "isprintable", "istitle", "isupper",    "ljust",        "maketrans", "partition",
               "rindex",      "rjust",   "rpartition", "swapcase",     "translate", "zfill"});
  }
  if (value.is_list()) {
    return IsPythons(name, {"append", "clear", "copy", "count", "extend", "index", "insert", "pop",
                            "remove", "reverse", "sort"});
  }
  if (value.is_dict()) {
    return IsPythons(name, {"clear", "fromkeys", "pop", "popitem", "setdefault", "update"});
  }
  return value.is_number() && IsPythons(name, {"bit_length", "conjugate", "real", "imag"});
}

Value CallMethod(Evaluator& run, const Value& self, const std::string& name,
                 const Arguments& arguments) {
  if (self.is_dict()) return CallDictMethod(run, self, name, arguments);
  if (IsFilterMethod(name)) return run.Filter(name, self, arguments);
  const auto found = TextMethods().find(name);
  if (found == TextMethods().end()) {
    return run.Fail(absl::StrCat("the method \"", name, "\" is not implemented"));
  }
  const auto bound = run.Bind(name, arguments, found->second.parameters);
  return bound.has_value() ? found->second.call(run, self.text(), *bound) : Value();
}

}  // namespace atl::jinja
