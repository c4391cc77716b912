#include "coordinator/core/shards/move_plan.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/estimate.h"
#include "common/rng.h"
#include "coordinator/core/shards/server_access_cost.h"

namespace atl {
namespace {

using Shards = std::vector<ShardDescriptor>;

Shards MakeShards(const std::vector<std::pair<NodeId, int64_t>>& held) {
  Shards shards;
  for (const auto& [server, elements] : held) {
    ShardDescriptor& shard = shards.emplace_back();
    shard.shard = static_cast<ShardId>(shards.size()) - 1;
    shard.elements = elements;
    shard.replicas = {{.server = server, .role = ReplicaRole::kActive}};
  }
  return shards;
}

PlacementServer Server(NodeId name, double cost = 1, bool leaves = false,
                       int64_t free_bytes = 1 << 20) {
  return {std::move(name), cost, free_bytes, !leaves, leaves};
}

void Move(Shards& shards, const MovePlan& plan) {
  for (const ReplicaMove& move : plan.moves) {
    std::vector<ShardReplica>& replicas = shards[static_cast<size_t>(move.shard)].replicas;
    if (move.replaces.empty()) {
      replicas.push_back({.server = move.to, .role = ReplicaRole::kStandby});
    }
    for (ShardReplica& replica : replicas) {
      if (replica.server == move.replaces) replica.server = move.to;
    }
  }
}

// Elements by server, after the moves.
std::map<NodeId, int64_t> After(Shards shards, const MovePlan& plan) {
  Move(shards, plan);
  std::map<NodeId, int64_t> held;
  for (const ShardDescriptor& shard : shards) {
    for (const ShardReplica& replica : shard.replicas) held[replica.server] += shard.elements;
  }
  return held;
}

TEST_CASE("a_balanced_placement_stays") {
  const auto shards = MakeShards({{"a", 10}, {"b", 10}, {"a", 4}, {"b", 5}});
  const MovePlan plan = PlanShardMoves(shards, 1, {Server("a"), Server("b")}, 12);
  REQUIRE(plan.moves.empty());
  REQUIRE(plan.trouble.empty());
}

TEST_CASE("a_new_server_takes_its_share") {
  const auto shards = MakeShards({{"a", 10}, {"a", 10}, {"a", 10}, {"a", 10}});
  const MovePlan plan = PlanShardMoves(shards, 1, {Server("a"), Server("b")}, 12);
  REQUIRE(After(shards, plan) == std::map<NodeId, int64_t>{{"a", 20}, {"b", 20}});
}

TEST_CASE("a_server_that_leaves_is_emptied_onto_the_others_evenly") {
  const auto shards = MakeShards({{"a", 10}, {"a", 10}, {"b", 10}, {"c", 10}});
  const MovePlan plan =
      PlanShardMoves(shards, 1, {Server("a", 1, true), Server("b"), Server("c")}, 12);
  REQUIRE(After(shards, plan) == std::map<NodeId, int64_t>{{"b", 20}, {"c", 20}});
}

TEST_CASE("what_fits_nowhere_stays_and_says_why") {
  const auto shards = MakeShards({{"a", 100}});
  const MovePlan plan =
      PlanShardMoves(shards, 1, {Server("a", 1, true), Server("b", 1, false, 1199)}, 12);
  REQUIRE(plan.moves.empty());
  REQUIRE(plan.trouble.find("server a") != std::string::npos);
  const MovePlan fits =
      PlanShardMoves(shards, 1, {Server("a", 1, true), Server("b", 1, false, 1200)}, 12);
  REQUIRE(fits.moves.size() == 1);
}

TEST_CASE("a_far_server_gets_so_much_less") {
  const auto shards = MakeShards({{"a", 10}, {"a", 10}, {"a", 10}});
  const MovePlan plan =
      PlanShardMoves(shards, 1, {Server("a", 1, true), Server("near"), Server("far", 2)}, 12);
  REQUIRE(After(shards, plan) == std::map<NodeId, int64_t>{{"far", 10}, {"near", 20}});
}

TEST_CASE("a_placement_balanced_by_cost_stays") {
  const auto shards = MakeShards({{"near", 10}, {"near", 10}, {"near", 10}, {"far", 10}});
  REQUIRE(PlanShardMoves(shards, 1, {Server("near"), Server("far", 3)}, 4).moves.empty());
}

// Two equal servers and shards that are balanced over them; an island pulls from both.
struct NoisyPair {
  Shards shards;
  std::map<NodeId, Estimate> rates;
  int balanced_at = -3600;  // seconds
  int changes = 0;

