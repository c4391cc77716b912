#include "common/toml_message.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/nearest.h"
#include "common/toml.h"
#include "common/toml_text.h"

namespace atl {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::vector<std::string> EnumNames(const EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 1; i < type.value_count(); ++i) names.push_back(TomlEnumName(*type.value(i)));
  return names;
}

class Reader {
 public:
  Reader(const std::string& path, std::map<std::string, int>& lines) : path_(path), lines_(lines) {}

  absl::Status Read(const toml::table& table, const std::string& prefix, Message* message) {
    const Descriptor& type = *message->GetDescriptor();
    for (const auto& [key, node] : table) {
      const std::string name(key.str());
      const std::string where = prefix + name;
      const FieldDescriptor* field = type.FindFieldByName(name);
      if (field == nullptr) {
        std::vector<std::string> names;
        for (int i = 0; i < type.field_count(); ++i) names.push_back(type.field(i)->name());
        return Error(key.source(), where,
                     absl::StrCat("there is no such field; ", Suggestion(name, names)));
      }
      lines_[where] = static_cast<int>(node.source().begin.line);
      ATOLL_RETURN_IF_ERROR(Set(node, where, *field, message));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Error(const toml::source_region& at, const std::string& where,
                     const std::string& what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ":", at.begin.line, ": ", where, ": ", what));
  }

  absl::Status Set(const toml::node& node, const std::string& where, const FieldDescriptor& field,
                   Message* message) {
    if (field.is_repeated()) {
      return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE
                 ? AddTables(node, where, field, message)
                 : SetValues(node, where, field, message);
    }
    const auto& reflection = *message->GetReflection();
    const auto wrong = [&](const char* expected) {
      std::ostringstream kind;
      kind << node.type();
      return Error(node.source(), where, absl::StrCat("must be ", expected, ", not ", kind.str()));
    };
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE: {
        const toml::table* inner = node.as_table();
        if (inner == nullptr) return wrong("a table");
        return Read(*inner, where + ".", reflection.MutableMessage(message, &field));
      }
      case FieldDescriptor::CPPTYPE_STRING: {
        const auto* text = node.as_string();
        if (text == nullptr) return wrong("text in quotes");
        reflection.SetString(message, &field, text->get());
        return absl::OkStatus();
      }
      case FieldDescriptor::CPPTYPE_BOOL: {
        const auto* flag = node.as_boolean();
        if (flag == nullptr) return wrong("true or false");
        reflection.SetBool(message, &field, flag->get());
        return absl::OkStatus();
      }
      case FieldDescriptor::CPPTYPE_DOUBLE: {
        if (const auto* integer = node.as_integer()) {
          reflection.SetDouble(message, &field, static_cast<double>(integer->get()));
        } else if (const auto* number = node.as_floating_point()) {
          reflection.SetDouble(message, &field, number->get());
        } else {
          return wrong("a number");
        }
        return absl::OkStatus();
      }
      case FieldDescriptor::CPPTYPE_ENUM:
        return SetEnum(node, where, field, message);
      default:
        return SetInteger(node, where, field, message);
    }
  }

  absl::Status SetInteger(const toml::node& node, const std::string& where,
                          const FieldDescriptor& field, Message* message) {
    const auto& reflection = *message->GetReflection();
    const auto* integer = node.as_integer();
    if (integer == nullptr) {
      return Error(node.source(), where, "must be a whole number, such as 4096 or 4_096");
    }
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64) {
      if (integer->get() < 0) return Error(node.source(), where, "must not be negative");
      reflection.SetUInt64(message, &field, static_cast<uint64_t>(integer->get()));
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
      const auto value = static_cast<int32_t>(integer->get());
      if (value != integer->get()) return Error(node.source(), where, "is too large a number");
      reflection.SetInt32(message, &field, value);
    } else {
      reflection.SetInt64(message, &field, integer->get());
    }
    return absl::OkStatus();
  }

  absl::Status AddTables(const toml::node& node, const std::string& where,
                         const FieldDescriptor& field, Message* message) {
    const toml::array* list = node.as_array();
    if (list == nullptr || !(list->empty() || list->is_homogeneous<toml::table>())) {
      return Error(node.source(), where, "must be a list of tables, such as [{...}, {...}]");
    }
    for (size_t i = 0; i < list->size(); ++i) {
      ATOLL_RETURN_IF_ERROR(Read(*list->get_as<toml::table>(i), absl::StrCat(where, "[", i, "]."),
                                 message->GetReflection()->AddMessage(message, &field)));
    }
    return absl::OkStatus();
  }

  // The only lists are those of whole numbers and of text; one text may stand without brackets.
  absl::Status SetValues(const toml::node& node, const std::string& where,
                         const FieldDescriptor& field, Message* message) {
    const auto& reflection = *message->GetReflection();
    const toml::array* list = node.as_array();
    const bool texts = field.cpp_type() == FieldDescriptor::CPPTYPE_STRING;
    if (const auto* text = node.as_string(); texts && text != nullptr) {
      reflection.AddString(message, &field, text->get());
      return absl::OkStatus();
    }
    if (list == nullptr || !(list->empty() || (texts ? list->is_homogeneous<std::string>()
                                                     : list->is_homogeneous<int64_t>()))) {
      return Error(node.source(), where,
                   texts ? "must be a list of texts, such as [\"a\", \"b\"]"
                         : "must be a list of whole numbers, such as [2, 1]");
    }
    for (const toml::node& value : *list) {
      if (texts) {
        reflection.AddString(message, &field, value.as_string()->get());
      } else {
        reflection.AddInt64(message, &field, value.as_integer()->get());
      }
    }
    return absl::OkStatus();
  }

  absl::Status SetEnum(const toml::node& node, const std::string& where,
                       const FieldDescriptor& field, Message* message) {
    const std::vector<std::string> names = EnumNames(*field.enum_type());
    const auto* text = node.as_string();
    if (text == nullptr) {
      return Error(node.source(), where,
                   absl::StrCat("must be one of \"", absl::StrJoin(names, "\", \""), "\""));
    }
    const auto found = std::find(names.begin(), names.end(), text->get());
    if (found == names.end()) {
      return Error(
          node.source(), where,
          absl::StrCat("\"", text->get(), "\" is not a choice; ", Suggestion(text->get(), names)));
    }
    const int index = 1 + static_cast<int>(found - names.begin());
    message->GetReflection()->SetEnum(message, &field, field.enum_type()->value(index));
    return absl::OkStatus();
  }

  const std::string& path_;
  std::map<std::string, int>& lines_;
};

}  // namespace

