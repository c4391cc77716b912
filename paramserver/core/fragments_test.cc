// A job whose rounds concern one fragment each.

#include "common/protocol/fragments.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "common/net/tensor_types.h"
#include "kernels/add_delta.h"
#include "paramserver/core/server_story.h"

namespace atl::ps {
namespace {

using Ids = std::vector<ShardId>;

// Shards 0 and 1 are layer 0, shard 2 is layer 1. Version 1 is the turn of layer 0.
void Initialize(ServerStory& story, int64_t fragments, int64_t snapshot_every = 0) {
  story.outer.fragments = fragments;
  story.Assign({{0, 0, 4}, {1, 0, 2}, {2, 1, 3}}, snapshot_every);
  story.PushAll(story.By(0, -1), 1);
  story.Sync();
  story.Commit(0, {{story.By(0, -1), 1.0}});
  story.Sync();
  story.told.clear();
}

void PushShards(ServerStory& story, const ContributionId& by, std::vector<ShardId> shards,
                float value) {
  for (const ShardId shard : shards) {
    const size_t size = shard == 0 ? 4 : shard == 1 ? 2 : 3;
    story.Push(story.Id(by.island, by.base_version, shard), std::vector<float>(size, value));
  }
  story.Sync();
}

TEST_CASE("a_round_changes_the_shards_of_its_fragment_and_no_others") {
  ServerStory story;
  Initialize(story, 2);
  const auto before = story.Theta(2);
  const auto first = story.Theta(0);
  PushShards(story, story.By(0, 0), {0, 1}, 1);
  story.Commit(1, {{story.By(0, 0), 1.0}});
  story.Sync();
  CHECK(story.version() == 1);
  CHECK(story.Theta(0) != first);
  CHECK(story.Theta(2) == before);
  // A pull names the version of the whole model.
  CHECK(story.replies.at(story.Pull(1, 2)).version == 1);

  const auto changed = story.Theta(0);
  PushShards(story, story.By(0, 1), {2}, 1);
  story.Commit(2, {{story.By(0, 1), 1.0}});
  story.Sync();
  CHECK(story.version() == 2);
  CHECK(story.Theta(0) == changed);
  CHECK(story.Theta(2) != before);
}

TEST_CASE("a_fragment_steps_as_the_whole_model_does") {
  ServerStory parts, whole;
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
  ServerStory story;
  Initialize(story, 2);
  PushShards(story, story.By(0, 0), {0}, 1);
  story.Commit(1, {{story.By(0, 0), 1.0}});
  story.Sync();
  CHECK(story.version() == 0);
}

TEST_CASE("statistics_are_of_the_fragments_layers") {
  ServerStory story;
  Initialize(story, 2);
  PushShards(story, story.By(0, 0), {0, 1}, 1);
  story.told.clear();
  story.Says(CollectStatistics{kJob, 1, {story.By(0, 0)}});
  const auto told = story.Told<Statistics>();
  REQUIRE(told.size() == 1);
  REQUIRE(told[0].layers.size() == 1);
  CHECK(told[0].layers[0].layer == 0);
  CHECK(told[0].layers[0].values[0] == 6);
}

TEST_CASE("a_passed_turn_makes_a_version_that_changes_nothing") {
  ServerStory story;
  Initialize(story, 2);
  PushShards(story, story.By(0, 0), {0, 1}, 1);
  story.Commit(1, {{story.By(0, 0), 1.0}});  // there is a momentum now
  story.Sync();
  const auto before = story.AllTheta();
  story.Commit(2, {});
  story.Commit(3, {});
  story.Sync();
  story.Commit(3, {});
  story.Sync();
  CHECK(story.version() == 3);
  CHECK(story.AllTheta() == before);
}

TEST_CASE("a_replay_and_a_snapshot_between_two_fragments_give_the_same_bits") {
  const int64_t snapshot_every = GENERATE(0, 1, 2);
  ServerStory story;
  Initialize(story, 2, snapshot_every);
  PushShards(story, story.By(0, 0), {0, 1}, 0.25);
  PushShards(story, story.By(1, 1), {2}, 0.75);  // of the next turn, staged before this one
  story.Commit(1, {{story.By(0, 0), 1.0}});
  story.Sync();
  story.Crash();
  CHECK(story.version() == 1);
  story.Assign({{0, 0, 4}, {1, 0, 2}, {2, 1, 3}}, snapshot_every);
  story.Commit(2, {{story.By(1, 1), 1.0}});
  story.Sync();
  CHECK(story.version() == 2);
  const auto after = story.AllTheta();
  story.Crash();
  CHECK(story.version() == 2);
  CHECK(story.AllTheta() == after);
}

// An island that adopts versions by steps where it can.
struct Puller {
  explicit Puller(ServerStory& server) : story(server) {}

