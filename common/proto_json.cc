#include "common/proto_json.h"

#include <google/protobuf/stubs/strutil.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/wrappers.pb.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/bounded_json.h"
#include "common/check.h"

namespace atl {
namespace {

constexpr int kMaxDepth = 100;  // protobuf's own limit

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

bool IsPlain(const std::string& text) {
  for (const char c : text) {
    const bool plain = c >= 0x20 && c < 0x7f && c != '"' && c != '\\' && c != '<' && c != '>';
    if (!plain) return false;
  }
  return true;
}

// Writes what protobuf's own printer writes, which makes other messages of each message first: a
// status of 10,000 members takes it seconds. Without maps and well-known types, which no message
// here has.
class Printer {
 public:
  Printer(bool whitespace, Absent absent, std::string* out)
      : whitespace_(whitespace), absent_(absent), out_(*out) {}

  void Print(const Message& message) {
    const google::protobuf::Descriptor& type = *message.GetDescriptor();
    const Reflection& reflection = *message.GetReflection();
    ATOLL_CHECK(type.well_known_type() == google::protobuf::Descriptor::WELLKNOWNTYPE_UNSPECIFIED,
                type.full_name(), " has a JSON form of its own");
    bool any = false;
    Begin('{');
    for (int f = 0; f < type.field_count(); ++f) {
      const FieldDescriptor& field = *type.field(f);
      const bool is_set = IsSet(message, reflection, field);
      if (!is_set && absent_ == Absent::kLeftOut) continue;
      Next(any);
      absl::StrAppend(&out_, "\"", field.name(), whitespace_ ? "\": " : "\":");
      if (!is_set) {
        out_ += "null";
      } else if (field.is_repeated()) {
        PrintAll(message, reflection, field);
      } else {
        PrintOne(message, reflection, field, -1);
      }
    }
    End(any, '}');
  }

 private:
  // Fields without presence always are.
  static bool IsSet(const Message& message, const Reflection& reflection,
                    const FieldDescriptor& field) {
    ATOLL_CHECK(!field.is_map(), field.full_name(), " is a map");
    if (field.is_repeated()) return true;
    const bool may_lack =
        field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE || field.containing_oneof() != nullptr;
    return !may_lack || reflection.HasField(message, &field);
  }

  void PrintAll(const Message& message, const Reflection& reflection,
                const FieldDescriptor& field) {
    const int count = reflection.FieldSize(message, &field);
    bool any = false;
    Begin('[');
    for (int i = 0; i < count; ++i) {
      Next(any);
      PrintOne(message, reflection, field, i);
    }
    End(any, ']');
  }

  // `i`: -1 where the field is not repeated.
  void PrintOne(const Message& m, const Reflection& r, const FieldDescriptor& field, int i) {
    const FieldDescriptor* f = &field;
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        absl::StrAppend(&out_, i < 0 ? r.GetInt32(m, f) : r.GetRepeatedInt32(m, f, i));
        return;
      case FieldDescriptor::CPPTYPE_UINT32:
        absl::StrAppend(&out_, i < 0 ? r.GetUInt32(m, f) : r.GetRepeatedUInt32(m, f, i));
        return;
      case FieldDescriptor::CPPTYPE_INT64:
        absl::StrAppend(&out_, "\"", i < 0 ? r.GetInt64(m, f) : r.GetRepeatedInt64(m, f, i), "\"");
        return;
      case FieldDescriptor::CPPTYPE_UINT64:
        absl::StrAppend(&out_, "\"", i < 0 ? r.GetUInt64(m, f) : r.GetRepeatedUInt64(m, f, i),
                        "\"");
        return;
      case FieldDescriptor::CPPTYPE_BOOL:
        out_ += (i < 0 ? r.GetBool(m, f) : r.GetRepeatedBool(m, f, i)) ? "true" : "false";
        return;
      case FieldDescriptor::CPPTYPE_DOUBLE: {
        const double value = i < 0 ? r.GetDouble(m, f) : r.GetRepeatedDouble(m, f, i);
        return PrintNumber(value, [&] { return google::protobuf::SimpleDtoa(value); });
      }
      case FieldDescriptor::CPPTYPE_FLOAT: {
        const float value = i < 0 ? r.GetFloat(m, f) : r.GetRepeatedFloat(m, f, i);
        return PrintNumber(value, [&] { return google::protobuf::SimpleFtoa(value); });
      }
      case FieldDescriptor::CPPTYPE_ENUM:
        return PrintEnum(field, i < 0 ? r.GetEnumValue(m, f) : r.GetRepeatedEnumValue(m, f, i));
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return Print(i < 0 ? r.GetMessage(m, f) : r.GetRepeatedMessage(m, f, i));
      case FieldDescriptor::CPPTYPE_STRING: {
        std::string scratch;
        const std::string& text = i < 0 ? r.GetStringReference(m, f, &scratch)
                                        : r.GetRepeatedStringReference(m, f, i, &scratch);
        const bool bytes = field.type() == FieldDescriptor::TYPE_BYTES;
        return PrintText(bytes ? absl::Base64Escape(text) : text);
      }
    }
  }

