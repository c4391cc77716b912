// Where the state of an island lies decides what a new plan costs before its first step: layers
// that a worker held stay, others are transferred over the network first (state resharding). Of
// layouts that differ only in which devices hold which stages, the one that moves least is chosen
// (AutoHet's aim in recoveries; docs/design/planner.md).
//
// Pure.

#ifndef ATOLL_COORDINATOR_PLANNING_STATE_PLACEMENT_H_
#define ATOLL_COORDINATOR_PLANNING_STATE_PLACEMENT_H_

#include "coordinator/planner/planner.h"
#include "coordinator/planning/request.h"

namespace atl {

// Assigns other devices to the plan's stages, its own or idle ones, so that more parameters are
// where request.ran had them, unless the plan's rank gets worse by over 1%. Cuts and micro-batches
// stay the same; the outcome is that of the new assignment, and the reason says what stays.
void KeepStateInPlace(const PlanRequest& request, const PlanningInput& input, plan::Plan& plan);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLANNING_STATE_PLACEMENT_H_
