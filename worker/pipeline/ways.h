// How messages go between two devices of an island, and which groups are NCCL's. Pure: every worker
// comes to the same answer from the plan.

#ifndef ATOLL_WORKER_PIPELINE_WAYS_H_
#define ATOLL_WORKER_PIPELINE_WAYS_H_

#include <string>
#include <vector>

#include "common/protocol/island_plan.h"

namespace atl::worker {

enum class WayKind {
  kWithin,  // two devices of one worker: its own business
  kNccl,    // from GPU to GPU
  kLink,    // over the peer link, by way of host memory
};

struct Way {
  WayKind kind = WayKind::kLink;
  std::string reason;  // "the sites north and south"
};

// REQUIRES: members of the plan own both devices.
Way WayBetween(const IslandPlan& plan, const std::string& from, const std::string& to);

// Whether NCCL reduces among these devices: their members have one version of it, and are one
// worker or of one known site.
bool SharesNccl(const IslandPlan& plan, const std::vector<std::string>& devices);

// From one device to another in the plan, both ways.
struct StageLink {
  std::string from, to;

  auto operator<=>(const StageLink&) const = default;
};
// In order, each once.
std::vector<StageLink> StageLinksOf(const IslandPlan& plan);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_WAYS_H_
