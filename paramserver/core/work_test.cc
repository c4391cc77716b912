// The arithmetic of a round is done a shard at a time here: what happens between two of them.

#include <catch2/catch.hpp>

#include "paramserver/core/server_story.h"

namespace atl::ps {
namespace {

// Version 0 is committed and the pushes of version 1 are durable. Arithmetic waits to be requested.
struct Round {
  explicit Round(bool in_parts) {
    story.Assign();
    story.PushAll(story.By(0, -1), /*seed=*/1);
    story.Sync();
    story.Commit(0, {{story.By(0, -1), 1.0}});
    story.Sync();
    for (IslandId island = 0; island < 2; ++island) {
      for (ShardId shard = 0; shard < 3; ++shard) {
        Rng rng(10 + island, static_cast<uint64_t>(shard));
        std::vector<float> values(std::vector<size_t>{4, 2, 3}[static_cast<size_t>(shard)]);
        for (float& value : values) value = static_cast<float>(rng.Normal());
        story.Push(story.Id(island, 0, shard), values);
      }
    }
    story.Sync();
    story.told.clear();
    story.in_parts = in_parts;
  }
  void Commits() {
    story.Commit(1, {{story.By(0, 0), 0.5}, {story.By(1, 0), 0.5}});
    story.Sync();
  }
  std::vector<float> Theta() const {
    std::vector<float> all;
    for (const ShardId shard : {0, 1, 2}) {
      for (const float value : story.Theta(shard)) all.push_back(value);
    }
    return all;
  }
  ServerStory story;
};

TEST_CASE("a round is applied a part at a time, and nothing of it is seen before all is done") {
  Round whole(/*in_parts=*/false), parts(/*in_parts=*/true);
  whole.Commits();
  parts.Commits();
  ServerStory& story = parts.story;
  for (int part = 0; part < 3; ++part) {
    REQUIRE(story.version() == 0);
    REQUIRE(story.Told<RoundApplied>().empty());
    // The first shards have other bits already.
    const Token stepped = story.Pull(0, 0), not_yet = story.Pull(0, 2);
    REQUIRE(story.replies.contains(not_yet));
    REQUIRE(story.replies.contains(stepped) == (part == 0));
    if (part > 0) REQUIRE(story.refusals.at(stepped).refusal == PullRefusal::kNotYet);
    story.Turn(Tick{});
  }
  REQUIRE(story.version() == 1);
  REQUIRE(story.Told<RoundApplied>().size() == 1);
  REQUIRE(parts.Theta() == whole.Theta());
}

TEST_CASE("heartbeats go out and pushes are taken between two parts of a round") {
  Round round(/*in_parts=*/true);
  ServerStory& story = round.story;
  round.Commits();
  story.told.clear();
  story.Wait(kHeartbeatInterval);
  REQUIRE(story.Told<ServerHeartbeat>().size() == 1);
  REQUIRE(story.version() == 0);
  const Token push = story.Push(story.Id(5, 0, 0), {1, 2, 3, 4});
  story.Sync();
  REQUIRE(story.Answered(push, PushStatus::kStaged));
  REQUIRE(story.version() == 0);
}

TEST_CASE("a crash between two parts of a round costs nothing: the log has it") {
  Round whole(/*in_parts=*/false), parts(/*in_parts=*/true);
  whole.Commits();
  parts.Commits();
  parts.story.Turn(Tick{});
  parts.story.Crash();
  REQUIRE(parts.story.version() == 1);
  REQUIRE(parts.Theta() == whole.Theta());
}

TEST_CASE("the end of a job and its removal wait for no part") {
  Round round(/*in_parts=*/true);
  ServerStory& story = round.story;
  round.Commits();
  story.Turn(Tick{});
  SECTION("the end comes when the round is applied") {
    story.Says(EndJob{kJob});
    story.Turn(Tick{});
    story.Turn(Tick{});
    REQUIRE(story.version() == 1);
    REQUIRE(story.Told<RoundApplied>().size() == 1);
  }
  SECTION("removal at once") {
    story.Says(RemoveJob{kJob});
    REQUIRE(story.asked_erasures.size() == 1);
    story.Turn(Tick{});
    REQUIRE(story.version() == kNoVersion);
  }
}

TEST_CASE("statistics are made a part at a time, once for repeated requests") {
  Round whole(/*in_parts=*/false), parts(/*in_parts=*/true);
  const auto ask = [](Round& round) {
    round.story.Says(CollectStatistics{kJob, 1, {round.story.By(0, 0), round.story.By(1, 0)}});
  };
  ask(whole);
  const auto expected = whole.story.Told<Statistics>();
  REQUIRE(expected.size() == 1);
  for (int part = 0; part < 3; ++part) {
    REQUIRE(parts.story.Told<Statistics>().empty());
    ask(parts);
    parts.story.Turn(Tick{});
  }
  const auto told = parts.story.Told<Statistics>();
  REQUIRE(told.size() == 1);
  REQUIRE(told[0].layers.size() == expected[0].layers.size());
  for (size_t i = 0; i < told[0].layers.size(); ++i) {
    REQUIRE(told[0].layers[i].values == expected[0].layers[i].values);
  }
}

TEST_CASE("statistics of a contribution that is dropped meanwhile are not made") {
  Round round(/*in_parts=*/true);
  ServerStory& story = round.story;
  story.Says(CollectStatistics{kJob, 1, {story.By(0, 0), story.By(1, 0)}});
  story.Turn(Tick{});
  story.Says(DropContributions{kJob, {story.By(1, 0)}, "its island has failed"});
  for (int part = 0; part < 3; ++part) story.Turn(Tick{});
  REQUIRE(story.Told<Statistics>().empty());
  REQUIRE(story.Told<ServerFault>().empty());
}

}  // namespace
}  // namespace atl::ps
