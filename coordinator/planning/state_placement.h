// Where the state of an island lies decides what a new plan costs before its first step: layers
// that a worker held go on, others travel over the network first (AutoHet's recovery, algorithms.md
// section 4). Of layouts that differ in which devices hold which stages alone, the one is chosen
// that moves least.

#ifndef ATOLL_COORDINATOR_PLANNING_STATE_PLACEMENT_H_
#define ATOLL_COORDINATOR_PLANNING_STATE_PLACEMENT_H_

#include "coordinator/planner/planner.h"
#include "coordinator/planning/request.h"

namespace atl {

// What share of the layout's parameters the workers hold already that are to hold them, by the plan
// that ran last. 0 without one.
double ShareInPlace(const PlanRequest& request, const PlanningInput& input,
                    const plan::Layout& layout);

// The plan with its devices, or others of as many, in the places where more of the state stays,
// unless that makes it worse by over 1%. Its cuts, micro-batches and schedule stay the same.
void KeepStateInPlace(const PlanRequest& request, const PlanningInput& input, plan::Plan& plan);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLANNING_STATE_PLACEMENT_H_
