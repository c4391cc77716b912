// The search among layouts whose shape the operator has fixed, in part or in whole: stages,
// replicas, tensor parallelism, schedule. Internal to planning.

#ifndef ATOLL_COORDINATOR_PLANNING_FIXED_LAYOUTS_H_
#define ATOLL_COORDINATOR_PLANNING_FIXED_LAYOUTS_H_

#include "absl/status/statusor.h"
#include "common/protocol/job_spec.h"
#include "coordinator/planning/request.h"

namespace atl {

// Whether anything but the extent of the island is fixed.
bool IsFixed(const LayoutSpec& layout);

// Every number of replicas and stages that the constraints allow, pipelines within sites and side
// by side across them, layers and micro-batches shared by speed; the best by the cost model are
// played under the schedule, and the winner's boundaries improved. Only devices are used that some
// layout needs: the fastest, and one of `leader`. The error names the field that nothing can obey.
absl::StatusOr<plan::Plan> PlanFixed(const PlanningInput& input, const LayoutSpec& layout,
                                     const NodeId& leader, const plan::Options& options);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLANNING_FIXED_LAYOUTS_H_
