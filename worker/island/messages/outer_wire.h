// Encoding of the calls that move what is exchanged with the parameter servers.

#ifndef ATOLL_WORKER_ISLAND_MESSAGES_OUTER_WIRE_H_
#define ATOLL_WORKER_ISLAND_MESSAGES_OUTER_WIRE_H_

#include <string>
#include <vector>

#include "proto/group.pb.h"
#include "worker/core/actions.h"
#include "worker/runtime/outer_state.h"

namespace atl::worker {

// Where these elements of what a member is to keep come from; the member itself: its own, before.
struct OuterSource {
  NodeId from;
  int32_t layer = 0;
  ElementRange range;

  bool operator==(const OuterSource&) const = default;
};

// What a member is to keep from now on.
struct OuterOrder {
  OuterLayout layout;
  OuterTag tag;
  Encoding encoding = Encoding::kFloat32;  // of the captured
  std::vector<ShardPlacement> shards;      // where that is quantised
  std::vector<OuterSource> sources;        // of all its own parts; empty: there is nothing yet
};

// What a member keeps.
struct OuterHoldings {
  OuterTag tag;
  LayerParts parts;
  Encoding encoding = Encoding::kFloat32;
  std::vector<ShardPlacement> shards;
};

// What becomes of what APPLY brings: it becomes the parameters, is added to them, becomes what
// Engine::Add is to add, or does not reach the devices.
enum class OuterTarget { kParameters, kAdded, kAddition, kNothing };

void ToWire(const ShardPlacement& shard, v1::ShardCut* out);
std::vector<ShardPlacement> ShardsFrom(const v1::OuterCall& call);
void ToWire(const OuterOrder& order, v1::OuterCall* out);
OuterOrder OrderFrom(const v1::OuterCall& call);
void ToWire(const CaptureDelta& command, v1::OuterCall* out);
CaptureDelta CaptureFrom(const v1::OuterCall& call);
void ToWire(const OuterHoldings& held, v1::OuterHeld* out);
OuterHoldings FromWire(const v1::OuterHeld& held);
void ToWire(const OuterTag& tag, v1::OuterTag* out);
OuterTag FromWire(const v1::OuterTag& tag);

void ToWire(const StartPull& pull, v1::TransferCall* out);
StartPull PullFrom(const v1::TransferCall& call);
void ToWire(const PushShards& push, v1::TransferCall* out);
PushShards PushFrom(const v1::TransferCall& call);
void ToWire(const PushShardDone& done, v1::TransferCall* out);
PushShardDone PushDoneFrom(const v1::TransferCall& call);

// What can be checked without knowing the job.
absl::Status Check(const v1::OuterCall& call);
absl::Status Check(const v1::OuterHeld& held);
absl::Status Check(const v1::TransferCall& call);

// "make a pseudo-gradient"
std::string Describe(const v1::OuterCall& call);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_MESSAGES_OUTER_WIRE_H_
