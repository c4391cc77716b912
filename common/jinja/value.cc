#include "common/jinja/value.h"

#include <algorithm>

#include "common/status.h"

namespace atl::jinja {

const Value* Dict::Find(const Value& key) const {
  for (const auto& [name, value] : entries) {
    if (name == key) return &value;
  }
  return nullptr;
}

void Dict::Set(Value key, Value value) {
  for (auto& [name, old] : entries) {
    if (name == key) {
      old = std::move(value);
      return;
    }
  }
  entries.emplace_back(std::move(key), std::move(value));
}

Value::Value(List list) : kind_(Kind::kList) {
  for (const Value& item : list.items) nesting_ = std::max(nesting_, item.nesting_ + 1);
  list_ = std::make_shared<const List>(std::move(list));
}

Value::Value(Dict dict) : kind_(Kind::kDict) {
  for (const auto& [name, value] : dict.entries) {
    nesting_ = std::max({nesting_, name.nesting_ + 1, value.nesting_ + 1});
  }
  dict_ = std::make_shared<Dict>(std::move(dict));
}

Value::Value(Function function) : kind_(Kind::kFunction) {
  if (function.self != nullptr) nesting_ = function.self->nesting_ + 1;
  function_ = std::make_shared<const Function>(std::move(function));
}

Value Value::Undefined(std::string what) {
  Value value;
  if (!what.empty()) value.text_ = std::make_shared<const std::string>(std::move(what));
  return value;
}

Value Value::None() {
  Value value;
  value.kind_ = Kind::kNone;
  return value;
}

Value Value::MakeNamespace(Dict dict) {
  Value value(std::move(dict));
  value.kind_ = Kind::kNamespace;
  value.nesting_ = kMaxNesting;
  return value;
}

bool Value::IsTrue() const {
  switch (kind_) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInteger:
      return integer_ != 0;
    case Kind::kFloat:
      return real_ != 0;
    case Kind::kString:
      return !text_->empty();
    case Kind::kList:
      return !list_->items.empty();
    case Kind::kDict:
      return !dict_->entries.empty();
    case Kind::kNamespace:
    case Kind::kFunction:
      return true;
  }
  return false;
}

bool Value::operator==(const Value& other) const {
  if (is_number() && other.is_number()) {
    return is_whole() && other.is_whole() ? integer_ == other.integer_ : real() == other.real();
  }
  if (kind_ != other.kind_) return false;
  switch (kind_) {
    case Kind::kString:
      return text_ == other.text_ || *text_ == *other.text_;
    case Kind::kList:
      return list_ == other.list_ ||
             (list_->tuple == other.list_->tuple && list_->items == other.list_->items);
    case Kind::kDict:
      return dict_ == other.dict_ ||
             (dict_->entries.size() == other.dict_->entries.size() &&
              std::all_of(dict_->entries.begin(), dict_->entries.end(), [&](const auto& entry) {
                const Value* const found = other.dict_->Find(entry.first);
                return found != nullptr && *found == entry.second;
              }));
    case Kind::kNamespace:
      return dict_ == other.dict_;
    case Kind::kFunction:
      return function_ == other.function_;
    default:
      return true;
  }
}

const char* TypeName(const Value& value) {
  // By Kind.
  constexpr const char* kNames[] = {"undefined", "None", "bool", "int",       "float",
                                    "str",       "list", "dict", "namespace", "function"};
  const bool tuple = value.is_list() && value.is_tuple();
  return tuple ? "tuple" : kNames[static_cast<size_t>(value.kind())];
}

namespace {

absl::StatusOr<Value> Convert(const nlohmann::ordered_json& json, int depth) {
  if (depth > kMaxNesting) {
    return absl::InvalidArgumentError(
        absl::StrCat("is nested more than ", kMaxNesting, " levels deep"));
  }
  if (json.is_null()) return Value::None();
  if (json.is_boolean()) return Value(json.get<bool>());
  if (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("has a whole number beyond 64 bits: ", json.get<uint64_t>()));
  }
  if (json.is_number_integer()) return Value(json.get<int64_t>());
  if (json.is_number_float()) return Value(json.get<double>());
  if (json.is_string()) return Value(json.get<std::string>());
  if (json.is_array()) {
    std::vector<Value> items;
    items.reserve(json.size());
    for (const auto& element : json) {
      ATOLL_ASSIGN_OR_RETURN(Value value, Convert(element, depth + 1));
      items.push_back(std::move(value));
    }
    return Value::MakeList(std::move(items));
  }
  Dict dict;
  for (const auto& [name, element] : json.items()) {
    ATOLL_ASSIGN_OR_RETURN(Value value, Convert(element, depth + 1));
    dict.entries.emplace_back(Value(name), std::move(value));
  }
  return Value(std::move(dict));
}

}  // namespace

absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json) { return Convert(json, 0); }

}  // namespace atl::jinja
