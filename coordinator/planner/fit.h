// Why a model fits nowhere, and what would. Internal to the planner.

#ifndef ATOLL_COORDINATOR_PLANNER_FIT_H_
#define ATOLL_COORDINATOR_PLANNER_FIT_H_

#include "absl/status/status.h"
#include "coordinator/planner/layout.h"

namespace atl::plan {

// Call when no layout fits. Names the device that lacks most and how much: its share of the whole
// model if all devices held one replica together, or the largest layer if that alone is too much;
// and what would do: more devices, fewer bytes of state per parameter, a smaller micro-batch, more
// tensor parallelism. `last`: what the last layout tried was refused for.
absl::Status ExplainNoFit(const Cluster& cluster, const Costs& costs, const Job& job,
                          const absl::Status& last);

// INVALID_ARGUMENT where no layout of this cluster can be as the job fixes it: too few devices,
// layers or micro-batches, or no such schedule. Names the keys of [layout].
absl::Status CheckConstraints(const Cluster& cluster, const Costs& costs, const Job& job);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_FIT_H_
