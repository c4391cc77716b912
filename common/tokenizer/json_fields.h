// Fields of an untrusted tokenizer.json. A missing field has its default; one of another type is an
// error that names it.

#ifndef ATOLL_COMMON_TOKENIZER_JSON_FIELDS_H_
#define ATOLL_COMMON_TOKENIZER_JSON_FIELDS_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/status.h"

namespace atl::tokenizer {

using Json = nlohmann::json;

// Sequences inside sequences are refused beyond this.
inline constexpr int kMaxDepth = 8;

inline absl::Status Bad(const std::string& where, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", problem));
}

inline absl::Status Unsupported(const std::string& where, const std::string& type) {
  return absl::UnimplementedError(absl::StrCat(where, ".type: \"", type, "\" is not supported"));
}

// The object's member, or null.
inline const Json& Member(const Json& object, const char* name) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto found = object.find(name);
  return found == object.end() ? null : *found;
}

inline absl::StatusOr<std::string> StringField(const Json& object, const char* name,
                                               const std::string& where,
                                               const std::string& absent = "") {
  const Json& field = Member(object, name);
  if (field.is_null()) return absent;
  if (!field.is_string()) return Bad(absl::StrCat(where, ".", name), "must be a string");
  return field.get<std::string>();
}

inline absl::StatusOr<bool> BoolField(const Json& object, const char* name,
                                      const std::string& where, bool absent) {
  const Json& field = Member(object, name);
  if (field.is_null()) return absent;
  if (!field.is_boolean()) return Bad(absl::StrCat(where, ".", name), "must be true or false");
  return field.get<bool>();
}

inline absl::StatusOr<int64_t> IntField(const Json& object, const char* name,
                                        const std::string& where, int64_t absent, int64_t lowest,
                                        int64_t highest) {
  const Json& field = Member(object, name);
  if (field.is_null()) return absent;
  if (!field.is_number_integer() || field.get<double>() < static_cast<double>(lowest) ||
      field.get<double>() > static_cast<double>(highest)) {
    return Bad(absl::StrCat(where, ".", name),
               absl::StrCat("must be a whole number from ", lowest, " to ", highest));
  }
  return field.get<int64_t>();
}

inline absl::StatusOr<std::vector<Json>> ListField(const Json& object, const char* name,
                                                   const std::string& where) {
  const Json& field = Member(object, name);
  if (!field.is_array()) return Bad(absl::StrCat(where, ".", name), "must be a list");
  return field.get<std::vector<Json>>();
}

// A single character, such as Metaspace's replacement, or any other text that is not empty.
inline absl::StatusOr<std::string> TextField(const Json& object, const char* name,
                                             const std::string& where, const std::string& absent) {
  ATOLL_ASSIGN_OR_RETURN(std::string text, StringField(object, name, where, absent));
  if (text.empty()) return Bad(absl::StrCat(where, ".", name), "must not be empty");
  return text;
}

}  // namespace atl::tokenizer

#endif  // ATOLL_COMMON_TOKENIZER_JSON_FIELDS_H_
