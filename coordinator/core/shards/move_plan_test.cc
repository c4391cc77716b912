#include "coordinator/core/shards/move_plan.h"

#include <catch2/catch.hpp>
#include <map>

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

MoveServer Server(NodeId name, double cost = 1, bool leaves = false, int64_t free_bytes = 1 << 20) {
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

MoveServer At(std::string site, MoveServer server) {
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
