#include "coordinator/planner/cluster/objective.h"

#include <catch2/catch.hpp>
#include <set>

#include "coordinator/planner/islands.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/testing/choose_islands.h"
#include "coordinator/planner/testing/models.h"

namespace atl::plan {
namespace {

constexpr double kDear = 4, kCheap = 1;  // an hour of a device

// `dear` devices of a fast type at site a, `cheap` ones of a slower type that cost less by more.
Cluster TwoPrices(int dear, int cheap) {
  Cluster cluster;
  for (const auto& [type, count, site, price] :
       {std::tuple("h100", dear, "a", kDear), std::tuple("a100-80", cheap, "b", kCheap)}) {
    cluster.types.push_back(*FindDeviceType(type));
    cluster.types.back().price_per_hour = price;
    for (int d = 0; d < count; ++d) {
      const std::string id = std::string(site) + std::to_string(d);
      cluster.devices.push_back({id, id, site, static_cast<int>(cluster.types.size()) - 1});
    }
  }
  return cluster;
}

const Options kQuick{.simulate = 4, .restarts = 8, .improvements = 4};

struct Case {
  Cluster cluster = TwoPrices(4, 4);
  Costs costs{*FindModel("gpt2"), {}, {}};
  Job job{.global_batch = 32, .micro_batches = {1, 4}};

