// A protobuf message as TOML that TomlMessage reads.

#ifndef ATOLL_COMMON_TOML_TEXT_H_
#define ATOLL_COMMON_TOML_TEXT_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <string>

#include "absl/strings/string_view.h"

namespace atl {

// Formats a text in quotes, on one line.
std::string TomlString(absl::string_view text);

// "llama" for MODEL_FAMILY_LLAMA of enum ModelFamily.
std::string TomlEnumName(const google::protobuf::EnumValueDescriptor& value);

// The value of a field that is not a message: "0.1", "\"llama\"".
std::string TomlValue(const google::protobuf::Message& message,
                      const google::protobuf::FieldDescriptor& field);

// Every field that is set, and is not an empty text or list: values first, then [tables] and
// [[lists of tables]]. A text of more than kTomlTextMax bytes is a comment that says how long it
// is.
inline constexpr size_t kTomlTextMax = 2000;
std::string TomlText(const google::protobuf::Message& message);

}  // namespace atl

#endif  // ATOLL_COMMON_TOML_TEXT_H_
