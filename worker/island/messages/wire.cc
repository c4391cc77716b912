#include "worker/island/messages/wire.h"

#include <google/protobuf/descriptor.h>

#include "absl/strings/str_replace.h"
#include "proto/control.fields.h"
#include "proto/group.fields.h"
#include "proto/group.pb.h"
#include "proto/job.fields.h"
#include "proto/trace.fields.h"

namespace atl::worker {
namespace {

template <class Message, class Plain>
std::string SerializeAs(const Plain& plain) {
  Message message;
  MessageWriter encoder;
  Fields(encoder, plain, message);
  return message.SerializeAsString();
}

template <class Message, class Plain>
absl::StatusOr<Plain> ParseAs(absl::string_view bytes, absl::string_view name) {
  Message message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError(absl::StrCat("not a ", name));
  }
  Plain plain;
  MessageReader decoder;
  Fields(decoder, plain, message);
  ATOLL_RETURN_IF_ERROR(decoder.status());
  return plain;
}

constexpr size_t kErrorBytesMax = 4096;

}  // namespace

std::string Serialize(const GroupFrame& frame) { return SerializeAs<v1::GroupFrame>(frame); }
std::string Serialize(const ChunkHeader& header) { return SerializeAs<v1::ChunkHeader>(header); }
std::string Serialize(const TensorHeader& header) { return SerializeAs<v1::TensorHeader>(header); }

absl::StatusOr<GroupFrame> ParseGroupFrame(absl::string_view bytes) {
  return ParseAs<v1::GroupFrame, GroupFrame>(bytes, "GroupFrame");
}

absl::StatusOr<ChunkHeader> ParseChunkHeader(absl::string_view bytes, int64_t payload_bytes) {
  if (payload_bytes < 4 || payload_bytes % 4 != 0 || payload_bytes > 4 * kChunkElements) {
    return absl::InvalidArgumentError(absl::StrCat("a chunk of ", payload_bytes, " bytes"));
  }
  return ParseAs<v1::ChunkHeader, ChunkHeader>(bytes, "ChunkHeader");
}

absl::StatusOr<TensorHeader> ParseTensorHeader(absl::string_view bytes) {
  return ParseAs<v1::TensorHeader, TensorHeader>(bytes, "TensorHeader");
}

void SetStatus(const absl::Status& status, GroupReply* reply) {
  reply->code = static_cast<int32_t>(status.code());
  reply->message = std::string(status.message().substr(0, kErrorBytesMax));
}

absl::Status StatusFromReply(const GroupReply& reply) {
  return absl::Status(static_cast<absl::StatusCode>(reply.code), reply.message);
}

std::string Describe(const GroupFrame& call) {
  if (const auto* step = BodyIf<StepCall>(call)) return absl::StrCat("step ", step->number);
  if (const auto* get = BodyIf<GetLayerCall>(call)) {
    return absl::StrCat("get ", ToString(get->shard));
  }
  const google::protobuf::OneofDescriptor* const bodies =
      v1::GroupFrame::descriptor()->oneof_decl(0);
  return absl::StrReplaceAll(bodies->field(static_cast<int>(call.body.index()))->name(),
                             {{"_", " "}});
}

}  // namespace atl::worker