  NoisyPair() {
    for (int i = 0; i < 16; ++i) shards.push_back(MakeShards({{i % 2 == 0 ? "a" : "b", 10}})[0]);
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
    const MovePlan plan = PlanShardMoves(shards, 1, servers, 12, balanced);
    if (plan.moves.empty()) return;
    ++changes;
    balanced_at = seconds;
    Move(shards, plan);
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
  const auto shards = MakeShards({{"a", 10}, {"a", 10}, {"b", 10}, {"b", 10}});
  const MovePlan plan = PlanShardMoves(shards, 1, {Server("a", 20), Server("b")}, 4);
  REQUIRE(After(shards, plan) == std::map<NodeId, int64_t>{{"b", 40}});
}

// -- shards with two replicas

// An empty server: the shard has none.
Shards MakePairs(const std::vector<std::pair<NodeId, NodeId>>& held) {
  Shards shards;
  for (const auto& [active, standby] : held) {
    shards.push_back(MakeShards({{active, 10}})[0]);
    shards.back().shard = static_cast<ShardId>(shards.size()) - 1;
    if (standby.empty()) continue;
    shards.back().replicas.push_back({.server = standby, .role = ReplicaRole::kStandby});
  }
  return shards;
}

// "a b" of a shard that is active on a and has its standby on b.
std::vector<std::string> Holders(Shards shards, const MovePlan& plan) {
  Move(shards, plan);
  std::vector<std::string> holders;
  for (const ShardDescriptor& shard : shards) {
    std::string& text = holders.emplace_back();
    for (const ShardReplica& replica : shard.replicas) {
      text += (text.empty() ? "" : " ") + replica.server;
    }
  }
  return holders;
}

PlacementServer At(std::string site, PlacementServer server) {
  server.site = std::move(site);
  return server;
}

TEST_CASE("a_copy_that_there_is_not_is_made_on_another_server_at_another_site_if_there_is_one") {
  const auto shards = MakePairs({{"a", ""}, {"b", "a"}});
  const auto here = PlanShardMoves(shards, 2, {Server("a"), Server("b")}, 12);
  REQUIRE(Holders(shards, here) == std::vector<std::string>{"a b", "b a"});
  const auto apart = PlanShardMoves(
      shards, 2, {At("x", Server("a")), At("x", Server("b")), At("y", Server("c", 5))}, 12);
  REQUIRE(Holders(shards, apart) == std::vector<std::string>{"a c", "b a"});
  const auto none = PlanShardMoves(shards, 2, {Server("a"), Server("b", 1, false, 100)}, 12);
  REQUIRE(none.moves.empty());
  REQUIRE_FALSE(none.trouble.empty());
}

TEST_CASE("what_leaves_a_server_never_goes_to_the_one_with_the_other_copy") {
  const auto shards = MakePairs({{"a", "b"}, {"b", "a"}});
  const auto plan = PlanShardMoves(shards, 2, {Server("a", 1, true), Server("b"), Server("c")}, 12);
  REQUIRE(Holders(shards, plan) == std::vector<std::string>{"c b", "b c"});
  const auto stuck = PlanShardMoves(shards, 2, {Server("a", 1, true), Server("b")}, 12);
  REQUIRE(stuck.moves.empty());
  REQUIRE_FALSE(stuck.trouble.empty());
}

TEST_CASE("a_new_server_takes_its_share_of_shards_and_copies") {
  const auto shards = MakePairs({{"a", "b"}, {"b", "a"}, {"a", "b"}});
  const auto plan = PlanShardMoves(shards, 2, {Server("a"), Server("b"), Server("c")}, 12);
  REQUIRE(After(shards, plan) == std::map<NodeId, int64_t>{{"a", 20}, {"b", 20}, {"c", 20}});
  for (const std::string& holders : Holders(shards, plan)) REQUIRE(holders[0] != holders[2]);
}

}  // namespace
}  // namespace atl