namespace {

// toml++ makes a table of each part of a dotted key, and goes through them by recursion.
absl::Status CheckKeys(const std::string& path, absl::string_view text) {
  constexpr int kPartsMax = 1000;
  int line = 1, dots = 0;
  for (const char c : text) {
    const bool of_key = c == '.' || c == '-' || c == '_' || absl::ascii_isalnum(c);
    dots = of_key ? dots + (c == '.') : 0;
    line += c == '\n';
    if (dots < kPartsMax) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(path, ":", line, ": a key has more than ", kPartsMax, " parts"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status TomlMessage::Read(absl::string_view text, Message* message) {
  ATOLL_RETURN_IF_ERROR(CheckKeys(path_, text));
  const toml::parse_result parsed = toml::parse(std::string_view(text.data(), text.size()));
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return absl::InvalidArgumentError(absl::StrCat(
        path_, ":", error.source().begin.line, ": not TOML: ", std::string(error.description())));
  }
  return Reader(path_, lines_).Read(parsed.table(), "", message);
}

absl::Status TomlMessage::Locate(const absl::Status& status) const {
  if (status.ok()) return status;
  const std::string message(status.message());
  const std::string field = message.substr(0, message.find_first_of(" :"));
  const auto line = lines_.find(field);
  if (line == lines_.end()) return Annotate(status, path_);
  return Annotate(status, absl::StrCat(path_, ":", line->second));
}

std::string SettingKey(const std::string& setting) { return setting.substr(0, setting.find('=')); }

absl::Status ReadSetting(absl::string_view origin, const std::string& setting, Message* message) {
  const std::string name = absl::StrCat(origin, setting);
  const std::string key = SettingKey(setting);
  if (key.empty() || key.size() == setting.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": write KEY=VALUE, such as outer.momentum=0.9"));
  }
  // A line's end would begin another setting.
  if (std::any_of(setting.begin(), setting.end(),
                  [](unsigned char c) { return absl::ascii_iscntrl(c); })) {
    return absl::InvalidArgumentError(absl::StrCat(
        origin, absl::CEscape(setting), ": has a control character; give one setting at a time"));
  }
  const std::string value = setting.substr(key.size() + 1);
  TomlMessage reader(name);
  const std::unique_ptr<Message> as_toml(message->New()), as_text(message->New());
  as_toml->CopyFrom(*message);
  const absl::Status status = reader.Read(absl::StrCat(key, " = ", value, "\n"), as_toml.get());
  if (status.ok()) {
    message->CopyFrom(*as_toml);
    return status;
  }
  as_text->CopyFrom(*message);
  const std::string quoted = absl::StrCat(key, " = \"", absl::CEscape(value), "\"\n");
  const absl::Status text_status = reader.Read(quoted, as_text.get());
  if (text_status.ok()) {
    message->CopyFrom(*as_text);
    return text_status;
  }
  // A bare word is no TOML, but what is wrong with it is that the field is of another type.
  absl::string_view why =
      absl::StrContains(status.message(), "not TOML") ? text_status.message() : status.message();
  absl::ConsumePrefix(&why, absl::StrCat(name, ":1: "));
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", why));
}

}  // namespace atl
