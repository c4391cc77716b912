#include "coordinator/core/shards/move_plan.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <utility>

#include "common/estimate.h"
#include "common/rng.h"
#include "coordinator/core/shards/server_access_cost.h"

namespace atl {
namespace {

std::vector<ShardPlacement> Shards(const std::vector<std::pair<NodeId, int64_t>>& held) {
  std::vector<ShardPlacement> shards;
  for (const auto& [server, elements] : held) {
    ShardPlacement shard;
    shard.shard = static_cast<ShardId>(shards.size());
    shard.elements = elements;
    shard.server = server;
    shards.push_back(shard);
  }
  return shards;
}

PlacementServer Server(NodeId name, double cost = 1, bool leaves = false,
                       int64_t free_bytes = 1 << 20) {
  return {std::move(name), cost, free_bytes, !leaves, leaves};
}

// Elements by server, after the moves.
std::map<NodeId, int64_t> After(std::vector<ShardPlacement> shards, const MovePlan& plan) {
  for (const ShardMove& move : plan.moves) shards[move.shard].server = move.to;
  std::map<NodeId, int64_t> held;
  for (const ShardPlacement& shard : shards) held[shard.server] += shard.elements;
  return held;
}

TEST_CASE("a_balanced_placement_stays") {
  const auto shards = Shards({{"a", 10}, {"b", 10}, {"a", 4}, {"b", 5}});
  const MovePlan plan = PlanShardMoves(shards, {}, {Server("a"), Server("b")}, 12);
  REQUIRE(plan.moves.empty());
  REQUIRE(plan.trouble.empty());
}

TEST_CASE("a_new_server_takes_its_share") {
  const auto shards = Shards({{"a", 10}, {"a", 10}, {"a", 10}, {"a", 10}});
  const MovePlan plan = PlanShardMoves(shards, {}, {Server("a"), Server("b")}, 12);
  REQUIRE(After(shards, plan) == std::map<NodeId, int64_t>{{"a", 20}, {"b", 20}});
}

TEST_CASE("a_server_that_leaves_is_emptied_onto_the_others_evenly") {
  const auto shards = Shards({{"a", 10}, {"a", 10}, {"b", 10}, {"c", 10}});
  const MovePlan plan =
      PlanShardMoves(shards, {}, {Server("a", 1, true), Server("b"), Server("c")}, 12);
  REQUIRE(After(shards, plan) == std::map<NodeId, int64_t>{{"b", 20}, {"c", 20}});
}

TEST_CASE("what_fits_nowhere_stays_and_says_why") {
  const auto shards = Shards({{"a", 100}});
  const MovePlan plan =
      PlanShardMoves(shards, {}, {Server("a", 1, true), Server("b", 1, false, 1199)}, 12);
  REQUIRE(plan.moves.empty());
  REQUIRE(plan.trouble.find("server a") != std::string::npos);
  const MovePlan fits =
      PlanShardMoves(shards, {}, {Server("a", 1, true), Server("b", 1, false, 1200)}, 12);
  REQUIRE(fits.moves.size() == 1);
}

TEST_CASE("a_far_server_gets_so_much_less") {
  const auto shards = Shards({{"a", 10}, {"a", 10}, {"a", 10}});
  const MovePlan plan =
      PlanShardMoves(shards, {}, {Server("a", 1, true), Server("near"), Server("far", 2)}, 12);
  REQUIRE(After(shards, plan) == std::map<NodeId, int64_t>{{"far", 10}, {"near", 20}});
}

TEST_CASE("a_placement_balanced_by_cost_stays") {
  const auto shards = Shards({{"near", 10}, {"near", 10}, {"near", 10}, {"far", 10}});
  REQUIRE(PlanShardMoves(shards, {}, {Server("near"), Server("far", 3)}, 4).moves.empty());
}

// Two equal servers and shards that are balanced over them; an island pulls from both.
struct NoisyPair {
  std::vector<ShardPlacement> shards;
  std::map<NodeId, Estimate> rates;
  int balanced_at = -3600;  // seconds
  int changes = 0;

  NoisyPair() {
    for (int i = 0; i < 16; ++i) shards.push_back(Shards({{i % 2 == 0 ? "a" : "b", 10}})[0]);
    for (size_t i = 0; i < shards.size(); ++i) shards[i].shard = static_cast<ShardId>(i);
  }