  std::optional<std::vector<float>> Pull(Version version, ShardId shard, int32_t slot) {
    story.Do(PullAsked{kJob, version, shard, ++token, 0, 0, slot});
    const auto reply = story.replies.find(token);
    if (reply == story.replies.end()) {
      const PullRefusal refusal = story.refusals.at(token).refusal;
      INFO("version " << version << ", shard " << shard << ": " << story.refusals.at(token).reason);
      REQUIRE(refusal == PullRefusal::kUnknown);
      return std::nullopt;
    }
    std::vector<float> values(reply->second.values.begin(), reply->second.values.end());
    story.replies.clear();  // they are leases
    return values;
  }
  void Adopt(Version version) {
    ThreadPool pool(1);
    for (const OwnedShard& shard : shards) {
      std::vector<float>& here = base[shard.shard];
      const int64_t turns = TurnsSince(held, version, shard.layer, 2);
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

  ServerStory& story;
  std::vector<OwnedShard> shards = {{0, 0, 4}, {1, 0, 2}, {2, 1, 3}};
  std::map<ShardId, std::vector<float>> base;
  Version held = kNoVersion;
  int steps = 0;
  Token token = 1'000'000;
};

TEST_CASE("islands_that_add_steps_have_what_is_served_whatever_turns_they_missed") {
  const bool crashes = GENERATE(false, true);
  ServerStory story;
  story.outer.pull_encoding = Encoding::kInt4;
  Initialize(story, 2, crashes ? 3 : 0);
  Puller always(story), seldom(story);
  always.Adopt(0);
  seldom.Adopt(0);
  for (Version version = 1; version <= 12; ++version) {
    const bool passed = version % 5 == 0;
    const ContributionId by = story.By(0, version - 1);
    const float value = 0.1F * static_cast<float>(version);
    if (!passed) PushShards(story, by, version % 2 == 1 ? Ids{0, 1} : Ids{2}, value);
    story.Commit(version, passed ? std::vector<RoundTerm>() : std::vector<RoundTerm>{{by, 1.0}});
    story.Sync();
    REQUIRE(story.version() == version);
    if (crashes && version % 4 == 0) {
      story.Crash();
      story.Assign(always.shards, 3);
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
  ServerStory story;
  story.outer.pull_encoding = Encoding::kInt4;
  Initialize(story, 2);
  Puller island(story);
  PushShards(story, story.By(0, 0), {0, 1}, 1);
  story.Push(story.Id(1, 0, 0), {1.0F, 0.3F, -0.7F, 0.2F});
  story.Push(story.Id(1, 0, 1), {0.9F, -0.35F});
  story.Sync();
  story.Commit(1, {{story.By(0, 0), 0.5}, {story.By(1, 0), 0.5}});
  story.Sync();
  story.Commit(2, {});
  story.Sync();
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
  story.Commit(3, {});
  story.Sync();
  CHECK(*island.Pull(3, 0, kPullTheta) == theta);
  CHECK(before > 0);
  CHECK(error(3) < 0.2F * before);
}

}  // namespace
}  // namespace atl::ps
