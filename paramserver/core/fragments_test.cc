// A job whose rounds concern one fragment each.

#include <algorithm>
#include <catch2/catch.hpp>

#include "paramserver/core/server_story.h"

namespace atl::ps {
namespace {

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

}  // namespace
}  // namespace atl::ps
