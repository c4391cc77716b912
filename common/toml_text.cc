#include "common/toml_text.h"

#include <cstdlib>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace atl {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// With the fewest digits that are read back as the same number.
std::string NumberText(double value) {
  for (int digits = 1;; ++digits) {
    const std::string text = absl::StrFormat("%.*g", digits, value);
    if (digits == 17 || std::strtod(text.c_str(), nullptr) == value) return text;
  }
}

// Returns the text of a field, or of its element `index`; it may be too long for a line.
std::string ValueText(const Message& message, const FieldDescriptor& field, int index) {
  const auto& reflection = *message.GetReflection();
  const bool of_list = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string text = of_list ? reflection.GetRepeatedString(message, &field, index)
                                       : reflection.GetString(message, &field);
      return TomlString(text);
    }
    case FieldDescriptor::CPPTYPE_BOOL:
      return (of_list ? reflection.GetRepeatedBool(message, &field, index)
                      : reflection.GetBool(message, &field))
                 ? "true"
                 : "false";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return NumberText(of_list ? reflection.GetRepeatedDouble(message, &field, index)
                                : reflection.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_ENUM:
      return TomlString(TomlEnumName(of_list ? *reflection.GetRepeatedEnum(message, &field, index)
                                             : *reflection.GetEnum(message, &field)));
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(of_list ? reflection.GetRepeatedInt32(message, &field, index)
                                  : reflection.GetInt32(message, &field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(of_list ? reflection.GetRepeatedUInt64(message, &field, index)
                                  : reflection.GetUInt64(message, &field));
    default:
      return absl::StrCat(of_list ? reflection.GetRepeatedInt64(message, &field, index)
                                  : reflection.GetInt64(message, &field));
  }
}

// A text that is empty and a choice that is open say nothing.
bool SaysNothing(const std::string& value) {
  return value == "\"\"" || value == TomlString("unspecified");
}

void AppendValue(const Message& message, const FieldDescriptor& field, std::string* out) {
  if (!field.is_repeated()) {
    const std::string value = ValueText(message, field, 0);
    if (SaysNothing(value)) return;
    if (value.size() > kTomlTextMax) {
      absl::StrAppend(out, "# ", field.name(), ": a text of ", value.size() - 2, " bytes\n");
    } else {
      absl::StrAppend(out, field.name(), " = ", value, "\n");
    }
    return;
  }
  std::vector<std::string> values;
  for (int i = 0; i < message.GetReflection()->FieldSize(message, &field); ++i) {
    values.push_back(ValueText(message, field, i));
  }
  absl::StrAppend(out, field.name(), " = [", absl::StrJoin(values, ", "), "]\n");
}

void Append(const Message& message, const std::string& prefix, std::string* out) {
  const auto& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) AppendValue(message, *field, out);
  }
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const std::string name = prefix + field->name();
    if (!field->is_repeated()) {
      absl::StrAppend(out, "\n[", name, "]\n");
      Append(reflection.GetMessage(message, field), name + ".", out);
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      absl::StrAppend(out, "\n[[", name, "]]\n");
      Append(reflection.GetRepeatedMessage(message, field, i), name + ".", out);
    }
  }
}

}  // namespace

std::string TomlString(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20 || code == 0x7f) {
      absl::StrAppend(&quoted, "\\u", absl::Hex(code, absl::kZeroPad4));
    } else {
      if (c == '"' || c == '\\') quoted += '\\';
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string TomlEnumName(const google::protobuf::EnumValueDescriptor& value) {
  const size_t prefix =
      value.type()->value(0)->name().size() - absl::string_view("UNSPECIFIED").size();
  return absl::AsciiStrToLower(value.name().substr(prefix));
}

std::string TomlValue(const Message& message, const FieldDescriptor& field) {
  return ValueText(message, field, 0);
}

std::string TomlText(const Message& message) {
  std::string text;
  Append(message, "", &text);
  return text;
}

}  // namespace atl
