// The planner's plan in the form that workers run (common/protocol/island_plan.h).

#ifndef ATOLL_COORDINATOR_PLAN_IO_ISLAND_PLAN_OF_H_
#define ATOLL_COORDINATOR_PLAN_IO_ISLAND_PLAN_OF_H_

#include "common/protocol/island_plan.h"
#include "coordinator/planner/planner.h"

namespace atl {

// Replicas, programs (by CompleteProgram from the simulated order), link orders, times, schedule
// and reason; number and members are the caller's. Stages of a V or interleaved placement appear as
// several stages of one device.
IslandPlan ToIslandPlan(const plan::Cluster& cluster, const plan::Plan& plan);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLAN_IO_ISLAND_PLAN_OF_H_
