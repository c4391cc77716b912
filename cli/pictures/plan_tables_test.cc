#include "cli/pictures/plan_tables.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "coordinator/plan_io/cluster_file.h"
#include "coordinator/plan_io/testing/two_sites.h"
#include "coordinator/planner/testing/models.h"

namespace atl::cli {
namespace {

TEST_CASE("A plan is shown as a table, a trace and a picture") {
  const auto spec = ParseClusterToml(kTwoSites, "cluster.toml");
  REQUIRE(spec.ok());
  const auto cluster = ToCluster(*spec);
  REQUIRE(cluster.ok());
  const plan::Costs costs(*plan::FindModel("gpt2"), {}, {});
  const auto plan = plan::PlanJob(*cluster, costs, {.global_batch = 16}, {});
  REQUIRE(plan.ok());
  const std::string table = RenderIslands({{"", *cluster, *plan}});
  CHECK_THAT(table, Catch::Contains("a0") && Catch::Contains("alternatives") &&
                        Catch::Contains(plan->reason));
  const auto trace = nlohmann::json::parse(RenderTrace({{"", *cluster, *plan}}));
  size_t operations = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["cat"] != "work") continue;
    CHECK(event["dur"].get<double>() >= 0);
    ++operations;
  }
  size_t expected = 0;
  for (const plan::ReplicaOutcome& kind : plan->outcome.kinds) {
    for (const auto& ops : kind.found.schedule.device_ops) expected += ops.size();
    expected += kind.problem.chunks.size();
  }
  CHECK(operations == expected);  // and one optimizer step per stage
  const std::string svg = RenderSvg({{"", *cluster, *plan}});
  CHECK_THAT(svg, Catch::StartsWith("<svg") && Catch::EndsWith("</svg>\n"));
}

TEST_CASE("A V of two stages per device is shown once per device") {
  plan::Cluster cluster;
  cluster.types = {*plan::FindDeviceType("a100-80")};
  for (int d = 0; d < 4; ++d) {
    cluster.devices.push_back({"d" + std::to_string(d), "n", "site", 0});
  }
  const plan::Costs costs(*plan::FindModel("gpt2-large"), {}, {});
  const plan::Job job{.global_batch = 8};
  plan::Plan plan;
  plan.layout.replicas.resize(1);
  plan.layout.replicas[0].micro_batches = 8;
  for (int d = 0; d < 4; ++d) plan.layout.replicas[0].stages.push_back({{d}, 0, 0});
  REQUIRE(plan::CutReplica(cluster, costs, 1, plan.layout.replicas[0]).ok());
  REQUIRE(plan::Reshape(cluster, costs, plan::Shape::kVShaped, plan.layout));
  auto outcome = plan::EvaluateLayout(cluster, costs, plan.layout, {});
  REQUIRE(outcome.ok());
  plan.outcome = *std::move(outcome);
  const std::string table = RenderIslands({{"", cluster, plan}});
  CHECK_THAT(table, Catch::Contains("two halves in a V") && Catch::Contains("0,7") &&
                        Catch::Contains("3,4"));
  CHECK_THAT(RenderSvg({{"", cluster, plan}}), Catch::Contains("fill-opacity"));
}

}  // namespace
}  // namespace atl::cli
