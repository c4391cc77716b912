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

// Every replica's own devices in another order, with other cuts; some may be left idle. Replicas
// that are alike are searched once. Nothing for layouts that are not plainly placed.

// In the order that SpanTrain's search (OrderByBeam) likes best, of groups of equal devices.
// Nothing if there is but one group, or if nothing changes.
std::optional<Layout> Reordered(const Cluster& cluster, const Costs& costs, const Layout& layout);

// By branch and bound (MapStages). Where memory does not allow 1F1B's micro-batches in flight, half
// as many, and so on. options.max_nodes is of all searches together. Nothing where no mapping was
// found.
std::optional<Layout> Mapped(const Cluster& cluster, const Costs& costs, const Layout& layout,
                             const MappingOptions& options);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_GROUPS_REFINE_H_
