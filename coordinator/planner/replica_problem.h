// One replica of a layout as the simulator's problem. Internal to the planner.

#ifndef ATOLL_COORDINATOR_PLANNER_REPLICA_PROBLEM_H_
#define ATOLL_COORDINATOR_PLANNER_REPLICA_PROBLEM_H_

#include <map>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "coordinator/planner/layout.h"

namespace atl::plan {

sim::Nanos ToNanos(double seconds);

// How many replicas' messages share what lies between sites.
struct WireSharing {
  std::map<std::pair<std::string, std::string>, int> sites;  // boundaries from site to site
  std::map<int, int> trunks;                                 // replicas that use a trunk
};
WireSharing SharingOf(const Cluster& cluster, const Layout& layout);

// The wire that a boundary's messages find: its part of what is shared; within a node as many times
// as wide as there are members, since a boundary activation is the same on all members of a
// tensor-parallel set, which send a part each.
Wire StageWire(const Cluster& cluster, const WireSharing& sharing, const Stage& from,
               const Stage& to);

// One micro-batch's message from a stage to the next.
int64_t BoundaryBytes(const Costs& costs, const Stage& stage, int micro_batch);

// Equal for replicas that the simulator cannot tell apart.
std::string KindOf(const Cluster& cluster, const Layout& layout, const WireSharing& sharing,
                   const Replica& replica);

// Fills the problem, the memory and the optimizer's times. The error says which device lacks how
// much memory for one micro-batch.
absl::StatusOr<ReplicaOutcome> BuildReplica(const Cluster& cluster, const Costs& costs,
                                            const Layout& layout, const WireSharing& sharing,
                                            const Replica& replica);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_REPLICA_PROBLEM_H_
