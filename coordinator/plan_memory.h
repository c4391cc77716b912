// What a plan's devices will have taken once they are set up, from what workers have measured of
// the model's layers and from the programs: the number that a worker's own counters are compared
// with. The search for plans reserves more or less the same in a simpler way (planner/costs.h);
// this follows what worker/model/stage.h and worker/pipeline/device.h take, tensor by tensor, and
// tests/island/memory_test.cc holds the two together.

#ifndef ATOLL_COORDINATOR_PLAN_MEMORY_H_
#define ATOLL_COORDINATOR_PLAN_MEMORY_H_

#include "common/protocol/island_plan.h"
#include "coordinator/planning.h"

namespace atl {

// Writes memory_peak_bytes of the programs whose devices have a profile of this degree of tensor
// parallelism; leaves the others as they are. RESOURCE_EXHAUSTED: a device has less than that.
absl::Status PredictMemory(const PlanRequest& request, IslandPlan* plan);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLAN_MEMORY_H_
