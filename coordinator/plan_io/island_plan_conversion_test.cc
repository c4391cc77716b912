#include "coordinator/plan_io/island_plan_conversion.h"

#include <catch2/catch.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/testing/models.h"

namespace atl {
namespace {

TEST_CASE("A plan that runs says which layout it came from") {
  plan::Cluster cluster;
  cluster.types = {*plan::FindDeviceType("a100-80")};
  for (int d = 0; d < 8; ++d) {
    cluster.devices.push_back(
        {absl::StrCat("w", d / 2, "/", d % 2), absl::StrCat("w", d / 2), "site", 0});
  }
  const plan::Costs costs(*plan::FindModel("gpt2-large"), {}, {});
  for (const plan::Shape shape :
       {plan::Shape::kPlain, plan::Shape::kVShaped, plan::Shape::kInterleaved}) {
    plan::Plan plan;
    plan.layout.tensor_parallel = 2;
    plan.layout.micro_batch = 2;
    plan.layout.replicas.resize(2);
    for (int r = 0; r < 2; ++r) {
      plan::Replica& replica = plan.layout.replicas[r];
      replica.micro_batches = 4 + r;
      for (int e = 0; e < 2; ++e) replica.stages.push_back({{4 * r + 2 * e, 4 * r + 2 * e + 1}});
      REQUIRE(plan::CutReplica(cluster, costs, 2, replica).ok());
    }
    if (shape != plan::Shape::kPlain) {
      REQUIRE(plan::Reshape(cluster, costs, shape, plan.layout));
    }
    auto outcome = plan::EvaluateLayout(cluster, costs, plan.layout, {});
    REQUIRE(outcome.ok());
    plan.outcome = *std::move(outcome);
    IslandPlan island = ToIslandPlan(cluster, plan);
    const auto layout = LayoutFromIslandPlan(cluster, costs, island);
    REQUIRE(layout.ok());
    CHECK(layout->shape == shape);
    CHECK(plan::Describe(*layout) == plan::Describe(plan.layout));
    CHECK(ToIslandPlan(cluster, {.layout = *layout, .outcome = plan.outcome}) == island);
    island.replicas[1].micro_batch_sequences = 1;
    CHECK(LayoutFromIslandPlan(cluster, costs, island).status().code() ==
          absl::StatusCode::kUnimplemented);
    island.replicas[0].stages[0].devices[1] = "w9/0";
    CHECK(LayoutFromIslandPlan(cluster, costs, island).status().message() ==
          "nothing is known of w9/0");
  }
}

// Replicas of two stages, the first one in paris, the second one in oslo, 1 MB between them.
plan::Cluster MakeOneLinkCluster(double bytes_per_s) {
  plan::Cluster cluster;
  cluster.types = {*plan::FindDeviceType("a100-80")};
  for (int d = 0; d < 4; ++d) {
    cluster.devices.push_back(
        {absl::StrCat("w", d, "/0"), absl::StrCat("w", d), d % 2 == 0 ? "paris" : "oslo", 0});
  }
  cluster.wan_link = {10e-3, bytes_per_s, {}};
  return cluster;
}

plan::Plan TwoReplicas(const plan::Cluster& cluster, const plan::Costs& costs) {
  plan::Plan plan;
  const int layers = static_cast<int>(costs.model().layers.size());
  for (int r = 0; r < 2; ++r) {
    plan.layout.replicas.push_back(
        {{{{2 * r}, 0, layers / 2}, {{2 * r + 1}, layers / 2, layers}}, 4});
  }
  auto outcome = plan::EvaluateLayout(cluster, costs, plan.layout, {});
  REQUIRE(outcome.ok());
  plan.outcome = *std::move(outcome);
  return plan;
}

TEST_CASE(
    "Replicas that share a link between sites take turns, and their plan says in which order") {
  const plan::Costs costs(*plan::FindModel("gpt2"), {}, {});
  const plan::Cluster slow = MakeOneLinkCluster(10e6);
  IslandPlan island = ToIslandPlan(slow, TwoReplicas(slow, costs));
  island.number = 1;
  for (const plan::Device& device : slow.devices) island.members.push_back({.worker = device.node});
  CHECK(Validate(island, static_cast<int32_t>(costs.model().layers.size()), 8).message() == "");
  REQUIRE(island.link_orders.size() == 2);
  for (const PlanLinkOrder& order : island.link_orders) {
    const bool back = order.from == "oslo";
    CHECK(order.to == (back ? "paris" : "oslo"));
    REQUIRE(order.messages.size() == 8);
    // Equal replicas: in the turn of micro-batches and replicas.
    for (int32_t i = 0; i < 8; ++i) {
      CHECK(order.messages[i] == PlanMessage{i % 2, back ? 1 : 0, i / 2, back});
    }
  }
  // A link that carries a message sooner than it is passed to the next sender has no send order.
  const plan::Cluster fast = MakeOneLinkCluster(10e9);
  CHECK(ToIslandPlan(fast, TwoReplicas(fast, costs)).link_orders.empty());
}

}  // namespace
}  // namespace atl
