#include "coordinator/planner/islands.h"

#include <catch2/catch.hpp>

#include "coordinator/planner/testing/choose_islands.h"
#include "coordinator/planner/testing/models.h"

namespace atl::plan {
namespace {

// Eight A100 on each of two sites.
Cluster TwoSites(double wan_bytes_per_s, double latency_s = 20e-3) {
  Cluster cluster;
  cluster.types = {*FindDeviceType("a100-80")};
  for (int d = 0; d < 16; ++d) {
    const std::string site = d < 8 ? "a" : "b";
    cluster.devices.push_back({site + std::to_string(d), site + "-node", site, 0});
  }
  cluster.wan_link = {latency_s, wan_bytes_per_s};
  return cluster;
}

const Options kQuick{.simulate = 2, .restarts = 4, .improvements = 0};

// With PlanIslands, or what chooses between that and one plan.
template <class Plan>
auto PlanWith(const Plan& plan_islands, const Cluster& cluster, const char* model,
              const IslandOptions& islands) {
  const Costs costs(*FindModel(model), {}, {});
  const Job job{.global_batch = 64, .micro_batches = {1, 2}, .tensor_parallel = {1, 2}};
  const PlanFunction plan = [&](const Cluster& part, const Job& own) {
    return PlanJob(part, costs, own, kQuick);
  };
  return plan_islands(cluster, costs, job, plan, islands);
}

IslandChoice Choose(const Cluster& cluster, const char* model, const IslandOptions& islands) {
  return PlanWith(ChooseIslands, cluster, model, islands);
}

TEST_CASE("Over a very slow link islands win; over a fast one they cost samples for nothing") {
  const IslandChoice slow = Choose(TwoSites(1.25e6), "gpt3-2.7b", {.steps_per_round = 5000});
  CHECK(slow.use_islands);
  CHECK(slow.islands.size() == 2);
  CHECK_THAT(slow.reason, Catch::Contains("2 islands") && Catch::Contains("override"));
  const IslandChoice fast = Choose(TwoSites(100e9), "gpt3-2.7b", {.cost_per_doubling = 0.3});
  CHECK_FALSE(fast.use_islands);
}

TEST_CASE("rounds_are_as_long_as_links_require_where_no_steps_are_given") {
  const auto steps = [](double wan_bytes_per_s, bool overlap) {
    const IslandOptions open{.steps_per_round = 0, .overlap = overlap};
    return Choose(TwoSites(wan_bytes_per_s), "gpt2", open).steps_per_round;
  };
  CHECK(
      Choose(TwoSites(1e15, 0), "gpt2", {.steps_per_round = 0, .overlap = true}).steps_per_round ==
      2);
  CHECK(steps(1.25e6, true) > 10 * steps(125e6, true));
  CHECK(steps(1.25e6, false) == Approx(5.0 * steps(1.25e6, true)).epsilon(0.01));
  CHECK(Choose(TwoSites(1.25e6), "gpt2", {.steps_per_round = 7}).steps_per_round == 7);
}

TEST_CASE("The statistical model decides what is close, and is the user's") {
  const Cluster cluster = TwoSites(125e6);
  const IslandChoice cheap =
      Choose(cluster, "gpt3-2.7b", {.overlap = true, .cost_per_doubling = 0});
  const IslandChoice dear = Choose(cluster, "gpt3-2.7b", {.overlap = true, .cost_per_doubling = 9});
  CHECK(cheap.use_islands);
  CHECK_FALSE(dear.use_islands);
  CHECK(cheap.factor == 1);
  CHECK(PlanWith(PlanIslands, cluster, "gpt3-2.7b", {.cost_per_doubling = 9})->factor ==
        Approx(10));
}

TEST_CASE("Overlap hides an exchange that is shorter than a round") {
  const Cluster cluster = TwoSites(125e6);
  const auto waits = PlanWith(PlanIslands, cluster, "gpt2", {.overlap = false});
  const auto carries = PlanWith(PlanIslands, cluster, "gpt2", {.overlap = true});
  CHECK(carries->samples_per_s > waits->samples_per_s);
}

// Site a takes 1 s a step, b 10.
double SamplesPerSecond(const IslandOptions& islands, double wan_bytes_per_s = 1e12) {
  const Costs costs(*FindModel("gpt2"), {}, {});
  const PlanFunction plan = [](const Cluster& part, const Job&) {
    Plan made;
    made.outcome.step_s = part.devices[0].site == "a" ? 1 : 10;
    return absl::StatusOr<Plan>(made);
  };
  Cluster cluster = TwoSites(wan_bytes_per_s);
  cluster.wan_link.latency_s = 0;
  const auto choice = PlanIslands(cluster, costs, {.global_batch = 1}, plan, islands);
  REQUIRE(choice.ok());
  return choice->samples_per_s;
}

TEST_CASE("islands_of_unequal_speed_count_the_steps_of_a_round_that_each_of_them_makes") {
  const double forever = INFINITY;
  const auto rate = [&](bool balance, int steps_min, double grace_s) {
    return SamplesPerSecond(
        {.balance_steps = balance, .steps_min = steps_min, .grace_s = grace_s, .overlap = true});
  };
  CHECK(rate(true, 1, forever) == Approx((64 + 6) / 64.0));  // b: 6 of 6.4, in 60 s
  CHECK(rate(true, 32, forever) == Approx((64 + 32) / 320.0));
  CHECK(rate(true, 32, 10) == Approx(64 / 74.0 + 32 / 320.0));
  CHECK(rate(true, 1000, forever) == Approx((64 + 64) / 640.0));  // at most all of them
  CHECK(rate(false, 1, forever) == Approx((64 + 64) / 640.0));
  CHECK(rate(false, 1, 0) == Approx(64 / 64.0 + 64 / 640.0));
}

TEST_CASE("an_island_with_a_long_exchange_makes_the_others_wait_for_as_long_as_the_grace_time") {
  // Without overlap. Where all rounds are equally long, the server is at a, else at b, which has
  // more of them.
  const IslandOptions waits{.grace_s = 1e9};
  const IslandOptions goes_on{.grace_s = 0};
  const double bytes = static_cast<double>(FindModel("gpt2")->parameters()) * 2;
  const double exchange_s = 2 * bytes / 1e7;
  const double card_s = 2 * bytes / 50e9 + 40e-6;
  CHECK(SamplesPerSecond(waits, 1e7) == Approx((64 + 6) / (60 + exchange_s)));
  CHECK(SamplesPerSecond(goes_on, 1e7) == Approx(64 / (64 + exchange_s) + 6 / (60 + card_s)));
}

TEST_CASE("A model too large for any one site takes the pipeline") {
  Cluster cluster = TwoSites(1.25e9);
  CHECK(PlanWith(PlanIslands, cluster, "gpt3-13b", {})->islands.size() == 2);
  cluster.types[0].memory_bytes = int64_t{26} << 30;  // 208 GiB a site, for 13 G parameters
  const Costs costs(*FindModel("gpt3-13b"), {}, {});
  const Job job{.global_batch = 64, .micro_batches = {1, 2}, .tensor_parallel = {1, 2}};
  const PlanFunction plan = [&](const Cluster& part, const Job& own) {
    return PlanJob(part, costs, own, kQuick);
  };
  CHECK(PlanSingle(cluster, costs, job, plan, {}).ok());
  CHECK_THAT(std::string(PlanIslands(cluster, costs, job, plan, {}).status().message()),
             Catch::StartsWith("site \"a\": no layout fits"));
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
