// Messages as JSON, against protobuf's own printer.

#include "common/proto_json.h"

#include <google/protobuf/util/json_util.h>

#include <catch2/catch.hpp>
#include <limits>
#include <nlohmann/json.hpp>

#include "proto/control.pb.h"
#include "proto/coordinator.pb.h"

namespace atl {
namespace {

std::string ByLibrary(const google::protobuf::Message& message, bool whitespace) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = whitespace;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  REQUIRE(google::protobuf::util::MessageToJsonString(message, &text, options).ok());
  return text;
}

// But for the order of fields, which is ours to choose.
void CheckSame(const google::protobuf::Message& message) {
  for (const bool whitespace : {true, false}) {
    const std::string ours = whitespace ? Json(message) : CompactJson(message);
    const std::string theirs = ByLibrary(message, whitespace);
    CHECK(ours.size() == theirs.size());
    CHECK((nlohmann::json::parse(ours) == nlohmann::json::parse(theirs)));
  }
}

// Every field set, lists with two elements, down to some depth.
void Fill(google::protobuf::Message* message, int depth) {
  using google::protobuf::FieldDescriptor;
  const auto& type = *message->GetDescriptor();
  const auto& r = *message->GetReflection();
  for (int f = 0; f < type.field_count(); ++f) {
    const FieldDescriptor* field = type.field(f);
    for (int i = 0; i < (field->is_repeated() ? 2 : 1); ++i) {
      const bool add = field->is_repeated();
      switch (field->cpp_type()) {
        case FieldDescriptor::CPPTYPE_INT32:
          add ? r.AddInt32(message, field, -7 - i) : r.SetInt32(message, field, -7);
          break;
        case FieldDescriptor::CPPTYPE_UINT32:
          add ? r.AddUInt32(message, field, 7) : r.SetUInt32(message, field, 4'000'000'000U);
          break;
        case FieldDescriptor::CPPTYPE_INT64:
          add ? r.AddInt64(message, field, i) : r.SetInt64(message, field, -(int64_t{1} << 60));
          break;
        case FieldDescriptor::CPPTYPE_UINT64:
          add ? r.AddUInt64(message, field, i) : r.SetUInt64(message, field, ~uint64_t{0});
          break;
        case FieldDescriptor::CPPTYPE_DOUBLE:
          add ? r.AddDouble(message, field, 0.1 * i) : r.SetDouble(message, field, 1.0 / 3);
          break;
        case FieldDescriptor::CPPTYPE_FLOAT:
          add ? r.AddFloat(message, field, 0.1F) : r.SetFloat(message, field, 1.0F / 3);
          break;
        case FieldDescriptor::CPPTYPE_BOOL:
          add ? r.AddBool(message, field, true) : r.SetBool(message, field, true);
          break;
        case FieldDescriptor::CPPTYPE_ENUM:
          add ? r.AddEnumValue(message, field, 1) : r.SetEnumValue(message, field, 1);
          break;
        case FieldDescriptor::CPPTYPE_STRING:
          add ? r.AddString(message, field, "plain") : r.SetString(message, field, "a <b> \"c\"");
          break;
        case FieldDescriptor::CPPTYPE_MESSAGE:
          if (depth == 0) break;
          Fill(add ? r.AddMessage(message, field) : r.MutableMessage(message, field), depth - 1);
          break;
      }
    }
  }
}

TEST_CASE("json_of_empty_messages_is_that_of_protobufs_printer") {
  CheckSame(v1::ClusterStatus());
  CheckSame(v1::Job());
  CheckSame(v1::FromWorker());
}

TEST_CASE("json_of_filled_messages_is_that_of_protobufs_printer") {
  v1::ClusterStatus status;
  Fill(&status, 4);
  CheckSame(status);
  v1::Job job;
  Fill(&job, 4);
  CheckSame(job);
  v1::ToWorker order;
  Fill(&order, 5);
  CheckSame(order);
}

TEST_CASE("json_of_texts_and_numbers_at_their_limits_is_that_of_protobufs_printer") {
  v1::LogLine line;
  line.set_text("tab\t, line\n, \\ \x01 \x7f \xc3\xa4 \xe2\x80\xa8 \xf0\x9f\x8c\x8a </script>");
  CheckSame(line);
  v1::JobSummary job;
  for (const double value :
       {0.0, -0.0, 1e-300, 1e300, 123456789.0, 0.1 + 0.2, std::numeric_limits<double>::quiet_NaN(),
        std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    job.set_tokens_per_s(value);
    CheckSame(job);
  }
  job.set_state(static_cast<v1::JobState>(99));
  CheckSame(job);
}

TEST_CASE("json_nested_without_end_is_refused_whatever_stands_around_it") {
  constexpr size_t kDeep = 200'000;
  const std::string lists = std::string(kDeep, '[') + std::string(kDeep, ']');
  for (const std::string& text : {lists, R"({"schema_version": 1, "name": )" + lists + "}",
                                  R"({"schema_version": )" + lists + "}"}) {
    v1::JobSpec spec;
    CHECK(absl::IsInvalidArgument(ReadJson(text, &spec)));
  }
  v1::JobSpec spec;
  CHECK(ReadJson(R"({"schema_version": 1, "name": "lm", "model": {"hidden": 8}})", &spec).ok());
  CHECK(spec.name() == "lm");
}

}  // namespace
}  // namespace atl
