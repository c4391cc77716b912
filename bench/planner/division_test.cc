#include "bench/planner/division.h"

#include <catch2/catch.hpp>
#include <numeric>

namespace atl::bench {
namespace {

// JEEVES, figure 4: 96 layers on 4 stages. Uniform stages of 24 layers need 5 slots at the first,
// 120 layer-activations; 18/26/26/26 needs 104.
TEST_CASE("JEEVES: 96 layers on 4 stages fit into 104 layer-activations at full speed") {
  DivisionProblem problem;
  problem.layers = 96;
  problem.memory_layers.assign(4, 104);
  problem.micro_batches = 32;
  problem.forward_s = 1;
  problem.backward_s = 2;
  // A round trip of just under five beats of the slowest stage.
  problem.transfer_s = {0, 46, 0};
  const std::vector<int> uniform = {24, 24, 24, 24};
  const std::vector<int> published = {18, 26, 26, 26};
  CHECK(104 / 24 == 4);
  CHECK(104 / 18 == 5);
  CHECK(DivisionSeconds(problem, published) < DivisionSeconds(problem, uniform));
  const std::vector<int> ours = DivideLayers(problem);
  CHECK(std::accumulate(ours.begin(), ours.end(), 0) == 96);
  CHECK(DivisionSeconds(problem, ours) <= DivisionSeconds(problem, published));
  CHECK(104 / ours[0] >= 5);
  // More room is never worse.
  problem.memory_layers.assign(4, 120);
  CHECK(DivisionSeconds(problem, DivideLayers(problem)) <=
        DivisionSeconds({96, {104, 104, 104, 104}, 32, 1, 2, {0, 46, 0}}, ours));
}

}  // namespace
}  // namespace atl::bench
