// Which entities make up which replica, improved one by one by the cost model: for clusters of so
// many unlike devices that counting types says little. Internal to the planner.

#ifndef ATOLL_COORDINATOR_PLANNER_GROUPS_REFINE_H_
#define ATOLL_COORDINATOR_PLANNER_GROUPS_REFINE_H_

#include <functional>

#include "coordinator/planner/candidates.h"

namespace atl::plan {

// Climbs from a plainly placed candidate: takes entities out of replicas, puts idle ones in, moves
// and exchanges them between replicas and within one; every change is cut anew, gets its share of
// the micro-batches and is kept where the rank falls. Deterministic.
void Refine(const Cluster& cluster, const Costs& costs, const Job& job,
            const std::function<bool()>& stop, Candidate& candidate);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_GROUPS_REFINE_H_
