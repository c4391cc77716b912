#include "coordinator/planner/planner.h"

#include <catch2/catch.hpp>
#include <set>

#include "common/rng.h"

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

const Options kQuick{.simulate = 3, .restarts = 8, .improvements = 4};

Costs CostsOf(const char* model) { return Costs(*FindModel(model), {}, {}); }

// Every layer once per replica, every device once, all samples, memory kept.
void CheckPlan(const Cluster& cluster, const Costs& costs, const Job& job, const Plan& plan) {
  std::set<int> used;
  int micro_batches = 0;
  for (const Replica& replica : plan.layout.replicas) {
    int next_layer = 0;
    micro_batches += replica.micro_batches;
    for (const Stage& stage : replica.stages) {
      CHECK(stage.first_layer == next_layer);
      CHECK(stage.last_layer > stage.first_layer);
      next_layer = stage.last_layer;
      CHECK(static_cast<int>(stage.devices.size()) == plan.layout.tensor_parallel);
      for (const int d : stage.devices) {
        CHECK(used.insert(d).second);
        CHECK(cluster.devices[d].node == cluster.devices[stage.devices[0]].node);
        CHECK(cluster.devices[d].type == cluster.devices[stage.devices[0]].type);
      }
    }
    CHECK(next_layer == static_cast<int>(costs.model().layers.size()));
  }
  CHECK(micro_batches * plan.layout.micro_batch >= job.global_batch);
  for (const ReplicaOutcome& kind : plan.outcome.kinds) {
    CHECK(kind.found.result.verdict == sim::Verdict::kFits);
    for (size_t s = 0; s < kind.state_bytes.size(); ++s) {
      CHECK(kind.state_bytes[s] + kind.found.result.devices[s].peak_bytes <= kind.memory_bytes[s]);
    }
  }
  CHECK(plan.outcome.step_s >= plan.outcome.bound_s);
  CHECK(plan.outcome.step_s >= plan.cluster_bound_s);
  CHECK_FALSE(plan.reason.empty());
}

TEST_CASE("Any mix of devices gets a valid plan, the same one every time") {
  const uint64_t seed = GENERATE(range(0, 12));
  INFO("seed " << seed);
  Rng rng(seed);
  Cluster cluster;
  const char* types[] = {"a100-80", "h800", "h20", "rtx4090", "v100"};
  for (uint64_t t = 0; t < 1 + rng.Below(3); ++t) {
    Add(cluster, types[(seed + t) % 5], 2 + static_cast<int>(rng.Below(7)),
        rng.Chance(0.5) ? "a" : "b");
  }
  const Costs costs = CostsOf("gpt3-1.3b");
  const Job job{.global_batch = 32, .micro_batches = {1, 2}};
  const auto plan = PlanJob(cluster, costs, job, kQuick);
  INFO(plan.status().ToString());
  REQUIRE(plan.ok());
  CheckPlan(cluster, costs, job, *plan);
  const auto again = PlanJob(cluster, costs, job, kQuick);
  CHECK(again->outcome.step_s == plan->outcome.step_s);
  CHECK(again->reason == plan->reason);
}

TEST_CASE("No baseline beats the plan") {
  Cluster cluster;
  Add(cluster, "a100-80", 4, "a");
  Add(cluster, "h800", 2, "a");
  const Costs costs = CostsOf("llama-7b");
  const Job job{.global_batch = 64, .micro_batches = {1, 2}};
  const auto plan = PlanJob(cluster, costs, job, {});
  INFO(plan.status().ToString());
  REQUIRE(plan.ok());
  CheckPlan(cluster, costs, job, *plan);
  int compared = 0;
  for (const std::string& name : BaselineNames()) {
    const auto layout = Baseline(cluster, costs, job, name);
    if (!layout.ok()) continue;
    const auto outcome = EvaluateLayout(cluster, costs, job, *layout, {});
    REQUIRE(outcome.ok());
    INFO(name << " " << Describe(*layout));
    CHECK(plan->outcome.step_s <= outcome->step_s);
    ++compared;
  }
  CHECK(compared >= 1);
}

TEST_CASE("Slow wires between sites: activations cross rather than gradients") {
  Cluster cluster;
  Add(cluster, "a100-80", 8, "a");
  Add(cluster, "a100-80", 8, "b");
  cluster.wan_wire = {20e-3, 1.25e9};
  const Costs costs = CostsOf("llama-7b");
  const Job job{.global_batch = 128, .micro_batches = {1, 2}};
  const auto plan = PlanJob(cluster, costs, job, kQuick);
  REQUIRE(plan.ok());
  CheckPlan(cluster, costs, job, *plan);
  for (const Replica& replica : plan->layout.replicas) {
    std::set<std::string> sites;
    for (const Stage& stage : replica.stages) sites.insert(cluster.devices[stage.devices[0]].site);
    CHECK(sites.size() == 2);
  }
}

TEST_CASE("What cannot fit is refused with what would help") {
  Cluster cluster;
  Add(cluster, "p4", 2, "a");
  const auto plan = PlanJob(cluster, CostsOf("llama-70b"), {.global_batch = 8}, kQuick);
  CHECK(plan.status().code() == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(std::string(plan.status().message()), Catch::Contains("Add devices"));
  const auto none = PlanJob(cluster, CostsOf("gpt2"), {.global_batch = 0}, kQuick);
  CHECK_THAT(std::string(none.status().message()), Catch::Contains("global_batch = 0"));
}

TEST_CASE("Measured times replace the roofline, and the plan says where its times are from") {
  Cluster cluster;
  Add(cluster, "a100-80", 2, "a");
  const Model model = *FindModel("gpt2");
  const Job job{.global_batch = 8, .micro_batches = {2}, .tensor_parallel = {1}};
  const auto roofline = PlanJob(cluster, Costs(model, {}, {}), job, kQuick);
  REQUIRE(roofline.ok());
  CHECK(roofline->times_from == "roofline at 45% of the datasheet");
  ProfileTable profile;
  profile[{"a100-80", 1, 2}].assign(model.layers.size(), {0.01, 0.01, 0.01, 0.001});
  const auto measured = PlanJob(cluster, Costs(model, profile, {}), job, kQuick);
  REQUIRE(measured.ok());
  CHECK(measured->times_from == "measured");
  CHECK(measured->outcome.step_s > 0.03 * 14);  // two devices share 4 * 14 * 30 ms at best
  profile.clear();
  profile[{"a100-80", 1, 1}].assign(model.layers.size(), {0.005, 0.005, 0.005, 0.001});
  const auto between = PlanJob(cluster, Costs(model, profile, {}), job, kQuick);
  CHECK(between->times_from == "interpolated between measured sizes");
  CHECK(between->outcome.step_s == Approx(measured->outcome.step_s));
}

TEST_CASE("Plans for the loss of a node use the other nodes only") {
  Cluster cluster;
  Add(cluster, "a100-80", 24, "a");
  const Costs costs = CostsOf("gpt3-1.3b");
  const Job job{.global_batch = 32, .micro_batches = {2}, .tensor_parallel = {1}};
  const auto plans = PlansForLoss(cluster, costs, job, kQuick);
  REQUIRE(plans.size() == 3);
  for (const auto& [node, plan] : plans) {
    INFO(node);
    REQUIRE(plan.ok());
    const Cluster rest = WithoutNode(cluster, "a", node.substr(2));
    CHECK(rest.devices.size() == 16);
    CheckPlan(rest, costs, job, *plan);
  }
}

}  // namespace
}  // namespace atl::plan
