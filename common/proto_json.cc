#include "common/proto_json.h"

#include <google/protobuf/util/json_util.h>

#include "common/check.h"

namespace atl {
namespace {

std::string ToJson(const google::protobuf::Message& message, bool whitespace) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = whitespace;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
  ATOLL_CHECK(status.ok(), status.ToString());  // only messages with Any fields can fail
  return text;
}

}  // namespace

std::string Json(const google::protobuf::Message& message) { return ToJson(message, true); }
std::string CompactJson(const google::protobuf::Message& message) { return ToJson(message, false); }

}  // namespace atl
