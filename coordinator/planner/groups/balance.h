// Cutting a model into stages: load balancing of a pipeline.

#ifndef ATOLL_COORDINATOR_PLANNER_GROUPS_BALANCE_H_
#define ATOLL_COORDINATOR_PLANNER_GROUPS_BALANCE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/cluster/costs.h"

namespace atl::plan {

// The devices of one stage, and how many micro-batches it must hold at once.
struct StageSlot {
  const StageCosts* costs = nullptr;
  int64_t memory_bytes = 0;
  int in_flight = 1;
};

// Cuts c_0 = 0 <= c_1 <= ... <= c_P = layers that minimise the slowest stage's F + B + W, each
// stage within its memory: state + in_flight * stash, after the least saving that this takes
// (StageCosts::LeastSaving), whose time counts. A stage may be left empty, unless `every_stage`.
// Exact for stages in this order (bisection on the bottleneck; taking as many layers as fit from
// the front is then optimal). The error names the stage and says how much memory is missing.
absl::StatusOr<std::vector<int>> BalanceLayers(const std::vector<StageSlot>& stages,
                                               bool every_stage = false);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_GROUPS_BALANCE_H_
