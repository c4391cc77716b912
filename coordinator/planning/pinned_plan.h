// A plan that the job brings along (layout.plan), checked before it runs. Internal to planning.

#ifndef ATOLL_COORDINATOR_PLANNING_PINNED_PLAN_H_
#define ATOLL_COORDINATOR_PLANNING_PINNED_PLAN_H_

#include "absl/status/statusor.h"
#include "coordinator/planning/request.h"

namespace atl {

// The plan's replicas, stages, devices, micro-batches, recomputed layers and tensor-parallel split
// ratios, with the order of operations that layout.schedule names, else that of its programs, else
// the best one found. `input` may recompute afterwards as the plan does. The error begins with
// "layout.plan" and says what cannot run: an unknown device, layers that are missing or doubled,
// too little memory, another batch, no assignment for the leader, a schedule that does not suit the
// stages, operations that are missing or would wait for each other.
absl::StatusOr<plan::Plan> PinnedPlan(const PlanRequest& request, PlanningInput& input);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLANNING_PINNED_PLAN_H_
