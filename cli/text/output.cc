#include "cli/text/output.h"

#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/proto_json.h"

namespace atl::cli {
namespace {

using Json = nlohmann::ordered_json;

OutputFormat output_format = OutputFormat::kText;

// On one line; bytes that are no UTF-8 are replaced.
std::string Dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Block style; scalars and empty values as JSON writes them, which YAML reads alike.
void AppendYaml(const Json& value, int indent, std::string* out) {
  const std::string space(static_cast<size_t>(indent), ' ');
  const auto append = [&](const std::string& head, const Json& item) {
    absl::StrAppend(out, space, head);
    if (!item.is_structured() || item.empty()) {
      absl::StrAppend(out, " ", Dump(item), "\n");
      return;
    }
    *out += '\n';
    AppendYaml(item, indent + 2, out);
  };
  for (const auto& [key, item] : value.items()) append(value.is_array() ? "-" : key + ":", item);
}

// `between`: what stands between the brace and the first field.
std::string AddVersion(absl::string_view object, absl::string_view between) {
  return absl::StrCat("{", between, "\"", kSchemaVersionField, "\":", between.empty() ? "" : " ",
                      kSchemaVersion, object.substr(0, 2) == "{}" ? "" : ",", object.substr(1));
}

std::string Yaml(absl::string_view object) {
  std::string text;
  AppendYaml(Json::parse(AddVersion(object, "")), 0, &text);
  return text;
}

}  // namespace

void SetOutputFormat(OutputFormat format) { output_format = format; }
bool IsWide() { return output_format == OutputFormat::kWide; }

std::string Document(absl::string_view object) {
  return output_format == OutputFormat::kYaml ? Yaml(object) : AddVersion(object, "\n ");
}

std::string Document(const google::protobuf::Message& message) {
  return Document(atl::Json(message, Absent::kNull));
}

std::string DocumentLine(absl::string_view object) {
  return output_format == OutputFormat::kYaml ? absl::StrCat("---\n", Yaml(object))
                                              : absl::StrCat(AddVersion(object, ""), "\n");
}

std::string DocumentLine(const google::protobuf::Message& message) {
  return DocumentLine(CompactJson(message, Absent::kNull));
}

std::string DocumentLine(std::initializer_list<DocumentField> fields) {
  Json object;
  for (const auto& [name, value] : fields) {
    std::visit([&, &name = name](const auto& held) { object[name] = held; }, value);
  }
  return DocumentLine(Dump(object));
}

int Fail(const absl::Status& status, int exit_code) {
  if (output_format == OutputFormat::kJson || output_format == OutputFormat::kYaml) {
    std::cerr << DocumentLine(Dump({{"error",
                                     {{"code", absl::StatusCodeToString(status.code())},
                                      {"message", std::string(status.message())}}}}));
  } else {
    std::cerr << "atoll: " << status.message() << "\n";
  }
  return exit_code;
}

int ExitCode(const absl::Status& status) { return status.ok() ? 0 : Fail(status); }

int FailUsage(absl::string_view what) { return Fail(absl::InvalidArgumentError(what), 2); }

}  // namespace atl::cli
