// The one way in which commands print for programs (`-o json`, `-o yaml`), and in which they report
// what has failed.
//
// A document is an object whose first field is schema_version, kOutputSchemaVersion; a later
// version may add fields, and changes the number where a field changes its meaning. A message's
// fields have the names of the .proto files; what is absent is null.

#ifndef ATOLL_CLI_TEXT_OUTPUT_H_
#define ATOLL_CLI_TEXT_OUTPUT_H_

#include <google/protobuf/message.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/string_view.h"
#include "common/status.h"

namespace atl::cli {

// kWide: tables with further columns, which are not cut to the terminal.
enum class OutputFormat { kText, kWide, kJson, kYaml };

// How the process prints; kText at first.
void SetOutputFormat(OutputFormat format);
bool IsWide();

// A JSON object as a document: JSON as it stands, or YAML.
std::string Document(absl::string_view object);
std::string Document(const google::protobuf::Message& message);

// Likewise, of a stream of documents or a short answer: JSON on one line; YAML after "---".
std::string DocumentLine(absl::string_view object);
std::string DocumentLine(const google::protobuf::Message& message);
using DocumentField = std::pair<const char*, std::variant<std::string, int64_t>>;
std::string DocumentLine(std::initializer_list<DocumentField> fields);

// Reports on standard error what has failed, for programs as a document with `error`: its code and
// message. Returns `exit_code`.
int Fail(const absl::Status& status, int exit_code = 1);
// 0 where the status is OK; otherwise as above.
int ExitCode(const absl::Status& status);
// Reports wrong usage; returns 2.
int FailUsage(absl::string_view what);

}  // namespace atl::cli

#endif  // ATOLL_CLI_TEXT_OUTPUT_H_