  template <class Text>
  void PrintNumber(double value, Text text) {
    if (std::isfinite(value)) {
      out_ += value == 0 && !std::signbit(value) ? "0" : text();
    } else {
      out_ += std::isnan(value) ? "\"NaN\"" : value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
    }
  }

  void PrintEnum(const FieldDescriptor& field, int number) {
    const auto* value = field.enum_type()->FindValueByNumber(number);
    if (value == nullptr) return absl::StrAppend(&out_, number);
    absl::StrAppend(&out_, "\"", value->name(), "\"");
  }

  void PrintText(const std::string& text) {
    if (IsPlain(text)) return absl::StrAppend(&out_, "\"", text, "\"");
    google::protobuf::StringValue escaped;
    escaped.set_value(text);
    std::string json;
    const auto status = google::protobuf::util::MessageToJsonString(escaped, &json);
    ATOLL_CHECK(status.ok(), status.ToString());
    out_ += json;
  }

  void Begin(char bracket) {
    out_ += bracket;
    ++depth_;
  }
  void Next(bool& any) {
    if (std::exchange(any, true)) out_ += ',';
    NewLine();
  }
  void End(bool any, char bracket) {
    --depth_;
    if (any) NewLine();
    out_ += bracket;
  }
  void NewLine() {
    if (!whitespace_) return;
    out_ += '\n';
    out_.append(depth_, ' ');
  }

  const bool whitespace_;
  const Absent absent_;
  std::string& out_;
  size_t depth_ = 0;
};

}  // namespace

std::string Json(const Message& message, Absent absent) {
  std::string text;
  Printer(/*whitespace=*/true, absent, &text).Print(message);
  text += '\n';
  return text;
}

std::string CompactJson(const Message& message, Absent absent) {
  std::string text;
  Printer(/*whitespace=*/false, absent, &text).Print(message);
  return text;
}

absl::Status ReadJson(absl::string_view text, Message* message) {
  std::string json(text);
  auto document = ParseBoundedJson<nlohmann::ordered_json>(json, kMaxDepth);
  if (document.is_object() && document.contains(kSchemaVersionField)) {
    if (document[kSchemaVersionField] != kSchemaVersion) {
      return absl::InvalidArgumentError(absl::StrCat(
          kSchemaVersionField, " ", document[kSchemaVersionField].dump(),
          ": this program reads version ", kSchemaVersion, ": print it again with this atoll"));
    }
    document.erase(kSchemaVersionField);
    json = document.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  }
  const auto status = google::protobuf::util::JsonStringToMessage(json, message);
  if (status.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(status.message()));
}

}  // namespace atl
