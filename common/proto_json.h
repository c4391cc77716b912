// protobuf's JSON form, with the field names of the .proto files and every field that is set or has
// no presence. 64-bit
// integers are strings there, as that form prescribes.

#ifndef ATOLL_COMMON_PROTO_JSON_H_
#define ATOLL_COMMON_PROTO_JSON_H_

#include <google/protobuf/message.h>

#include <string>

#include "absl/strings/string_view.h"
#include "common/status.h"

namespace atl {

// How a message or an optional field that is not set is printed.
enum class Absent { kLeftOut, kNull };

// Indented, with an end of line.
std::string Json(const google::protobuf::Message& message, Absent absent = Absent::kLeftOut);
// On one line, without its end.
std::string CompactJson(const google::protobuf::Message& message, Absent absent = Absent::kLeftOut);

// The version of the JSON that `atoll -o json` prints, and the field that it stands in.
inline constexpr int kSchemaVersion = 1;
inline constexpr char kSchemaVersionField[] = "schema_version";

// Reads what `atoll -o json` printed, of this version, or JSON without a version. Fields that the
// message lacks are refused by name.
absl::Status ReadJson(absl::string_view text, google::protobuf::Message* message);

}  // namespace atl

#endif  // ATOLL_COMMON_PROTO_JSON_H_
