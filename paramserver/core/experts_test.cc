// Rounds of a mixture: shards 1 and 2 are experts 0 and 1.

#include <catch2/catch.hpp>

#include "paramserver/core/testing/server_fixture.h"

namespace atl::ps {
namespace {

// Version 0 is there.
struct Mixture : ServerFixture {
  explicit Mixture(int64_t expert_fragments = 1) {
    outer = {.learning_rate = 1, .optimizer = "sgd", .expert_fragments = expert_fragments};
    Assign({{0, 0, 4}, {1, 0, 2, 4, 0}, {2, 1, 3, 0, 1}});
    PushAll(kInitial, 1);
    Apply(0, {{kInitial, 1.0}});
    sent.clear();
    REQUIRE(version() == 0);
  }
  // Pushes these shards, all elements `value`.
  void PushShards(IslandId island, const std::vector<ShardId>& shards, float value,
                  Version base = 0) {
    for (const ShardId shard : shards) {
      const size_t size = shard == 0 ? 4 : shard == 1 ? 2 : 3;
      Push(Id(island, base, shard), std::vector<float>(size, value));
    }
  }
  // Returns how far the round moved a shard's first element, in units of a push.
  double Step(ShardId shard, const std::vector<float>& before) const {
    return (before[0] - Theta(shard)[0]) / assigned_rate;
  }
  double assigned_rate = 0.5;  // of ServerFixture::Assign
};

TEST_CASE("an_expert_has_the_average_of_those_whose_tokens_it_saw") {
  Mixture server;
  const auto shared = server.Theta(0), first = server.Theta(1), second = server.Theta(2);
  server.PushShards(0, {0, 1}, 1);
  server.PushShards(1, {0, 1, 2}, 2);
  server.Apply(1, {{server.By(0, 0), 0.5, 100, {30, 0}}, {server.By(1, 0), 0.5, 100, {10, 20}}});
  REQUIRE(server.version() == 1);
  CHECK(server.Step(0, shared) == Approx(1.5));
  CHECK(server.Step(1, first) == Approx(0.75 * 1 + 0.25 * 2));
  CHECK(server.Step(2, second) == Approx(2));
}

TEST_CASE("an_expert_that_no_island_saw_stays_and_the_next_round_has_it") {
  Mixture server;
  const auto second = server.Theta(2);
  server.PushShards(0, {0, 1}, 1);
  server.Apply(1, {{server.By(0, 0), 1.0, 100, {30, 0}}});
  REQUIRE(server.version() == 1);
  CHECK(server.Theta(2) == second);
  server.PushShards(0, {0, 1, 2}, 1, 1);
  server.Apply(2, {{server.By(0, 1), 1.0, 100, {30, 1}}});
  REQUIRE(server.version() == 2);
  CHECK(server.Step(2, second) == Approx(1));
}

TEST_CASE("one_island_and_equal_shares_are_the_plain_average_bit_for_bit") {
  Mixture weighted, plain;
  for (Mixture* server : {&weighted, &plain}) {
    server->PushAll(server->By(0, 0), 5);
    server->PushAll(server->By(1, 0), 6);
  }
  weighted.Apply(1, {{weighted.By(0, 0), 0.3, 30, {6, 3}}, {weighted.By(1, 0), 0.7, 70, {14, 7}}});
  plain.Apply(1, {{plain.By(0, 0), 0.3}, {plain.By(1, 0), 0.7}});
  CHECK(weighted.AllTheta() == plain.AllTheta());
  for (Mixture* server : {&weighted, &plain}) server->PushAll(server->By(0, 1), 7);
  weighted.Apply(2, {{weighted.By(0, 1), 1.0, 30, {1, 29}}});
  plain.Apply(2, {{plain.By(0, 1), 1.0}});
  REQUIRE(weighted.version() == 2);
  CHECK(weighted.AllTheta() == plain.AllTheta());
}

TEST_CASE("a_round_waits_for_the_experts_that_saw_tokens") {
  Mixture server;
  server.PushShards(0, {0, 1}, 1);
  server.Apply(1, {{server.By(0, 0), 1.0, 100, {30, 1}}});
  CHECK(server.version() == 0);
}

TEST_CASE("a_server_that_starts_again_makes_the_same_rounds_of_experts") {
  Mixture server, other;
  for (Mixture* each : {&server, &other}) {
    each->PushShards(0, {0, 1}, 1);
    each->PushShards(1, {0, 1, 2}, 2);
    each->Sync();
  }
  server.Crash();
  for (Mixture* each : {&server, &other}) {
    each->Commit(1, {{each->By(0, 0), 0.5, 100, {30, 0}}, {each->By(1, 0), 0.5, 100, {10, 20}}});
    each->Sync();
  }
  server.Crash();
  REQUIRE(server.version() == 1);
  CHECK(server.AllTheta() == other.AllTheta());
}

TEST_CASE("statistics_count_the_experts_that_were_pushed") {
  Mixture server;
  server.PushShards(0, {0, 1}, 1);
  server.PushShards(1, {0, 1, 2}, 2);
  server.Sync();
  server.DeliverMessage(CollectStatistics{kJob, 1, {server.By(0, 0), server.By(1, 0)}});
  const std::vector<Statistics> made = server.TakeSent<Statistics>();
  REQUIRE(made.size() == 1);
  double own = 0, others = 0, between = 0;
  for (const LayerGram& layer : made[0].layers) {
    REQUIRE(layer.values.size() == 4);
    own += layer.values[0];
    between += layer.values[1];
    others += layer.values[3];
  }
  CHECK(own == 6);      // six elements of 1
  CHECK(others == 36);  // nine of 2
  CHECK(between == 12);
}

TEST_CASE("experts_in_turn_are_stepped_and_all_else_in_every_round") {
  Mixture server(2);
  const auto shared = server.Theta(0), first = server.Theta(1), second = server.Theta(2);
  server.PushShards(0, {0, 1}, 1);
  server.Apply(1, {{server.By(0, 0), 1.0, 100, {30, 5}}});
  REQUIRE(server.version() == 1);
  CHECK(server.Step(1, first) == Approx(1));
  CHECK(server.Theta(2) == second);
  server.PushShards(0, {0, 2}, 1, 1);
  server.Apply(2, {{server.By(0, 1), 1.0, 100, {30, 5}}});
  REQUIRE(server.version() == 2);
  CHECK(server.Step(0, shared) == Approx(2));
  CHECK(server.Step(1, first) == Approx(1));
  CHECK(server.Step(2, second) == Approx(1));
}

}  // namespace
}  // namespace atl::ps
