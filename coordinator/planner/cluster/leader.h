// The node that leads an island takes part in its plans: layouts without it are no candidates.
// Internal to the planner.

#ifndef ATOLL_COORDINATOR_PLANNER_CLUSTER_LEADER_H_
#define ATOLL_COORDINATOR_PLANNER_CLUSTER_LEADER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/planner/candidates.h"

namespace atl::plan {

// Returns whether a stage is on a device of the cluster's leader. True for all layouts where none
// is named.
bool UsesLeader(const Cluster& cluster, const Layout& layout);

// Empty: it is not known.
std::string GetLeaderSite(const Cluster& cluster);

// Replaces the set whose loss costs least by the estimate by one of the leader's tensor-parallel
// sets, of a few unlike ones. Cuts the replica again and shares micro-batches anew. The error says
// why that is impossible; the candidate is as it was then.
absl::Status BringInLeader(const Cluster& cluster, const Costs& costs, const Job& job,
                           const std::vector<EntityPool>& pools, Candidate& candidate);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_CLUSTER_LEADER_H_
