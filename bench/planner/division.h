// JEEVES's division of layers into stages, for its tables: the product balances by measured layers
// (groups/balance.h).

#ifndef ATOLL_BENCH_PLANNER_DIVISION_H_
#define ATOLL_BENCH_PLANNER_DIVISION_H_

#include <cstdint>
#include <vector>

namespace atl::bench {

// Equal layers over p stages, stage s with memory for memory_layers[s] layer-activations, one slow
// cut. All times in seconds; F and B are per layer.
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

}  // namespace atl::bench

#endif  // ATOLL_BENCH_PLANNER_DIVISION_H_
