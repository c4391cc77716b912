#include "coordinator/planning/island_scope.h"

#include <catch2/catch.hpp>

#include "coordinator/planner/testing/models.h"

namespace atl {
namespace {

// Two sites of two nodes with two devices each, far apart.
plan::Cluster FourNodes() {
  plan::Cluster cluster;
  cluster.types = {*plan::FindDeviceType("a100-80")};
  for (int d = 0; d < 8; ++d) {
    const std::string node = std::string("n") + std::to_string(d / 2);
    cluster.devices.push_back({node + "/" + std::to_string(d % 2), node, d < 4 ? "a" : "b", 0});
  }
  cluster.wan_link = {20e-3, 1.25e6, {}};
  return cluster;
}

JobSpec Job() {
  JobSpec spec;
  spec.inner.batch_sequences = 16;
  spec.data.sequence_length = 1024;
  spec.layout.recompute = Recompute::kNone;
  spec.outer.overlap = Overlap::kNone;
  spec.outer.steps_per_round = 64;
  return spec;
}

PlanningInput MakeTestInput(const JobSpec& spec) {
  const plan::Costs costs(*plan::FindModel("gpt2"), {}, MakeCostOptions(spec, false));
  const plan::Job job{.global_batch = static_cast<int>(spec.inner.batch_sequences),
                      .micro_batches = {1, 2},
                      .tensor_parallel = {1, 2}};
  return {FourNodes(), costs, job, ""};
}

// `slow`: within sites, too.
ScopePlans Plans(const JobSpec& spec, IslandScope island_scope, bool slow = false) {
  PlanRequest request;
  request.spec = spec;
  request.improvements = 0;
  PlanningInput input = MakeTestInput(spec);
  if (slow) input.cluster.site_link = input.cluster.wan_link;
  auto plans = PlanScope(request, input, island_scope, ToIslandOptions(spec));
  INFO(plans.status().ToString());
  REQUIRE(plans.ok());
  return *std::move(plans);
}

TEST_CASE("islands_are_those_that_the_job_gets_and_take_steps_of_its_whole_batch") {
  const JobSpec spec = Job();
  CHECK_FALSE(Plans(spec, IslandScope::kAll).choice.use_islands);
  const ScopePlans sites = Plans(spec, IslandScope::kSite);
  CHECK(sites.choice.use_islands);
  CHECK(sites.choice.islands.size() == 2);
  const ScopePlans workers = Plans(spec, IslandScope::kWorker);
  CHECK(workers.choice.islands.size() == 4);
  for (const ScopePlans* plans : {&sites, &workers}) {
    for (const plan::IslandOfSite& island : plans->choice.islands) {
      int samples = 0;
      for (const plan::Replica& replica : island.plan.layout.replicas) {
        samples += replica.micro_batches * island.plan.layout.micro_batch;
      }
      CHECK(samples == spec.inner.batch_sequences);
    }
  }
}

TEST_CASE("limits_of_workers_and_of_islands_hold_for_devices_that_are_described") {
  JobSpec spec = Job();
  spec.layout.workers_per_island = 1;
  const ScopePlans alone = Plans(spec, IslandScope::kSite);
  REQUIRE(alone.choice.islands.size() == 4);
  CHECK(alone.choice.islands[0].site == "a");
  CHECK(alone.choice.islands[1].site == "a #2");
  // Both of a site reach each other as before, and the other site over its slow link.
  CHECK(alone.cluster.LinkBetweenSites("a", "a #2").bytes_per_s == 50e9);
  CHECK(alone.cluster.LinkBetweenSites("a", "b #2").bytes_per_s == 1.25e6);
  spec.outer.max_islands = 3;
  CHECK(Plans(spec, IslandScope::kSite).choice.islands.size() == 3);
}

TEST_CASE("encodings_and_rounds_of_the_job_decide_what_islands_are_worth") {
  JobSpec spec = Job();
  const double full = Plans(spec, IslandScope::kSite, true).choice.samples_per_s;
  spec.outer.push_encoding = spec.outer.pull_encoding = Encoding::kInt4;
  const double small = Plans(spec, IslandScope::kSite, true).choice.samples_per_s;
  CHECK(small > 2 * full);
  spec.outer.steps_per_round *= 16;
  CHECK(Plans(spec, IslandScope::kSite, true).choice.samples_per_s > small);
}

TEST_CASE("islands_of_workers_share_the_limits_of_their_sites_links") {
  JobSpec spec = Job();
  PlanRequest request;
  request.spec = spec;
  request.improvements = 0;
  PlanningInput input = MakeTestInput(spec);
  const auto plan = [&](IslandScope island_scope, double bytes_per_day) {
    input.cluster.bytes_per_day = {{{"a", "b"}, bytes_per_day}, {{"b", "a"}, bytes_per_day}};
    return PlanScope(request, input, island_scope, ToIslandOptions(spec));
  };
  // Two of the four islands are at another site than the server, whichever has it.
  const auto workers = plan(IslandScope::kWorker, 1e18);
  REQUIRE(workers.ok());
  CHECK_FALSE(workers->choice.traffic.empty());
  const auto refused = plan(IslandScope::kWorker, 1);
  CHECK(absl::IsFailedPrecondition(refused.status()));
  CHECK(absl::IsFailedPrecondition(plan(IslandScope::kSite, 1).status()));
  // One site alone sends nothing.
  const auto all = plan(IslandScope::kAll, 1);
  REQUIRE(all.ok());
  CHECK(all->choice.first().layout.replicas.size() > 0);
  CHECK(plan(IslandScope::kAuto, 1)->island_scope == IslandScope::kAll);
}

TEST_CASE("auto_is_the_best_of_what_each_scope_gives") {
  JobSpec spec = Job();
  spec.outer.steps_per_round = 4096;
  const ScopePlans chosen = Plans(spec, IslandScope::kAuto);
  REQUIRE(chosen.choice.use_islands);
  const ScopePlans same = Plans(spec, chosen.island_scope);
  CHECK(same.choice.samples_per_s == chosen.choice.samples_per_s);
  for (const IslandScope island_scope : {IslandScope::kSite, IslandScope::kWorker}) {
    const plan::IslandChoice other = Plans(spec, island_scope).choice;
    CHECK(kWorthMoreIslands * chosen.choice.samples_per_s / chosen.choice.factor >=
          other.samples_per_s / other.factor);
  }
  spec.outer.max_islands = 1;
  CHECK(Plans(spec, IslandScope::kAuto).island_scope == IslandScope::kAll);
}

TEST_CASE("more_islands_are_taken_only_if_they_are_clearly_better") {
  JobSpec spec = Job();
  spec.outer.steps_per_round = 4096;
  spec.outer.min_islands = 2;  // all devices as one island are no choice
  PlanRequest request;
  request.spec = spec;
  request.improvements = 0;
  plan::IslandOptions islands = ToIslandOptions(spec);
  const auto plan = [&](IslandScope island_scope) {
    auto plans = PlanScope(request, MakeTestInput(spec), island_scope, islands);
    REQUIRE(plans.ok());
    return *std::move(plans);
  };
  const double of_sites = plan(IslandScope::kSite).choice.samples_per_s;      // by 2
  const double of_workers = plan(IslandScope::kWorker).choice.samples_per_s;  // by 4
  int clearly_better = 0, not_enough_better = 0, worse = 0;
  for (const double cost : {0.0, 0.15, 0.17, 0.18, 0.19, 0.2, 0.21, 0.22, 0.25, 0.3}) {
    islands.cost_per_doubling = cost;
    const double better = of_workers / (1 + 2 * cost) * (1 + cost) / of_sites;
    CAPTURE(cost, better);
    CHECK(plan(IslandScope::kAuto).island_scope ==
          (better > kWorthMoreIslands ? IslandScope::kWorker : IslandScope::kSite));
    ++(better > kWorthMoreIslands ? clearly_better : better > 1 ? not_enough_better : worse);
  }
  CHECK(clearly_better > 0);
  CHECK(not_enough_better > 0);
  CHECK(worse > 0);
}

TEST_CASE("every_plan_gets_its_part_of_the_time") {
  const JobSpec spec = Job();
  PlanRequest request;
  request.spec = spec;
  request.improvements = 1;
  std::vector<size_t> left;
  const EnoughFunction make_enough = [&](size_t plans_left) {
    left.push_back(plans_left);
    return [] { return true; };
  };
  const auto plans = PlanScope(request, MakeTestInput(spec), IslandScope::kAuto,
                               ToIslandOptions(spec), make_enough);
  REQUIRE(plans.ok());
  CHECK(left == std::vector<size_t>{7, 6, 5, 4, 3, 2, 1});  // all, two sites, four workers
}

}  // namespace
}  // namespace atl
