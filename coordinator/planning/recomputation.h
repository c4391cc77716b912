// Which blocks a plan recomputes, and whether it has to. Internal to planning.

#ifndef ATOLL_COORDINATOR_PLANNING_RECOMPUTATION_H_
#define ATOLL_COORDINATOR_PLANNING_RECOMPUTATION_H_

#include <optional>
#include <string>

#include "coordinator/planning/request.h"

namespace atl {

// The same, but that stages may recompute where they lack memory.
PlanningInput WithRecomputation(PlanningInput input);

// Gives devices as much memory, at least, as the plan's programs take by the search's account.
// REQUIRES: a layout of that plan.
void MakeRoom(const plan::Layout& layout, const IslandPlan& island, PlanningInput& input);

bool Recomputes(const IslandPlan& island);

// The search keeps memory back for what it does not know of. `island` is `plan` in runtime form:
// the same plan with the fewest recomputed blocks that its programs' exact memory requires, if
// these are fewer and its step is no longer. Its programs are new ones: their memory is to be
// computed again.
std::optional<plan::Plan> RecomputingLess(const PlanRequest& request, PlanningInput input,
                                          IslandPlan island, plan::Plan plan);

// "; stage 0 recomputes 3 of 6 blocks (w1/0 would take 412.0 MiB of 400.0 MiB without)" for its
// reason; empty where it recomputes nothing.
std::string WhatRecomputes(const PlanRequest& request, const IslandPlan& island);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLANNING_RECOMPUTATION_H_
