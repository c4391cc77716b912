// What a step of an island would be like by its plan: the simulator plays the plan's programs, as
// they are, with times and links as they were measured. Beside a recorded step it shows where an
// island differs from what it was planned for.

#ifndef ATOLL_COORDINATOR_PREDICTED_STEP_H_
#define ATOLL_COORDINATOR_PREDICTED_STEP_H_

#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/step_trace.h"
#include "coordinator/core/views.h"
#include "coordinator/planning.h"
#include "coordinator/profile_book.h"

namespace atl {

// Pure. All replicas together, from the moment at which all devices begin until the last one has
// taken its optimizer's step. With the request that the plan was made from, the time from a
// device's first operation to its end is at most the plan's own, which is that from step to step.
// An error says which of the plan's devices the request does not know, or why the plan cannot be
// played.
absl::StatusOr<StepTrace> PredictStep(const PlanRequest& request, const IslandPlan& plan);

// For a plan whose request nobody has any more (the coordinator was started again): from what is
// known now.
PlanRequest RequestFor(const JobView& job, const IslandPlan& plan,
                       const std::vector<MemberView>& members, const ProfileBook& book);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PREDICTED_STEP_H_
