#include "bench/planner/baselines.h"

#include <catch2/catch.hpp>
#include <set>

#include "coordinator/planner/testing/models.h"

namespace atl::plan {
namespace {

// Adds `count` devices of a type, eight to a node.
void Add(Cluster& cluster, const char* type, int count, const std::string& site) {
  cluster.types.push_back(*FindDeviceType(type));
  const int index = static_cast<int>(cluster.types.size()) - 1;
  for (int d = 0; d < count; ++d) {
    const std::string node = site + "-" + type + "-" + std::to_string(d / 8);
    cluster.devices.push_back({node + "-" + std::to_string(d % 8), node, site, index});
  }
}

Costs MakeCosts(const char* model) { return Costs(*FindModel(model), {}, {}); }

TEST_CASE("No baseline beats the plan") {
  Cluster cluster;
  Add(cluster, "a100-80", 4, "a");
  Add(cluster, "h800", 2, "a");
  const Costs costs = MakeCosts("llama-7b");
  const Job job{.global_batch = 64, .micro_batches = {1, 2}};
  const auto plan = PlanJob(cluster, costs, job, {});
  INFO(plan.status().ToString());
  REQUIRE(plan.ok());
  int compared = 0;
  for (const std::string& name : BaselineNames()) {
    const auto layout = Baseline(cluster, costs, job, name);
    if (!layout.ok()) continue;
    const auto outcome = EvaluateLayout(cluster, costs, *layout, {});
    REQUIRE(outcome.ok());
    INFO(name << " " << Describe(*layout));
    CHECK(plan->outcome.step_s <= outcome->step_s);
    ++compared;
  }
  CHECK(compared >= 1);
}

TEST_CASE("Baselines keep their rules") {
  Cluster cluster;
  Add(cluster, "a100-80", 4, "a");
  Add(cluster, "h20", 4, "b");
  const Costs costs = MakeCosts("gpt3-1.3b");
  const Job job{.global_batch = 64, .micro_batches = {1, 2}, .tensor_parallel = {1, 2}};
  const auto layout = [&](const char* name) {
    const auto found = Baseline(cluster, costs, job, name);
    INFO(name << ": " << found.status().ToString());
    REQUIRE(found.ok());
    CHECK_FALSE(found->split_backward);
    return *found;
  };
  for (const Replica& replica : layout("dapple").replicas) {
    std::set<std::string> sites;
    for (const Stage& stage : replica.stages) sites.insert(cluster.devices[stage.devices[0]].site);
    CHECK(sites.size() == 2);
  }
  CHECK(layout("varuna").tensor_parallel == 1);
  CHECK(layout("varuna").schedule == "jeeves");
  CHECK_FALSE(layout("hierarchical").one_ring);
  const auto seconds = [&](const Layout& l) {
    return EvaluateLayout(cluster, costs, l, {})->step_s;
  };
  CHECK(seconds(layout("hierarchical")) < seconds(layout("data-parallel")));
  CHECK(seconds(layout("metis")) <= seconds(layout("megatron")));
  const auto unknown = Baseline(cluster, costs, job, "alpa");
  CHECK_THAT(std::string(unknown.status().message()), Catch::Contains("varuna"));
}

}  // namespace
}  // namespace atl::plan
