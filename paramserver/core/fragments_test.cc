// A job whose rounds concern one fragment each.

#include "common/protocol/fragments.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "common/net/tensor/tensor_types.h"
#include "kernels/add_delta.h"
#include "paramserver/core/testing/server_fixture.h"

namespace atl::ps {
namespace {

using Ids = std::vector<ShardId>;

// Shards 0 and 1 are layer 0, shard 2 is layer 1. Version 1 is the turn of layer 0.
void Initialize(ServerFixture& fixture, int64_t fragments, int64_t snapshot_every = 0) {
  fixture.outer.fragments = fragments;
  fixture.Begin(snapshot_every);
}

void PushShards(ServerFixture& fixture, const ContributionId& by, std::vector<ShardId> shards,
                float value) {
  for (const ShardId shard : shards) {
    const size_t size = shard == 0 ? 4 : shard == 1 ? 2 : 3;
    fixture.Push(fixture.Id(by.island, by.base_version, shard), std::vector<float>(size, value));
  }
  fixture.Sync();
}

TEST_CASE("a_round_changes_the_shards_of_its_fragment_and_no_others") {
  ServerFixture fixture;
  Initialize(fixture, 2);
  const auto before = fixture.Theta(2);
  const auto first = fixture.Theta(0);
  PushShards(fixture, fixture.By(0, 0), {0, 1}, 1);
  fixture.Commit(1, {{fixture.By(0, 0), 1.0}});
  fixture.Sync();
  CHECK(fixture.version() == 1);
  CHECK(fixture.Theta(0) != first);
  CHECK(fixture.Theta(2) == before);
  // A pull names the version of the whole model.
  CHECK(fixture.replies.at(fixture.Pull(1, 2)).version == 1);

  const auto changed = fixture.Theta(0);
  PushShards(fixture, fixture.By(0, 1), {2}, 1);
  fixture.Commit(2, {{fixture.By(0, 1), 1.0}});
  fixture.Sync();
  CHECK(fixture.version() == 2);
  CHECK(fixture.Theta(0) == changed);
  CHECK(fixture.Theta(2) != before);
}

TEST_CASE("a_fragment_steps_as_the_whole_model_does") {
  ServerFixture parts, whole;
  Initialize(parts, 2);
  Initialize(whole, 1);
  PushShards(whole, whole.By(0, 0), {0, 1, 2}, 0.5);
  whole.Commit(1, {{whole.By(0, 0), 1.0}});
  whole.Sync();
  PushShards(parts, parts.By(0, 0), {0, 1}, 0.5);
  parts.Commit(1, {{parts.By(0, 0), 1.0}});
  parts.Sync();
  PushShards(parts, parts.By(0, 1), {2}, 0.5);
  parts.Commit(2, {{parts.By(0, 1), 1.0}});
  parts.Sync();
  CHECK(parts.version() == 2);
  CHECK(parts.AllTheta() == whole.AllTheta());
}

TEST_CASE("a_round_waits_for_all_shards_of_its_fragment") {
  ServerFixture fixture;
  Initialize(fixture, 2);
  PushShards(fixture, fixture.By(0, 0), {0}, 1);
  fixture.Commit(1, {{fixture.By(0, 0), 1.0}});
  fixture.Sync();
  CHECK(fixture.version() == 0);
}

TEST_CASE("statistics_are_of_the_fragments_layers") {
  ServerFixture fixture;
  Initialize(fixture, 2);
  PushShards(fixture, fixture.By(0, 0), {0, 1}, 1);
  fixture.sent.clear();
  fixture.DeliverMessage(CollectStatistics{kJob, 1, {fixture.By(0, 0)}});
  const auto sent = fixture.TakeSent<Statistics>();
  REQUIRE(sent.size() == 1);
  REQUIRE(sent[0].layers.size() == 1);
  CHECK(sent[0].layers[0].layer == 0);
  CHECK(sent[0].layers[0].values[0] == 6);
}

TEST_CASE("a_passed_turn_makes_a_version_that_changes_nothing") {
  ServerFixture fixture;
  Initialize(fixture, 2);
  PushShards(fixture, fixture.By(0, 0), {0, 1}, 1);
  fixture.Commit(1, {{fixture.By(0, 0), 1.0}});  // there is a momentum now
  fixture.Sync();
  const auto before = fixture.AllTheta();
  fixture.Commit(2, {});
  fixture.Commit(3, {});
  fixture.Apply(3, {});
  CHECK(fixture.version() == 3);
  CHECK(fixture.AllTheta() == before);
}

TEST_CASE("a_replay_and_a_snapshot_between_two_fragments_give_the_same_bits") {
  const int64_t snapshot_every = GENERATE(0, 1, 2);
  ServerFixture fixture;
  Initialize(fixture, 2, snapshot_every);
  PushShards(fixture, fixture.By(0, 0), {0, 1}, 0.25);
  PushShards(fixture, fixture.By(1, 1), {2}, 0.75);  // of the next turn, staged before this one
  fixture.Commit(1, {{fixture.By(0, 0), 1.0}});
  fixture.Sync();
  fixture.Crash();
  CHECK(fixture.version() == 1);
  fixture.Assign({{0, 0, 4}, {1, 0, 2}, {2, 1, 3}}, snapshot_every);
  fixture.Commit(2, {{fixture.By(1, 1), 1.0}});
  fixture.Sync();
  CHECK(fixture.version() == 2);
  const auto after = fixture.AllTheta();
  fixture.Crash();
  CHECK(fixture.version() == 2);
  CHECK(fixture.AllTheta() == after);
}

// An island that adopts versions by steps where it can.
struct Puller {
  explicit Puller(ServerFixture& server) : fixture(server) {}

