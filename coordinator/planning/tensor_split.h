// How devices of different speed share layers. Internal to planning.

#ifndef ATOLL_COORDINATOR_PLANNING_TENSOR_SPLIT_H_
#define ATOLL_COORDINATOR_PLANNING_TENSOR_SPLIT_H_

#include "absl/status/status.h"
#include "coordinator/planning/request.h"

namespace atl {

// `plan` shares its layers evenly. Where the job says how, it shares them so, faster devices with
// larger shares; or else in whole heads such that the slowest device of a group with unlike ones is
// done as soon as can be, where that makes the step shorter (AutoHet: the same cut points in all
// replicas). Says so in the plan's reason. An error: what the job says does not fit.
absl::Status ShareUnevenly(const PlanRequest& request, const PlanningInput& input,
                           plan::Plan& plan);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLANNING_TENSOR_SPLIT_H_
