#include "coordinator/planner/losses.h"

#include <catch2/catch.hpp>
#include <set>

namespace atl::plan {
namespace {

// `nodes` nodes of four A100 at site a, as many of four H20 at site b.
Cluster TwoKinds(int nodes) {
  Cluster cluster;
  cluster.types = {*FindDeviceType("a100-80"), *FindDeviceType("h20")};
  for (int n = 0; n < 2 * nodes; ++n) {
    for (int d = 0; d < 4; ++d) {
      const std::string node = "n" + std::to_string(n);
      cluster.devices.push_back(
          {node + "." + std::to_string(d), node, n < nodes ? "a" : "b", n < nodes ? 0 : 1});
    }
  }
  return cluster;
}

const LossOptions kQuick{.losses = 2, .search = {.simulate = 1, .restarts = 4, .improvements = 0}};

const Job kJob{.global_batch = 32, .micro_batches = {2}, .tensor_parallel = {1, 2}};

TEST_CASE("Losses of up to k nodes have plans that use the survivors only") {
  const Cluster cluster = TwoKinds(3);
  const Costs costs(*FindModel("gpt3-1.3b"), {}, {});
  const LossPlans plans(cluster, costs, kJob, kQuick);
  CHECK(plans.classes() == 2);
  CHECK(plans.plans() ==
        2 + 3);  // one of either kind; two of the first, one each, two of the other
  const std::vector<std::set<NodeName>> losses = {{{"a", "n0"}},
                                                  {{"a", "n2"}},
                                                  {{"b", "n4"}},
                                                  {{"a", "n1"}, {"b", "n5"}},
                                                  {{"a", "n0"}, {"a", "n2"}}};
  for (const auto& lost : losses) {
    const auto ready = plans.Find(lost);
    INFO(ready.status().ToString());
    REQUIRE(ready.ok());
    std::set<int> used;
    for (const Replica& replica : ready->layout.replicas) {
      std::set<int> own;  // a device may hold two stages of one replica
      for (const Stage& stage : replica.stages) {
        const Device& first = cluster.devices[stage.devices[0]];
        for (const int d : stage.devices) {
          const Device& device = cluster.devices[d];
          CHECK(lost.count({device.site, device.node}) == 0);
          CHECK(device.node == first.node);
          CHECK(device.type == first.type);
          CHECK(used.count(d) == 0);
          own.insert(d);
        }
      }
      used.insert(own.begin(), own.end());
    }
    // Played on the cluster as it then is, it takes as long as predicted.
    const auto outcome = EvaluateLayout(cluster, costs, kJob, ready->layout, {4, 1});
    REQUIRE(outcome.ok());
    CHECK(outcome->step_s == Approx(ready->plan->outcome.step_s));
  }
}

TEST_CASE("Losses without a plan are told apart") {
  const Cluster cluster = TwoKinds(2);
  const Costs costs(*FindModel("gpt3-1.3b"), {}, {});
  LossOptions options = kQuick;
  options.losses = 1;
  const LossPlans plans(cluster, costs, kJob, options);
  CHECK_THAT(std::string(plans.Find({{"a", "n9"}}).status().message()), Catch::Contains("n9"));
  CHECK_THAT(std::string(plans.Find({{"a", "n0"}, {"a", "n1"}}).status().message()),
             Catch::Contains("2 nodes"));
  options.plans = 1;
  CHECK(LossPlans(cluster, costs, kJob, options).plans() == 1);
}

TEST_CASE("Nodes whose wires differ much are not alike, nodes whose wires differ little are") {
  Cluster cluster = TwoKinds(2);
  const Costs costs(*FindModel("gpt3-1.3b"), {}, {});
  LossOptions options = kQuick;
  options.losses = 1;
  const int count = static_cast<int>(cluster.devices.size());
  for (int a = 0; a < count; ++a) {
    for (int b = 0; b < count; ++b) {
      if (cluster.devices[a].node == cluster.devices[b].node) continue;
      const double noise = 1 + 0.02 * ((a * 7 + b * 3) % 5);
      const bool poor = cluster.devices[a].node == "n0" || cluster.devices[b].node == "n0";
      cluster.measured[{a, b}] = {1e-4 * noise, (poor ? 1e8 : 1e9) * noise};
    }
  }
  CHECK(LossPlans(cluster, costs, kJob, options).classes() == 3);
}

}  // namespace
}  // namespace atl::plan
