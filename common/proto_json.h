// protobuf's JSON form, with the field names of the .proto files and every field present. 64-bit
// integers are strings there, as that form prescribes.

#ifndef ATOLL_COMMON_PROTO_JSON_H_
#define ATOLL_COMMON_PROTO_JSON_H_

#include <google/protobuf/message.h>

#include <string>

namespace atl {

// Indented, with an end of line.
std::string Json(const google::protobuf::Message& message);
// On one line, without its end.
std::string CompactJson(const google::protobuf::Message& message);

}  // namespace atl

#endif  // ATOLL_COMMON_PROTO_JSON_H_
