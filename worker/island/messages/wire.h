// What travels between the workers of an island (proto/group.proto), checked and as plain structs.

#ifndef ATOLL_WORKER_ISLAND_MESSAGES_WIRE_H_
#define ATOLL_WORKER_ISLAND_MESSAGES_WIRE_H_

#include <string>
#include <vector>

#include "common/ids.h"
#include "common/protocol/control.h"
#include "common/status.h"
#include "proto/group.pb.h"
#include "worker/core/actions.h"
#include "worker/island/shared_link_scheduler.h"
#include "worker/pipeline/engine.h"

namespace atl::worker {

using CallId = uint64_t;  // of one caller's

inline constexpr int64_t kFrameBytesMax = int64_t{1} << 20;
inline constexpr int64_t kChunkElements = int64_t{1} << 20;  // of layer state in one message

// Parses and checks all that can be checked without knowing the job.
absl::StatusOr<v1::GroupFrame> ParseGroupFrame(absl::string_view bytes);
absl::StatusOr<v1::ChunkHeader> ParseChunkHeader(absl::string_view bytes, int64_t payload_bytes);

struct TensorMessage {
  MessageTag tag;
  std::string from, to;
  DType dtype = DType::kFloat32;
  int64_t epoch = 0;  // attempt at setting up the plan
};
std::string SerializeTensorHeader(const TensorMessage& message);
absl::StatusOr<TensorMessage> ParseTensorHeader(absl::string_view bytes);

void ToWire(const LayerShard& shard, v1::ShardName* out);
LayerShard FromWire(const v1::ShardName& shard);
void ToWire(const HeldLayer& held, v1::HeldShard* out);
HeldLayer FromWire(const v1::HeldShard& held);
void ToWire(const std::vector<PositionRange>& ranges, v1::StepCall* out);
std::vector<PositionRange> RangesFromStepCall(const v1::StepCall& step);
void ToWire(const StageLinkState& stage_link, v1::StageLink* out);
StageLinkState FromWire(const v1::StageLink& stage_link);
void ToWire(const DeviceMemory& memory, v1::DeviceMemory* out);
DeviceMemoryState FromWire(const v1::DeviceMemory& memory);
void ToWire(const LayerShard& shard, Range elements, v1::SavedShard* out);
void ToWire(const StepSums& step, v1::StepSums* out);
StepSums FromWire(const v1::StepSums& step);
void ToWire(const StateStamp& stamp, v1::StateStamp* out);
StateStamp FromWire(const v1::StateStamp& stamp);
void ToWire(const SharedLinkCall& call, v1::SharedLinkCall* out);
SharedLinkCall FromWire(const v1::SharedLinkCall& call);
void ToWire(const Leadership& known, v1::Leadership* out);
Leadership FromWire(const v1::Leadership& known);
void ToWire(const absl::Status& status, v1::GroupReply* out);
absl::Status StatusFromReply(const v1::GroupReply& reply);

// "layer 3", "rank 1 of layer 3".
std::string ToString(const LayerShard& shard);
// What a call requests: "step 12", "set layer, rank 1 of layer 3".
std::string Describe(const v1::GroupFrame& call);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_MESSAGES_WIRE_H_