  std::optional<std::vector<float>> Pull(Version version, ShardId shard, int32_t slot) {
    fixture.Do(PullArrived{kJob, version, shard, ++token, 0, 0, slot});
    const auto reply = fixture.replies.find(token);
    if (reply == fixture.replies.end()) {
      const PullRefusal refusal = fixture.refusals.at(token).refusal;
      INFO("version " << version << ", shard " << shard << ": "
                      << fixture.refusals.at(token).reason);
      REQUIRE(refusal == PullRefusal::kUnknown);
      return std::nullopt;
    }
    std::vector<float> values(reply->second.values.begin(), reply->second.values.end());
    fixture.replies.clear();  // they are leases
    return values;
  }
  void Adopt(Version version) {
    ThreadPool pool(1);
    for (const OwnedShard& shard : shards) {
      std::vector<float>& here = base[shard.shard];
      const int64_t turns = CountTurnsSince(held, version, shard, Fragments{2});
      const auto step = turns == 1 && held >= 0 ? Pull(version, shard.shard, kPullStep)
                                                : std::optional<std::vector<float>>(std::nullopt);
      if (step) {
        AddDelta({step->data(), Encoding::kInt4, shard.elements}, here, here, pool);
        ++steps;
      } else if (turns > 0) {
        here = Pull(version, shard.shard, kPullServed).value();
      }
      INFO("version " << version << ", shard " << shard.shard);
      REQUIRE(here == *Pull(version, shard.shard, kPullServed));
    }
    held = version;
  }

  ServerFixture& fixture;
  std::vector<OwnedShard> shards = {{0, 0, 4}, {1, 0, 2}, {2, 1, 3}};
  std::map<ShardId, std::vector<float>> base;
  Version held = kNoVersion;
  int steps = 0;
  Token token = 1'000'000;
};

TEST_CASE("islands_that_add_steps_have_what_is_served_whatever_turns_they_missed") {
  const bool crashes = GENERATE(false, true);
  ServerFixture fixture;
  fixture.outer.pull_encoding = Encoding::kInt4;
  Initialize(fixture, 2, crashes ? 3 : 0);
  Puller always(fixture), seldom(fixture);
  always.Adopt(0);
  seldom.Adopt(0);
  for (Version version = 1; version <= 12; ++version) {
    const bool passed = version % 5 == 0;
    const ContributionId by = fixture.By(0, version - 1);
    const float value = 0.1F * static_cast<float>(version);
    if (!passed) PushShards(fixture, by, version % 2 == 1 ? Ids{0, 1} : Ids{2}, value);
    fixture.Commit(version, passed ? std::vector<RoundTerm>() : std::vector<RoundTerm>{{by, 1.0}});
    fixture.Sync();
    REQUIRE(fixture.version() == version);
    if (crashes && version % 4 == 0) {
      fixture.Crash();
      fixture.Assign(always.shards, 3);
    }
    always.Adopt(version);
    if (version % 3 == 0) seldom.Adopt(version);
  }
  if (!crashes) CHECK(always.steps == 6 * 2 + 6);
  CHECK(always.steps > 8);
  CHECK(seldom.steps > 0);
  CHECK(seldom.steps < always.steps / 2);
}

TEST_CASE("a_passed_turn_leaves_parameters_as_they_are_and_brings_what_was_rounded_away") {
  ServerFixture fixture;
  fixture.outer.pull_encoding = Encoding::kInt4;
  Initialize(fixture, 2);
  Puller island(fixture);
  PushShards(fixture, fixture.By(0, 0), {0, 1}, 1);
  fixture.Push(fixture.Id(1, 0, 0), {1.0F, 0.3F, -0.7F, 0.2F});
  fixture.Push(fixture.Id(1, 0, 1), {0.9F, -0.35F});
  fixture.Apply(1, {{fixture.By(0, 0), 0.5}, {fixture.By(1, 0), 0.5}});
  fixture.Commit(2, {});
  fixture.Sync();
  const auto error = [&](Version version) {
    const auto theta = *island.Pull(version, 0, kPullTheta);
    const auto served = *island.Pull(version, 0, kPullServed);
    float worst = 0;
    for (size_t i = 0; i < theta.size(); ++i) {
      worst = std::max(worst, std::abs(theta[i] - served[i]));
    }
    return worst;
  };
  const float before = error(2);
  const auto theta = *island.Pull(2, 0, kPullTheta);
  fixture.Commit(3, {});
  fixture.Sync();
  CHECK(*island.Pull(3, 0, kPullTheta) == theta);
  CHECK(before > 0);
  CHECK(error(3) < 0.2F * before);
}

}  // namespace
}  // namespace atl::ps
