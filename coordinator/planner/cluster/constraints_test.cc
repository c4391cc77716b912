// Filters of the search: what takes part, what memory there is, what may go between sites.

#include "coordinator/planner/cluster/constraints.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "coordinator/planner/cluster/traffic.h"
#include "coordinator/planner/islands.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/testing/models.h"

namespace atl::plan {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
const Options kQuick{.simulate = 4, .restarts = 8, .improvements = 4};

// Four A100 on two nodes at each of two sites.
Cluster TwoSites(double wan_bytes_per_s = 10e9) {
  Cluster cluster;
  cluster.types = {*FindDeviceType("a100-80")};
  for (int d = 0; d < 8; ++d) {
    const std::string site = d < 4 ? "a" : "b";
    const std::string node = site + std::to_string(d / 2 % 2);
    cluster.devices.push_back({node + "/" + std::to_string(d % 2), node, site, 0});
  }
  cluster.wan_link = {1e-3, wan_bytes_per_s};
  return cluster;
}

absl::Status Constrained(Constraints fixed, Cluster& cluster) { return Constrain(fixed, cluster); }

std::set<std::string> ListDeviceIds(const Cluster& cluster) {
  std::set<std::string> ids;
  for (const Device& device : cluster.devices) ids.insert(device.id);
  return ids;
}

struct Case {
  Cluster cluster = TwoSites();
  Costs costs{*FindModel("gpt2-medium"), {}, {}};
  Job job{.global_batch = 32, .micro_batches = {1, 4}, .tensor_parallel = {1}};