  Plan Best() const {
    auto plan = PlanJob(cluster, costs, job, kQuick);
    REQUIRE(plan.ok());
    CHECK(plan->price ==
          Approx(ComputePrice(cluster, costs, plan->layout).Of(plan->outcome.step_s)));
    return *std::move(plan);
  }
};

std::set<std::string> ListSites(const Cluster& cluster, const Layout& layout) {
  std::set<std::string> sites;
  for (const Replica& replica : layout.replicas) {
    for (const Stage& stage : replica.stages) sites.insert(cluster.devices[stage.devices[0]].site);
  }
  return sites;
}

TEST_CASE("a step's price is that of its devices' time and of what they send") {
  Case c;
  c.cluster.site_to_site[{"a", "b"}] = {1e-3, 1e9, {}, 2e-9};
  c.cluster.site_to_site[{"b", "a"}] = {1e-3, 1e9};
  for (Device& device : c.cluster.devices) device.egress_price_per_byte = 3e-9;
  const int layers = static_cast<int>(c.costs.model().layers.size());
  const Layout pipeline{.micro_batch = 4,
                        .replicas = {{{{{0}, 0, 5}, {{4}, 5, layers}}, /*micro_batches=*/8}}};
  const StepPrice price = ComputePrice(c.cluster, c.costs, pipeline);
  CHECK(price.per_s == Approx((kDear + kCheap) / 3600));
  const double sent = 8.0 * 4 * static_cast<double>(c.costs.model().layers[4].out_bytes);
  CHECK(price.messages == Approx(sent * (2e-9 + 3e-9) + sent * 3e-9));
  // Two replicas send their gradients once in each direction.
  const Layout replicas{.micro_batch = 4,
                        .replicas = {{{{{0}, 0, layers}}, 4}, {{{{4}, 0, layers}}, 4}}};
  const double gradient = 4.0 * static_cast<double>(c.costs.model().parameters());
  CHECK(ComputePrice(c.cluster, c.costs, replicas).messages ==
        Approx(gradient * (2e-9 + 3e-9) + gradient * 3e-9));
  // However many of them a site has: its own are added up first.
  const Layout three{
      .micro_batch = 4,
      .replicas = {{{{{0}, 0, layers}}, 3}, {{{{1}, 0, layers}}, 3}, {{{{4}, 0, layers}}, 2}}};
  CHECK(ComputePrice(c.cluster, c.costs, three).messages ==
        Approx(gradient * (2e-9 + 3e-9) + gradient * 3e-9));
}

TEST_CASE("ranks: within the limits by what is wanted, beyond them by how far") {
  const StepPrice price{2, 1};  // 2 a second, and 1
  Objective time{.step_s_max = 10, .price_max = 9};
  CHECK(Rank(time, price, 3) < Rank(time, price, 4));     // costs 7 and 9
  CHECK(Rank(time, price, 4) < Rank(time, {2, 1.5}, 4));  // 9.5: too dear
  CHECK(Rank(time, price, 11) < Rank(time, price, 12));   // both miss a limit
  CHECK(Rank(time, {0, 1}, 9.9) < Rank(time, price, 4.1));
  Objective cost{.cheapest = true, .step_s_max = 10};
  CHECK(Rank(cost, {1, 0}, 9) < Rank(cost, {2, 0}, 5));
  CHECK(Rank(cost, {2, 0}, 9) < Rank(cost, {1, 0}, 11));
  // The longest step that is better than a rank has that rank.
  for (const Objective& objective : {time, cost}) {
    for (const double step_s : {1.0, 3.9, 9.0, 30.0}) {
      const double rank = Rank(objective, price, step_s);
      CHECK(LongestStepBetter(objective, price, rank) == Approx(step_s));
    }
  }
}

TEST_CASE("the cheapest plan leaves dear devices alone, and a deadline brings them back") {
  Case c;
  const Plan fastest = c.Best();
  c.job.objective.cheapest = true;
  const Plan cheapest = c.Best();
  CHECK(cheapest.price < 0.7 * fastest.price);
  CHECK(cheapest.outcome.step_s > fastest.outcome.step_s);
  CHECK(ListSites(c.cluster, cheapest.layout) == std::set<std::string>{"b"});
  c.job.objective.step_s_max = 0.5 * (fastest.outcome.step_s + cheapest.outcome.step_s);
  const Plan in_time = c.Best();
  CHECK(in_time.outcome.step_s <= c.job.objective.step_s_max);
  CHECK(in_time.price >= cheapest.price);
  CHECK(in_time.price < fastest.price);
}

TEST_CASE("the fastest plan within a budget") {
  Case c;
  const Plan fastest = c.Best();
  c.job.objective.cheapest = true;
  const Plan cheapest = c.Best();
  c.job.objective = {.price_max = 0.5 * (fastest.price + cheapest.price)};
  const Plan within = c.Best();
  CHECK(within.price <= c.job.objective.price_max);
  CHECK(within.outcome.step_s <= cheapest.outcome.step_s);
  CHECK(within.outcome.step_s >= fastest.outcome.step_s);
}

TEST_CASE("dear traffic keeps a cheap plan within a site") {
  Case c;
  c.cluster = TwoPrices(0, 8);
  for (size_t d = 0; d < 4; ++d) c.cluster.devices[d].site = "a";
  c.cluster.wan_link = {1e-4, 50e9};
  CHECK(ListSites(c.cluster, c.Best().layout).size() == 2);
  c.job.objective.cheapest = true;
  for (Device& device : c.cluster.devices) device.egress_price_per_byte = 1e-7;
  CHECK(ListSites(c.cluster, c.Best().layout).size() == 1);
}

TEST_CASE("without prices or limits a rank is the step's time") {
  Case c;
  for (DeviceType& type : c.cluster.types) type.price_per_hour = 0;
  c.job.objective.cheapest = true;
  const Plan plan = c.Best();
  CHECK(plan.price == 0);
  c.job.objective.cheapest = false;
  CHECK(c.Best().rank == Approx(c.Best().outcome.step_s));
}

TEST_CASE("islands or one plan: whichever is cheaper") {
  Case c;
  c.cluster.wan_link = {10e-3, 1e9};
  const PlanFunction make = [&](const Cluster& cluster, const Job& job) {
    return PlanJob(cluster, c.costs, job, kQuick);
  };
  const IslandChoice fastest = ChooseIslands(c.cluster, c.costs, c.job, make, {});
  c.job.objective.cheapest = true;
  const IslandChoice cheapest = ChooseIslands(c.cluster, c.costs, c.job, make, {});
  CHECK(cheapest.price_per_sample <= fastest.price_per_sample);
  CHECK(cheapest.price_per_sample > 0);
}

}  // namespace
}  // namespace atl::plan
