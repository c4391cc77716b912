// A plan for an island that is like another one of its job, or for a loss of workers that is like
// another loss. Jobs of many islands have them of like workers: one is searched for, and what was
// found is checked by the measurements of each other one, which takes a third of a search's time or
// less.

#ifndef ATOLL_COORDINATOR_PLANNING_LIKE_PLAN_H_
#define ATOLL_COORDINATOR_PLANNING_LIKE_PLAN_H_

#include "absl/status/statusor.h"
#include "common/protocol/island_plan.h"
#include "coordinator/planning/request.h"

namespace atl {

// Returns whether the two requests are of one job and differ in names and noise alone: members in
// the same order have the same devices, their layers' times are within 5% of each other, the links
// between them within 25%, sites separate them alike, and they hold the same layers. Both are first
// plans, or neither is, and the job pins none.
bool AreAlike(const PlanRequest& a, const PlanRequest& b);

// `plan`, which PlanIsland made of `other`, with the members of `request` in the assignments of
// those of `other`, and with times, programs and memory by the measurements of `request`. An error:
// it does not fit, or a step takes over 5% longer than in `plan`, which is what another plan has to
// gain to be worth a change. REQUIRES: AreAlike(request, other).
absl::StatusOr<IslandPlan> PlanLike(const PlanRequest& request, const PlanRequest& other,
                                    const IslandPlan& plan);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLANNING_LIKE_PLAN_H_
