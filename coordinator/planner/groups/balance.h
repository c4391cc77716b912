// Cutting a model into stages: load balancing of a pipeline.

#ifndef ATOLL_COORDINATOR_PLANNER_GROUPS_BALANCE_H_
#define ATOLL_COORDINATOR_PLANNER_GROUPS_BALANCE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/cluster/costs.h"

namespace atl::plan {

// What one stage runs on and how many micro-batches it must hold at once.
struct StageSlot {
  const StageCosts* costs = nullptr;
  int64_t memory_bytes = 0;
  int in_flight = 1;
};

// Cuts c_0 = 0 <= c_1 <= ... <= c_P = layers that minimise the slowest stage's F + B + W, each
// stage within its memory: state + in_flight * stash, after the least saving that this takes
// (StageCosts::LeastSaving), whose time counts. A stage may be left empty,
// unless `every_stage`. Exact for stages
// in this order (bisection on the bottleneck; taking as many layers as fit from the front is then
// optimal). The error names the stage and says how much memory is missing.
absl::StatusOr<std::vector<int>> BalanceLayers(const std::vector<StageSlot>& stages,
                                               bool every_stage = false);

// JEEVES's setting: equal layers over p stages, stage s with memory for memory_layers[s]
// layer-activations, one slow cut. All times in seconds; F and B are per layer.
struct DivisionProblem {
  int layers = 0;
  std::vector<int64_t> memory_layers;
  int micro_batches = 1;
  double forward_s = 0;
  double backward_s = 0;
  std::vector<double> transfer_s;  // c of the cut after each stage, p - 1 of them
};

// T_ideal + T_extra of a division: the compute path, and per stage with K_s slots the rounds that
// memory adds, (ceil(m / K_s) - 1) * max(0, round trip - K_s * slowest stage), the largest of them.
// Infinite if a stage cannot hold one micro-batch.
double DivisionSeconds(const DivisionProblem& problem, const std::vector<int>& layers_of_stage);

// The best division by DivisionSeconds that descent finds (1 or 2 layers between any two stages)
// from the uniform one and from all that give the first stages fewer layers than the rest.
std::vector<int> DivideLayers(const DivisionProblem& problem);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_GROUPS_BALANCE_H_