  // A round at this time, with what pulls have measured in it.
  void Round(int seconds, double a, double b) {
    rates["a"].Add(a);
    rates["b"].Add(b);
    std::vector<PlacementServer> servers;
    for (const auto& [name, rate] : rates) {
      const Estimate& fastest = rates["a"].median() > rates["b"].median() ? rates["a"] : rates["b"];
      const IslandLink link{"", rate.median(), fastest.median(), rate.spread() * fastest.spread()};
      servers.push_back(Server(name, ComputeServerAccessCost("", {link}, {}).cost));
    }
    const bool balanced = seconds - balanced_at < 3600;
    const MovePlan plan = PlanShardMoves(shards, {}, servers, 12, balanced);
    if (plan.moves.empty()) return;
    ++changes;
    balanced_at = seconds;
    for (const ShardMove& move : plan.moves) shards[move.shard].server = move.to;
  }
};

TEST_CASE("equal_servers_with_rates_of_ten_times_noise_change_at_most_once_an_hour") {
  Rng rng(3);
  const auto noise = [&] { return 1e8 * std::pow(10, 2 * rng.Uniform() - 1); };
  constexpr int kHours = 50;
  NoisyPair pair;
  for (int seconds = 0; seconds < kHours * 3600; seconds += 30)
    pair.Round(seconds, noise(), noise());
  CHECK(pair.changes <= kHours);
}

TEST_CASE("bursts_of_two_rounds_change_nothing") {
  NoisyPair pair;
  for (int round = 0; round < 1000; ++round) {
    const double jitter = 1 + 0.05 * (round % 7);
    pair.Round(30 * round, 1e8 * jitter * (round % 10 < 2 ? 0.1 : 1),
               1e8 * (1 + 0.03 * (round % 5)));
  }
  CHECK(pair.changes == 0);
}

TEST_CASE("a_link_that_falls_to_a_tenth_is_left_within_three_rounds") {
  NoisyPair pair;
  const auto jitter = [](int round) { return 1e8 * (1 + 0.02 * (round % 7)); };
  for (int round = 0; round < 20; ++round) pair.Round(30 * round, jitter(round), jitter(round + 3));
  REQUIRE(pair.changes == 0);
  for (int round = 20; round < 23; ++round) {
    pair.Round(30 * round, jitter(round) / 10, jitter(round + 3));
  }
  CHECK(pair.changes == 1);
}

TEST_CASE("shards_leave_a_server_that_has_become_far") {
  const auto shards = Shards({{"a", 10}, {"a", 10}, {"b", 10}, {"b", 10}});
  const MovePlan plan = PlanShardMoves(shards, {}, {Server("a", 20), Server("b")}, 4);
  REQUIRE(After(shards, plan) == std::map<NodeId, int64_t>{{"b", 40}});
}

// -- shards with two copies; moves name slots, copies behind shards

std::vector<NodeId> Slots(const std::vector<ShardPlacement>& shards,
                          const std::vector<ShardPlacement>& copies, const MovePlan& plan) {
  std::vector<NodeId> slots;
  for (const ShardPlacement& shard : shards) slots.push_back(shard.server);
  for (const ShardPlacement& copy : copies) slots.push_back(copy.server);
  for (const ShardMove& move : plan.moves) slots[static_cast<size_t>(move.shard)] = move.to;
  return slots;
}

PlacementServer At(std::string site, PlacementServer server) {
  server.site = std::move(site);
  return server;
}

TEST_CASE("a_copy_that_there_is_not_is_made_on_another_server_at_another_site_if_there_is_one") {
  const auto shards = Shards({{"a", 10}, {"b", 10}});
  const auto copies = Shards({{"", 10}, {"a", 10}});
  const auto here = PlanShardMoves(shards, copies, {Server("a"), Server("b")}, 12);
  REQUIRE(Slots(shards, copies, here) == std::vector<NodeId>{"a", "b", "b", "a"});
  const auto apart = PlanShardMoves(
      shards, copies, {At("x", Server("a")), At("x", Server("b")), At("y", Server("c", 5))}, 12);
  REQUIRE(Slots(shards, copies, apart) == std::vector<NodeId>{"a", "b", "c", "a"});
  const auto none = PlanShardMoves(shards, copies, {Server("a"), Server("b", 1, false, 100)}, 12);
  REQUIRE(none.moves.empty());
  REQUIRE_FALSE(none.trouble.empty());
}

TEST_CASE("what_leaves_a_server_never_goes_to_the_one_with_the_other_copy") {
  const auto shards = Shards({{"a", 10}, {"b", 10}});
  const auto copies = Shards({{"b", 10}, {"a", 10}});
  const auto plan =
      PlanShardMoves(shards, copies, {Server("a", 1, true), Server("b"), Server("c")}, 12);
  REQUIRE(Slots(shards, copies, plan) == std::vector<NodeId>{"c", "b", "b", "c"});
  const auto stuck = PlanShardMoves(shards, copies, {Server("a", 1, true), Server("b")}, 12);
  REQUIRE(stuck.moves.empty());
  REQUIRE_FALSE(stuck.trouble.empty());
}

TEST_CASE("a_new_server_takes_its_share_of_shards_and_copies") {
  const auto shards = Shards({{"a", 10}, {"b", 10}, {"a", 10}});
  const auto copies = Shards({{"b", 10}, {"a", 10}, {"b", 10}});
  const auto plan = PlanShardMoves(shards, copies, {Server("a"), Server("b"), Server("c")}, 12);
  std::map<NodeId, int> held;
  const auto slots = Slots(shards, copies, plan);
  for (const NodeId& server : slots) ++held[server];
  REQUIRE(held == std::map<NodeId, int>{{"a", 2}, {"b", 2}, {"c", 2}});
  for (size_t i = 0; i < 3; ++i) REQUIRE(slots[i] != slots[i + 3]);
}

}  // namespace
}  // namespace atl
