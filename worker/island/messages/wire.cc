#include "worker/island/messages/wire.h"

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

absl::StatusOr<GroupFrame> ParseGroupFrame(absl::string_view bytes) {
  return ParseAs<v1::GroupFrame, GroupFrame>(bytes, "GroupFrame");
}

absl::StatusOr<ChunkHeader> ParseChunkHeader(absl::string_view bytes, int64_t payload_bytes) {
  if (payload_bytes < 4 || payload_bytes % 4 != 0 || payload_bytes > 4 * kChunkElements) {
    return absl::InvalidArgumentError(absl::StrCat("a chunk of ", payload_bytes, " bytes"));
  }
  return ParseAs<v1::ChunkHeader, ChunkHeader>(bytes, "ChunkHeader");
}

std::string SerializeTensorHeader(const TensorMessage& message) {
  v1::TensorHeader header;
  if (const auto* votes = std::get_if<VoteTag>(&message.tag)) {
    header.mutable_votes()->set_step(votes->step);
    header.mutable_votes()->set_sender(votes->sender);
    header.mutable_votes()->set_commits(votes->commits);
  } else {
    const auto& tag = std::get<MessageTag>(message.tag);
    v1::StageMessage* const part = header.mutable_part();
    part->set_step(tag.step);
    part->set_replica(tag.replica);
    part->set_stage(tag.stage);
    part->set_rank(tag.rank);
    part->set_micro_batch(tag.micro_batch);
    part->set_chunk(tag.chunk);
    part->set_chunks(tag.chunks);
    part->set_gradient(tag.gradient);
  }
  header.set_from(message.from);
  header.set_to(message.to);
  header.set_element_bytes(static_cast<int32_t>(GetElementSize(message.dtype)));
  header.set_epoch(message.epoch);
  return header.SerializeAsString();
}

absl::StatusOr<TensorMessage> ParseTensorHeader(absl::string_view bytes) {
  v1::TensorHeader header;
  if (!header.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("not a TensorHeader");
  }
  TensorMessage message;
  if (header.has_votes()) {
    const v1::CommitVotes& votes = header.votes();
    message.tag = VoteTag{votes.step(), votes.sender(), votes.commits()};
  } else if (header.has_part()) {
    const v1::StageMessage& part = header.part();
    message.tag = MessageTag{part.step(),        part.replica(), part.stage(),  part.rank(),
                             part.micro_batch(), part.chunk(),   part.chunks(), part.gradient()};
  } else {
    return absl::InvalidArgumentError("a TensorHeader of nothing");
  }
  message.from = header.from();
  message.to = header.to();
  message.epoch = header.epoch();
  for (const DType dtype : {DType::kBfloat16, DType::kFloat32, DType::kFloat64}) {
    message.dtype = dtype;
    if (GetElementSize(dtype) == header.element_bytes()) return message;
  }
  return absl::InvalidArgumentError(absl::StrCat("elements of ", header.element_bytes(), " bytes"));
}

void SetStatus(const absl::Status& status, GroupReply* reply) {
  reply->code = static_cast<int32_t>(status.code());
  reply->message = std::string(status.message().substr(0, kErrorBytesMax));
}

absl::Status StatusFromReply(const GroupReply& reply) {
  return absl::Status(static_cast<absl::StatusCode>(reply.code), reply.message);
}

namespace {

struct Describer {
  std::string operator()(const ConfigureCall&) const { return "set up the plan"; }
  std::string operator()(const FetchCall&) const { return "fetch layers"; }
  std::string operator()(const DropSurplusCall&) const { return "drop surplus layers"; }
  std::string operator()(const StepCall& call) const { return absl::StrCat("step ", call.number); }
  std::string operator()(const EvaluateCall&) const { return "validate"; }
  std::string operator()(const ReferenceCall&) const { return "find references of pairs"; }
  std::string operator()(const GetLayerCall& call) const {
    return absl::StrCat("send ", ToString(call.shard));
  }
  std::string operator()(const SetStepsCall&) const { return "set the optimizer's step"; }
  std::string operator()(const TraceCall&) const {
    return "report the times of the step's operations";
  }
  std::string operator()(const ClockCall&) const { return "report the time"; }
  std::string operator()(const TakeOverCall&) const { return "report its control state"; }
  std::string operator()(const SnapshotCall&) const { return "copy what it holds"; }
  std::string operator()(const AdditionCall& call) const {
    return call.add ? "adopt a version" : "make room for a version";
  }
  std::string operator()(const DrainCall&) const { return "agree on the newest step"; }
  std::string operator()(const OuterLayoutCall&) const {
    return "fetch what it is to push and pull";
  }
  std::string operator()(const CaptureCall&) const { return "copy what it is to push"; }
  std::string operator()(const CaptureDelta&) const { return "make a pseudo-gradient"; }
  std::string operator()(const ApplyCall&) const { return "adopt a version"; }
  std::string operator()(const FinishCall&) const { return "end the adoption of a version"; }
  std::string operator()(const PutBaseInCall&) const { return "put theta_base in"; }
  std::string operator()(const PutBackCall&) const { return "put its parameters back"; }
  std::string operator()(const InitialWeightsCall&) const { return "make the initial weights"; }
  std::string operator()(const FetchTablesCall&) const { return "fetch its copy of the table"; }
  std::string operator()(const SaveCall&) const { return "save what it owns"; }
  template <class NoReply>
  std::string operator()(const NoReply&) const {
    return "a message";
  }
};

}  // namespace

std::string Describe(const GroupFrame& call) { return std::visit(Describer(), call.body); }

}  // namespace atl::worker
