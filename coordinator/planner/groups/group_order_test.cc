#include "coordinator/planner/groups/group_order.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "coordinator/planner/testing/random_groups.h"

namespace atl::plan {
namespace {

// All orders and all cuts; a group without layers is idle.
double BruteForce(const OrderProblem& problem, int layers) {
  const size_t n = problem.groups.size();
  GroupOrder order;
  order.groups.resize(n);
  std::iota(order.groups.begin(), order.groups.end(), 0);
  double best = INFINITY;
  do {
    order.cuts.assign(n + 1, layers);
    order.cuts[0] = 0;
    const auto cut = [&](const auto& self, size_t at) -> void {
      if (at == n) {
        best = std::min(best, OrderSeconds(problem, order));
        return;
      }
      for (int c = order.cuts[at - 1]; c <= layers; ++c) {
        order.cuts[at] = c;
        self(self, at + 1);
      }
    };
    cut(cut, 1);
  } while (std::next_permutation(order.groups.begin(), order.groups.end()));
  return best;
}

TEST_CASE("Beam search comes within 10% of the best of all orders and cuts, on average within 1%") {
  double excess = 0;
  int compared = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    INFO("seed " << seed);
    const int groups = 1 + static_cast<int>(seed % 4);
    const int layers = 4 + static_cast<int>(seed % 3);
    const RandomGroups random(seed, groups, layers);
    const double best = BruteForce(random.problem(), layers);
    const auto beam = OrderByBeam(random.problem());
    CHECK(beam.has_value() == std::isfinite(best));
    if (!beam.has_value()) continue;
    CHECK(OrderSeconds(random.problem(), *beam) == Approx(beam->seconds));
    CHECK(beam->seconds >= best * (1 - 1e-9));
    CHECK(beam->seconds <= best * 1.1);
    ++compared;
    excess += beam->seconds / best - 1;
  }
  CHECK(compared >= 12);
  CHECK(excess / compared <= 0.01);
}

TEST_CASE("A group behind a slow link stays idle when it costs more than it gives") {
  Model model{"equal", std::vector<Layer>(8, Layer{"l", 1000, 1e12, 1000, 1'000'000})};
  const Costs costs(model, {}, {});
  const StageCosts device = costs.For({"d", 100e12, 1e14, 1, 1e10}, 1, 1);
  OrderProblem problem;
  problem.micro_batches = 8;
  problem.out_bytes.assign(8, 1e6);
  problem.groups.assign(3, {1, &device, 1 << 30});
  problem.links.assign(3, std::vector<Link>(3, Link{1e-5, 1e9}));
  const auto all = OrderByBeam(problem);
  REQUIRE(all.has_value());
  CHECK(all->groups.size() == 3);
  for (int g = 0; g < 2; ++g) problem.links[2][g] = problem.links[g][2] = {1.0, 1e5};
  const auto order = OrderByBeam(problem);
  REQUIRE(order.has_value());
  CHECK(std::count(order->groups.begin(), order->groups.end(), 2) == 0);
  CHECK(order->groups.size() == 2);
}

TEST_CASE("Equal devices share layers evenly") {
  Model model{"equal", std::vector<Layer>(10, Layer{"l", 1000, 1e12, 1000, 1000})};
  const Costs costs(model, {}, {});
  const StageCosts device = costs.For({"d", 100e12, 1e14, 1, 1e10}, 1, 1);
  const std::vector<int> cuts = SplitEvenly(device, 1, 10, 3);
  CHECK(cuts == std::vector<int>{1, 4, 7, 10});
  CHECK(SplitEvenly(device, 4, 5, 2).back() == 5);
}

}  // namespace
}  // namespace atl::plan
