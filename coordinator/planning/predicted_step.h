// Predicts a step of an island by its plan: the simulator plays the plan's programs, as they are,
// with times and links as they were measured. Compared with a recorded step it shows where an
// island differs from what it was planned for.

#ifndef ATOLL_COORDINATOR_PLANNING_PREDICTED_STEP_H_
#define ATOLL_COORDINATOR_PLANNING_PREDICTED_STEP_H_

#include "absl/status/statusor.h"
#include "common/protocol/step_trace.h"
#include "coordinator/planning/request.h"

namespace atl {

// Pure. All replicas together, from the moment at which all devices begin until the last one has
// taken its optimizer's step. With the request that the plan was made from, the time from a
// device's first operation to its end is at most the plan's own, which is that from step to step.
// An error says which of the plan's devices the request does not know, or why the plan cannot be
// simulated.
absl::StatusOr<StepTrace> PredictStep(const PlanRequest& request, const IslandPlan& plan);

// Estimates the time from step to step by a plan made earlier, on the same footing as a new plan's:
// its own programs, in their order, with what the request says of its devices and links. 0 where
// that cannot be said, because one of its devices is not offered.
int64_t EstimateStepNs(const PlanRequest& request, const IslandPlan& plan);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLANNING_PREDICTED_STEP_H_