  absl::StatusOr<Plan> Found() const { return PlanJob(cluster, costs, job, kQuick); }
  Plan Best() const {
    auto plan = Found();
    INFO(plan.status().ToString());
    REQUIRE(plan.ok());
    return *std::move(plan);
  }
  SiteBytes PerDay(const Plan& plan) const {
    SiteBytes day = CountStepBytes(cluster, costs, plan.layout);
    for (auto& [sites, bytes] : day) bytes *= kSecondsPerDay / plan.outcome.step_s;
    return day;
  }
};

TEST_CASE("excluded_nodes_and_devices_and_other_sites_are_no_part_of_the_cluster") {
  Cluster cluster = TwoSites();
  REQUIRE(Constrained({.exclude = {"a0", "b1/1"}}, cluster).ok());
  CHECK(ListDeviceIds(cluster) == std::set<std::string>{"a1/0", "a1/1", "b0/0", "b0/1", "b1/0"});
  REQUIRE(Constrained({.sites = {"b"}}, cluster).ok());
  CHECK(ListDeviceIds(cluster) == std::set<std::string>{"b0/0", "b0/1", "b1/0"});
  Constraints all_sites{.sites = {"b"}};
  REQUIRE(Constrain(all_sites, cluster).ok());
  CHECK(ConstraintsText(all_sites).empty());  // it decides nothing
  const absl::Status none = Constrained({.exclude = {"b0", "b1"}, .sites = {"b"}}, cluster);
  CHECK(absl::IsFailedPrecondition(none));
  CHECK_THAT(std::string(none.message()),
             Catch::Contains("layout.exclude") && Catch::Contains("layout.sites"));
  CHECK(cluster.devices.size() == 3);  // a refusal changes nothing
}

TEST_CASE("names_that_the_cluster_does_not_have_are_refused_with_their_key") {
  const Cluster cluster = TwoSites();
  CHECK(CheckNames({.exclude = {"a0", "b1/1"}, .sites = {"a"}}, cluster).ok());
  const auto refused = [&](const Constraints& fixed, const char* key) {
    const absl::Status status = CheckNames(fixed, cluster);
    CHECK(absl::IsInvalidArgument(status));
    CHECK_THAT(std::string(status.message()), Catch::StartsWith(key));
  };
  refused({.exclude = {"c0"}}, "layout.exclude");
  refused({.sites = {"rome"}}, "layout.sites");
  refused({.bytes_per_day = {{{"a", "rome"}, 1}}}, "layout.link_limits");
}

TEST_CASE("memory_kept_back_is_not_planned_with_and_devices_without_more_take_no_part") {
  Cluster cluster = TwoSites();
  cluster.types.push_back(cluster.types[0]);
  cluster.types[0].memory_bytes = 40 * kGiB;
  cluster.types[1].memory_bytes = 10 * kGiB;
  cluster.devices[0].type = 1;
  REQUIRE(Constrained({.memory_reserve_bytes = 10 * kGiB}, cluster).ok());
  CHECK(cluster.devices.size() == 7);
  CHECK(cluster.types[0].memory_bytes == 30 * kGiB);
  CHECK(absl::IsFailedPrecondition(Constrained({.memory_reserve_bytes = 30 * kGiB}, cluster)));

  // One of two types has no more than is kept back.
  Case mixed;
  mixed.cluster.types.insert(mixed.cluster.types.begin(), mixed.cluster.types[0]);
  mixed.cluster.types[0].memory_bytes = 10 * kGiB;
  for (size_t d = 1; d < mixed.cluster.devices.size(); ++d) mixed.cluster.devices[d].type = 1;
  mixed.job.fixed.memory_reserve_bytes = 10 * kGiB;
  REQUIRE(Constrain(mixed.job.fixed, mixed.cluster).ok());
  CHECK(mixed.job.fixed.too_small == std::set<std::string>{"a0/0"});
  CHECK(mixed.cluster.types.size() == 1);
  CHECK_THAT(mixed.Best().reason, Catch::Contains("leaves out a0/0"));

  Case c;
  c.job.fixed.memory_reserve_bytes = 76 * kGiB;  // of 80, for 355 M parameters
  REQUIRE(Constrain(c.job.fixed, c.cluster).ok());
  const Plan tight = c.Best();
  for (const Replica& replica : tight.layout.replicas) CHECK(replica.stages.size() > 1);
  CHECK_THAT(tight.reason, Catch::Contains("layout.memory_reserve_bytes"));
}

TEST_CASE("of_a_link_in_the_cluster_and_in_the_job_the_lower_limit_holds") {
  Cluster cluster = TwoSites();
  cluster.bytes_per_day = {{{"a", "b"}, 100}};
  REQUIRE(Constrained({.bytes_per_day = {{{"a", "b"}, 200}, {{"b", "a"}, 50}}}, cluster).ok());
  CHECK(cluster.bytes_per_day.at({"a", "b"}) == 100);
  CHECK(cluster.bytes_per_day.at({"b", "a"}) == 50);
}

TEST_CASE("a_step_sends_activations_gradients_and_all_reduces_between_sites") {
  Case c;
  const int layers = static_cast<int>(c.costs.model().layers.size());
  const Layout pipeline{.micro_batch = 4,
                        .replicas = {{{{{0}, 0, 5}, {{4}, 5, layers}}, /*micro_batches=*/8}}};
  const double sent = 8.0 * 4 * static_cast<double>(c.costs.model().layers[4].out_bytes);
  const SiteBytes messages = CountStepBytes(c.cluster, c.costs, pipeline);
  CHECK(messages.at({"a", "b"}) == Approx(sent));
  CHECK(messages.at({"b", "a"}) == Approx(sent));

  // One of three replicas is at the other site.
  const Layout replicas{
      .micro_batch = 4,
      .replicas = {{{{{0}, 0, layers}}, 3}, {{{{1}, 0, layers}}, 3}, {{{{4}, 0, layers}}, 2}}};
  const double gradient = 4.0 * static_cast<double>(c.costs.model().parameters());
  const SiteBytes sums = CountStepBytes(c.cluster, c.costs, replicas);
  CHECK(sums.at({"a", "b"}) == Approx(gradient));
  CHECK(sums.at({"b", "a"}) == Approx(gradient));
  const auto owned = OwnedShares(c.cluster, c.costs, replicas);
  CHECK(owned.at("a") == Approx(2.0 / 3));
  CHECK(owned.at("b") == Approx(1.0 / 3));
}

TEST_CASE("plans_keep_to_what_a_link_may_carry_in_a_day") {
  Case c;
  const Plan free = c.Best();
  const SiteBytes day = c.PerDay(free);
  REQUIRE(day.count({"a", "b"}) == 1);  // eight devices are faster than four
  c.cluster.bytes_per_day[{"a", "b"}] = 2 * day.at({"a", "b"});
  CHECK(c.Best().outcome.step_s == free.outcome.step_s);

  c.cluster.bytes_per_day[{"a", "b"}] = 0.01 * day.at({"a", "b"});
  const Plan limited = c.Best();
  CHECK(CheckTraffic(c.cluster, c.costs, limited.layout, limited.outcome.step_s).ok());
  CHECK(limited.outcome.step_s > free.outcome.step_s);
  CHECK(free.reason.find("bytes_per_day") == std::string::npos);
  CHECK_THAT(limited.reason, Catch::Contains("bytes_per_day"));

  // A model that needs both sites.
  c.cluster.types[0].memory_bytes = 2 * kGiB;
  c.cluster.bytes_per_day[{"a", "b"}] = 1;
  c.job.fixed.stages = 8;
  c.job.fixed.replicas = 1;
  const auto none = c.Found();
  REQUIRE(absl::IsFailedPrecondition(none.status()));
  CHECK_THAT(std::string(none.status().message()), Catch::Contains("bytes_per_day"));
  c.cluster.bytes_per_day.clear();
  CHECK(c.Found().ok());
}

// An island at each site.
absl::StatusOr<IslandChoice> Islands(const Case& c, const IslandOptions& options) {
  const PlanFunction plan = [&](const Cluster& part, const Job& own) {
    return PlanJob(part, c.costs, own, kQuick);
  };
  return PlanIslands(c.cluster, c.costs, c.job, plan, options);
}

TEST_CASE("rounds_that_send_too_much_are_refused_with_the_steps_that_keep_to_the_limit") {
  Case c;
  const IslandOptions options{.steps_per_round = 64,
                              .push_bytes_per_parameter = 1,
                              .pull_bytes_per_parameter = 4,
                              .overlap = true};
  const auto free = Islands(c, options);
  REQUIRE(free.ok());
  CHECK(free->traffic.empty());
  // Both islands' steps are the same: one at the server's site, the other one's rounds cross.
  const double step_s = free->islands.front().plan.outcome.step_s;
  const double rounds = kSecondsPerDay / (64 * step_s);
  const auto parameters = static_cast<double>(c.costs.model().parameters());
  const std::string server = free->server_site, other = server == "a" ? "b" : "a";
  c.cluster.bytes_per_day[{other, server}] = 1.01 * rounds * parameters;
  c.cluster.bytes_per_day[{server, other}] = 4.04 * rounds * parameters;
  const auto kept = Islands(c, options);
  REQUIRE(kept.ok());
  CHECK(kept->server_site == server);
  CHECK_FALSE(kept->traffic.empty());
  CHECK_THAT(kept->reason, Catch::Contains(kept->traffic));

  // Only the other site may send so little: the server goes there.
  c.cluster.bytes_per_day[{other, server}] = 4.04 * rounds * parameters;
  c.cluster.bytes_per_day[{server, other}] = 1.01 * rounds * parameters;
  const auto moved = Islands(c, options);
  REQUIRE(moved.ok());
  CHECK(moved->server_site == other);

  for (auto& [sites, bytes] : c.cluster.bytes_per_day) bytes = 0.5 * rounds * parameters;
  const auto refused = Islands(c, options);
  REQUIRE(absl::IsFailedPrecondition(refused.status()));
  // Pulls are 4 bytes a parameter, of which half a byte may go: 8 times as many steps.
  CHECK_THAT(std::string(refused.status().message()),
             Catch::Contains("outer.steps_per_round = 512 or more"));
  IslandOptions rarer = options;
  rarer.steps_per_round = 512;
  CHECK(Islands(c, rarer).ok());
}

TEST_CASE("a_plan_over_all_sites_has_rounds_too") {
  Case c;
  c.job.fixed.stages = 8;
  c.job.fixed.replicas = 1;
  const PlanFunction plan = [&](const Cluster& part, const Job& own) {
    return PlanJob(part, c.costs, own, kQuick);
  };
  const Plan found = c.Best();
  const SiteBytes steps = c.PerDay(found);
  for (const auto& [sites, bytes] : steps) c.cluster.bytes_per_day[sites] = 1.001 * bytes;
  IslandOptions often{.steps_per_round = 1};
  CHECK(absl::IsFailedPrecondition(PlanSingle(c.cluster, c.costs, c.job, plan, often).status()));
  often.steps_per_round = 1 << 20;
  CHECK(PlanSingle(c.cluster, c.costs, c.job, plan, often).ok());
}

}  // namespace
}  // namespace atl::plan
