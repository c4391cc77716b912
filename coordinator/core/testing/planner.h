// A planner for tests: one stage for each worker's first device, in the order of the workers, as
// many as there are layers. Its predicted step is 900 ms over the number of stages, times
// `slowness`.

#ifndef ATOLL_COORDINATOR_CORE_TESTING_PLANNER_H_
#define ATOLL_COORDINATOR_CORE_TESTING_PLANNER_H_

#include "coordinator/core/core.h"

namespace atl::testing {

IslandPlan TestPlan(const MakePlan& ask, double slowness = 1);

}  // namespace atl::testing

#endif  // ATOLL_COORDINATOR_CORE_TESTING_PLANNER_H_
