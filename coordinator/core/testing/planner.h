// A planner for tests: one stage for each worker's first device, in the order of the workers, as
// many as there are layers. Its predicted step is 900 ms over the number of stages, times
// `slowness`.

#ifndef ATOLL_COORDINATOR_CORE_TESTING_PLANNER_H_
#define ATOLL_COORDINATOR_CORE_TESTING_PLANNER_H_

#include "coordinator/core/core.h"

namespace atl::testing {

// Pipelines of the workers in their order, so many as the batch has sequences for; a stage a
// worker.
IslandPlan TestPlan(const MakePlan& query, double slowness = 1, int32_t replicas = 1);

}  // namespace atl::testing

#endif  // ATOLL_COORDINATOR_CORE_TESTING_PLANNER_H_
