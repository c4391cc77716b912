// Values of templates, as Python has them: what a chat template computes with.

#ifndef ATOLL_COMMON_JINJA_VALUE_H_
#define ATOLL_COMMON_JINJA_VALUE_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace atl::jinja {

// A value that is nested more deeply is refused.
inline constexpr int kMaxNesting = 64;

class Value;
struct Statement;
class Scope;

struct List {
  std::vector<Value> items;
  bool tuple = false;  // prints as one
};

// A dict whose items are in the order of insertion, as Python's.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;

  const Value* Find(const Value& key) const;
  void Set(Value key, Value value);
};

// Something that can be called: a macro, a global function, or a method of `self`.
struct Function {
  std::string name;
  std::shared_ptr<const Value> self;   // of a method
  const Statement* macro = nullptr;    // of a macro,
  const Scope* macro_scope = nullptr;  // and where it was defined
};

class Value {
 public:
  enum class Kind : uint8_t {
    kUndefined,
    kNone,
    kBool,
    kInteger,
    kFloat,
    kString,
    kList,
    kDict,
    kNamespace,
    kFunction,
  };

  // Undefined; `what` is not, for messages.
  static Value Undefined(std::string what = "");
  Value() = default;
  Value(bool value) : kind_(Kind::kBool), integer_(value ? 1 : 0) {}
  Value(int64_t value) : kind_(Kind::kInteger), integer_(value) {}
  Value(int) = delete;  // bool or int64_t
  Value(double value) : kind_(Kind::kFloat), real_(value) {}
  Value(std::string text)
      : kind_(Kind::kString), text_(std::make_shared<const std::string>(std::move(text))) {}
  Value(std::string_view text) : Value(std::string(text)) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(List list);
  Value(Dict dict);
  Value(Function function);
  static Value None();
  static Value MakeNamespace(Dict dict);
  static Value MakeList(std::vector<Value> items, bool tuple = false) {
    return Value(List{std::move(items), tuple});
  }

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_undefined() const { return is(Kind::kUndefined); }
  bool is_none() const { return is(Kind::kNone); }
  bool is_string() const { return is(Kind::kString); }
  bool is_list() const { return is(Kind::kList); }
  bool is_dict() const { return is(Kind::kDict); }
  // Bools are whole numbers, as in Python.
  bool is_whole() const { return is(Kind::kInteger) || is(Kind::kBool); }
  bool is_number() const { return is_whole() || is(Kind::kFloat); }

  // REQUIRES: of the kind.
  int64_t integer() const { return integer_; }
  double real() const { return is(Kind::kFloat) ? real_ : static_cast<double>(integer_); }
  const std::string& text() const { return *text_; }
  const std::vector<Value>& items() const { return list_->items; }
  bool is_tuple() const { return list_->tuple; }
  const Dict& dict() const { return *dict_; }
  Dict& namespace_attributes() const { return *dict_; }
  const Function& function() const { return *function_; }

  // Returns the name of an undefined value, as the template has it.
  std::string what() const { return text_ == nullptr ? "" : *text_; }

  // Returns how many lists and dicts lie inside of each other here; a namespace counts as too many,
  // so that none holds another or itself.
  int nesting() const { return nesting_; }

  bool IsTrue() const;
  bool operator==(const Value& other) const;
  // Returns whether the two are one object, as Python's `is` has it, of None and bools.
  bool IsSame(const Value& other) const { return kind_ == other.kind_ && *this == other; }

 private:
  Kind kind_ = Kind::kUndefined;
  int nesting_ = 0;
  int64_t integer_ = 0;
  double real_ = 0;
  std::shared_ptr<const std::string> text_;
  std::shared_ptr<const List> list_;
  std::shared_ptr<Dict> dict_;  // of a namespace, which alone changes, too
  std::shared_ptr<const Function> function_;
};

// "list", as Python names it.
const char* TypeName(const Value& value);

// INVALID_ARGUMENT: a whole number beyond 64 bits, or nesting beyond kMaxNesting.
absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json);

}  // namespace atl::jinja

#endif  // ATOLL_COMMON_JINJA_VALUE_H_
