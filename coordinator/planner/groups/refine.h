// Makes candidates better one by one, before any is simulated. Internal to the planner.

#ifndef ATOLL_COORDINATOR_PLANNER_GROUPS_REFINE_H_
#define ATOLL_COORDINATOR_PLANNER_GROUPS_REFINE_H_

#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/planner/candidates.h"
#include "coordinator/planner/groups/stage_mapping.h"

namespace atl::plan {

// Which entities make up which replica, by the cost model: for clusters of so many unlike devices
// that counting types says little. Climbs from a plainly placed candidate: takes entities out of
// replicas, puts idle ones in, moves and exchanges them between replicas and within one; every
// change is cut anew, gets its share of the micro-batches and is kept where the rank falls.
// Deterministic.
void Refine(const Cluster& cluster, const Costs& costs, const Job& job,
            const std::function<bool()>& stop, Candidate& candidate);

// Layouts without the node that leads the island are no candidates: replaces the set whose loss
// costs least by the estimate by one of the leader's tensor-parallel sets, of a few unlike ones.
// Cuts the replica again and shares micro-batches anew. The error says why that is impossible; the
// candidate is as it was then.
absl::Status BringInLeader(const Cluster& cluster, const Costs& costs,
                           const std::vector<EntityPool>& pools, Candidate& candidate);

struct MappedLayout {
  Layout layout;
  int64_t nodes = 0;  // of all searches
};

// Every replica's own devices in the best order, with the best cuts; some may be left idle.
// options.max_nodes is of all searches together.
// Replicas that are alike are searched once. Where memory does not allow 1F1B's micro-batches in
// flight, half as many, and so on. Nothing for layouts that are not plainly placed, or where no
// mapping was found.
std::optional<MappedLayout> Mapped(const Cluster& cluster, const Costs& costs, const Layout& layout,
                                   const MappingOptions& options);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_GROUPS_REFINE_H_
