#include "coordinator/planner/groups/stage_mapping.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "coordinator/planner/testing/random_groups.h"

namespace atl::plan {
namespace {

// All pipelines of any members, in any order, with any cuts.
class BruteForce {
 public:
  BruteForce(const OrderProblem& problem, int layers, const MappingOptions& options)
      : problem_(problem), layers_(layers), options_(options) {
    for (const OrderGroup& group : problem.groups) left_.push_back(group.members);
    mapping_.cuts = {0};
    Extend();
  }

  double seconds() const { return best_s_; }

 private:
  void Extend() {
    const int stages = static_cast<int>(mapping_.groups.size());
    if (mapping_.cuts.back() == layers_) {
      if (options_.stages > 0 && stages != options_.stages) return;
      best_s_ = std::min(best_s_, MappingSeconds(problem_, mapping_, options_));
      return;
    }
    for (size_t g = 0; g < left_.size(); ++g) {
      if (left_[g] == 0) continue;
      --left_[g];
      mapping_.groups.push_back(static_cast<int>(g));
      for (int cut = mapping_.cuts.back() + 1; cut <= layers_; ++cut) {
        mapping_.cuts.push_back(cut);
        Extend();
        mapping_.cuts.pop_back();
      }
      mapping_.groups.pop_back();
      ++left_[g];
    }
  }

  const OrderProblem& problem_;
  const int layers_;
  const MappingOptions& options_;
  std::vector<int> left_;
  GroupOrder mapping_;
  double best_s_ = INFINITY;
};

// The same, over links of two edges.
OrderProblem OverTwoEdges(OrderProblem problem) {
  for (std::vector<Link>& links : problem.links) {
    for (Link& link : links) {
      link = *MakeLink({{link.latency_s, link.bytes_per_s}, {2e-4, 3e7}}, {});
    }
  }
  return problem;
}

TEST_CASE("branch_and_bound_finds_the_best_of_all_pipelines") {
  const uint64_t seed = GENERATE(range(0, 40));
  INFO("seed " << seed);
  const int layers = 4 + static_cast<int>(seed % 3);
  const RandomGroups random(seed, 1 + static_cast<int>(seed % 3), layers);
  const OrderProblem problem = seed % 2 == 0 ? random.problem() : OverTwoEdges(random.problem());
  MappingOptions options;
  options.max_nodes = 1'000'000;
  options.stages = seed % 5 == 0 ? 2 : 0;
  options.in_flight = seed % 7 == 0 ? 1 : 1 << 30;
  const double best_s = BruteForce(problem, layers, options).seconds();
  const auto found = MapStages(problem, nullptr, options);
  REQUIRE(found.has_value() == std::isfinite(best_s));
  if (!found) return;
  CHECK(found->seconds == Approx(best_s));
  CHECK(MappingSeconds(problem, *found, options) == Approx(best_s));
}

TEST_CASE("mapping_is_never_worse_than_the_known_one_and_keeps_it_without_nodes") {
  const RandomGroups random(7, 5, 16);
  MappingOptions none;
  none.max_nodes = 0;
  MappingOptions some;
  const auto found = MapStages(random.problem(), nullptr, some);
  REQUIRE(found.has_value());
  const auto kept = MapStages(random.problem(), &*found, none);
  REQUIRE(kept.has_value());
  CHECK(kept->groups == found->groups);
  CHECK(kept->cuts == found->cuts);
  CHECK(kept->nodes == 0);
}

}  // namespace
}  // namespace atl::plan
