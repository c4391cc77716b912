// Auxiliary memory of a plan, beyond what its devices' backends count: messages in flight,
// reductions in progress, what owners keep for the exchange with the parameter servers, the
// leader's checkpoint. Internal to planning.
//
// The bounds are the runtime's. Both ends of a stage link (point-to-point channel) hold messages
// for at most as many micro-batches as the stage before it has in flight (its slots): a message
// that waits to be received, or for its acknowledgement, keeps its slot. One more, since the
// acknowledgement takes a latency. The windows and queues of the peer link
// (common/net/peer/peer_link.h) are larger, so that they never delay a step. Reductions: of each
// layer, the other members' numbers of the part that a member adds up, and then the sums that it
// receives; all together a gradient's bytes times (n - 1) / n among n workers. A GPU has blocks for
// messages: four out, and in four, or one for each that comes straight
// (worker/pipeline/device_transport.h).

#ifndef ATOLL_COORDINATOR_PLANNING_AUXILIARY_MEMORY_H_
#define ATOLL_COORDINATOR_PLANNING_AUXILIARY_MEMORY_H_

#include <cstdint>
#include <string>

#include "coordinator/planning/request.h"

namespace atl {

// Null: the request has no such device.
const DeviceInfo* FindDeviceInfo(const PlanRequest& request, const std::string& device);

// Returns whether a device's memory is its host's.
bool IsHost(const DeviceInfo& device);

struct AuxiliaryMemory {
  int64_t device_bytes = 0;  // of a device with memory of its own
  int64_t host_bytes = 0;
};
// Without the two below. REQUIRES: the plan names the device.
AuxiliaryMemory EstimateAuxiliaryMemory(const PlanRequest& request, const IslandPlan& plan,
                                        const std::string& device);

// Returns the least bytes that each worker keeps of the model outside of its devices, whatever the
// plan is (HostCopies), without saved states in memory, which it goes on without.
int64_t LeastOwnerBytes(const PlanRequest& request);
// RESOURCE_EXHAUSTED names a worker whose devices have memory of their own, and whose host has too
// little for its messages and for what it owns. Hosts that do not say what they have are taken to
// have enough.
absl::Status CheckHosts(const PlanRequest& request, const IslandPlan& plan);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLANNING_AUXILIARY_MEMORY_H_
