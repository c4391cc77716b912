#include "coordinator/planner/islands.h"

#include <catch2/catch.hpp>

namespace atl::plan {
namespace {

// Eight A100 on each of two sites.
Cluster TwoSites(double wan_bytes_per_s) {
  Cluster cluster;
  cluster.types = {*FindDeviceType("a100-80")};
  for (int d = 0; d < 16; ++d) {
    const std::string site = d < 8 ? "a" : "b";
    cluster.devices.push_back({site + std::to_string(d), site + "-node", site, 0});
  }
  cluster.wan_wire = {20e-3, wan_bytes_per_s};
  return cluster;
}

const Options kQuick{.simulate = 2, .restarts = 4, .improvements = 0};

IslandChoice Choose(const Cluster& cluster, const char* model, const IslandOptions& islands) {
  const Costs costs(*FindModel(model), {}, {});
  const Job job{.global_batch = 64, .micro_batches = {1, 2}, .tensor_parallel = {1, 2}};
  const PlanFunction plan = [&](const Cluster& part, const Job& own) {
    return PlanJob(part, costs, own, kQuick);
  };
  auto choice = ChooseIslands(cluster, costs, job, plan, islands);
  INFO(choice.status().ToString());
  REQUIRE(choice.ok());
  return *std::move(choice);
}

TEST_CASE("Over a very slow link islands win; over a fast one they cost samples for nothing") {
  const IslandChoice slow = Choose(TwoSites(1.25e6), "gpt3-2.7b", {.steps_per_round = 5000});
  CHECK(slow.use_islands);
  CHECK(slow.islands.size() == 2);
  CHECK_THAT(slow.reason, Catch::Contains("2 islands") && Catch::Contains("override"));
  const IslandChoice fast = Choose(TwoSites(100e9), "gpt3-2.7b", {.cost_per_doubling = 0.3});
  CHECK_FALSE(fast.use_islands);
}

TEST_CASE("The statistical model decides what is close, and is the user's") {
  const Cluster cluster = TwoSites(125e6);
  const IslandChoice cheap =
      Choose(cluster, "gpt3-2.7b", {.overlap = true, .cost_per_doubling = 0});
  const IslandChoice dear = Choose(cluster, "gpt3-2.7b", {.overlap = true, .cost_per_doubling = 9});
  CHECK(cheap.use_islands);
  CHECK_FALSE(dear.use_islands);
  CHECK(cheap.islands_samples_per_s == dear.islands_samples_per_s);
  CHECK(dear.islands_factor == Approx(10));
}

TEST_CASE("Overlap hides an exchange that is shorter than a round") {
  const Cluster cluster = TwoSites(125e6);
  const IslandChoice waits = Choose(cluster, "gpt2", {.overlap = false});
  const IslandChoice carries = Choose(cluster, "gpt2", {.overlap = true});
  CHECK(carries.islands_samples_per_s > waits.islands_samples_per_s);
}

TEST_CASE("A model too large for any one site takes the pipeline") {
  Cluster cluster = TwoSites(1.25e9);
  CHECK(Choose(cluster, "gpt3-13b", {}).islands.size() == 2);
  cluster.types[0].memory_bytes = int64_t{26} << 30;  // 208 GiB a site, for 13 G parameters
  const IslandChoice large = Choose(cluster, "gpt3-13b", {});
  CHECK(large.islands.empty());
  CHECK_FALSE(large.use_islands);
  CHECK_THAT(large.reason,
             Catch::Contains("no site has a plan of its own: site \"a\": no layout fits"));
}

TEST_CASE("The server goes where the islands' way is shortest, not to one huge link") {
  Cluster cluster = TwoSites(1e9);
  cluster.devices.push_back({"c", "c-node", "c", 0});
  // a and b are near each other; c has one huge link from a, and a poor one from b.
  cluster.site_to_site[{"a", "c"}] = cluster.site_to_site[{"c", "a"}] = {1e-3, 100e9};
  cluster.site_to_site[{"b", "c"}] = cluster.site_to_site[{"c", "b"}] = {100e-3, 1e6};
  CHECK(PlaceServer(cluster, {{"a", 1}, {"b", 1}, {"c", 1}}, 1e9) == "a");
}

}  // namespace
}  // namespace atl::plan
