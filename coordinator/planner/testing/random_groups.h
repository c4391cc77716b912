// Random problems of pipelines, for tests.

#ifndef ATOLL_COORDINATOR_PLANNER_TESTING_RANDOM_GROUPS_H_
#define ATOLL_COORDINATOR_PLANNER_TESTING_RANDOM_GROUPS_H_

#include <cmath>
#include <list>

#include "common/rng.h"
#include "coordinator/planner/groups/group_order.h"

namespace atl::plan {

// Groups of random speed, size and memory on random links.
class RandomGroups {
 public:
  RandomGroups(uint64_t seed, int groups, int layers) {
    Rng rng(seed);
    Model model{"random", {}};
    for (int l = 0; l < layers; ++l) {
      const double flops = 1e12 * (0.5 + rng.Uniform());
      model.layers.push_back({"l", 1'000'000, flops,
                              1'000'000 + static_cast<int64_t>(rng.Below(1'000'000)),
                              static_cast<int64_t>(rng.Below(2'000'000))});
      problem_.out_bytes.push_back(static_cast<double>(model.layers.back().out_bytes));
    }
    const Costs costs(model, {}, {});
    problem_.micro_batches = 1 + static_cast<int>(rng.Below(12));
    for (int g = 0; g < groups; ++g) {
      const double speed = 50e12 * (1 + 4 * rng.Uniform());
      costs_.push_back(costs.For({"d", speed, 1e14, 1, 1e10}, 1, 1));
      const int64_t memory = rng.Chance(0.3) ? 40'000'000 : 1'000'000'000;
      problem_.groups.push_back({1 + static_cast<int>(rng.Below(3)), &costs_.back(), memory});
    }
    for (int a = 0; a < groups; ++a) {
      problem_.links.emplace_back();
      for (int b = 0; b < groups; ++b) {
        problem_.links.back().push_back({1e-3 * rng.Uniform(), 1e7 * std::pow(100, rng.Uniform())});
      }
    }
  }

  const OrderProblem& problem() const { return problem_; }

 private:
  std::list<StageCosts> costs_;  // the problem points into it
  OrderProblem problem_;
};

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_TESTING_RANDOM_GROUPS_H_
