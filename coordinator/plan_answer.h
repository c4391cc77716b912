// Answers to requests for plans: the same code for the plans that islands run and for previews.

#ifndef ATOLL_COORDINATOR_PLAN_ANSWER_H_
#define ATOLL_COORDINATOR_PLAN_ANSWER_H_

#include <optional>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/planning/request.h"

namespace atl {

// A plan without the workers that cannot be used, and what `current` takes by the same
// measurements. Job, island and request are the caller's. Takes seconds for hundreds of devices.
PlanMade AnswerPlan(PlanRequest& request, const std::optional<IslandPlan>& current);

// Returns which workers share an island; job and request are the caller's.
WorkersGrouped AnswerGrouping(const PlanRequest& request);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLAN_ANSWER_H_
