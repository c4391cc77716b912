// The arithmetic of a round is done a shard at a time here: what happens between two of them.

#include <catch2/catch.hpp>

#include "paramserver/core/testing/server_fixture.h"

namespace atl::ps {
namespace {

// Version 0 is committed and the pushes of version 1 are durable. Arithmetic waits to be requested.
struct Round {
  explicit Round(bool in_parts) {
    fixture.Begin();
    for (IslandId island = 0; island < 2; ++island) {
      for (ShardId shard = 0; shard < 3; ++shard) {
        Rng rng(10 + island, static_cast<uint64_t>(shard));
        std::vector<float> values(std::vector<size_t>{4, 2, 3}[static_cast<size_t>(shard)]);
        for (float& value : values) value = static_cast<float>(rng.Normal());
        fixture.Push(fixture.Id(island, 0, shard), values);
      }
    }
    fixture.Sync();
    fixture.sent.clear();
    fixture.in_parts = in_parts;
  }
  void Commits() {
    fixture.Commit(1, {{fixture.By(0, 0), 0.5}, {fixture.By(1, 0), 0.5}});
    fixture.Sync();
  }
  std::vector<float> Theta() const {
    std::vector<float> all;
    for (const ShardId shard : {0, 1, 2}) {
      for (const float value : fixture.Theta(shard)) all.push_back(value);
    }
    return all;
  }
  ServerFixture fixture;
};

TEST_CASE("a round is applied a part at a time, and nothing of it is seen before all is done") {
  Round whole(/*in_parts=*/false), parts(/*in_parts=*/true);
  whole.Commits();
  parts.Commits();
  ServerFixture& fixture = parts.fixture;
  for (int part = 0; part < 3; ++part) {
    REQUIRE(fixture.version() == 0);
    REQUIRE(fixture.TakeSent<RoundApplied>().empty());
    // The first shards have other bits already.
    const Token stepped = fixture.Pull(0, 0), not_yet = fixture.Pull(0, 2);
    REQUIRE(fixture.replies.contains(not_yet));
    REQUIRE(fixture.replies.contains(stepped) == (part == 0));
    if (part > 0) REQUIRE(fixture.refusals.at(stepped).refusal == PullRefusal::kNotYet);
    fixture.Turn(Tick{});
  }
  REQUIRE(fixture.version() == 1);
  REQUIRE(fixture.TakeSent<RoundApplied>().size() == 1);
  REQUIRE(parts.Theta() == whole.Theta());
}

TEST_CASE("heartbeats go out and pushes are taken between two parts of a round") {
  Round round(/*in_parts=*/true);
  ServerFixture& fixture = round.fixture;
  round.Commits();
  fixture.sent.clear();
  fixture.Wait(kHeartbeatInterval);
  REQUIRE(fixture.TakeSent<ServerHeartbeat>().size() == 1);
  REQUIRE(fixture.version() == 0);
  const Token push = fixture.Push(fixture.Id(5, 0, 0), {1, 2, 3, 4});
  fixture.Sync();
  REQUIRE(fixture.Answered(push, PushStatus::kStaged));
  REQUIRE(fixture.version() == 0);
}

TEST_CASE("a crash between two parts of a round costs nothing: the log has it") {
  Round whole(/*in_parts=*/false), parts(/*in_parts=*/true);
  whole.Commits();
  parts.Commits();
  parts.fixture.Turn(Tick{});
  parts.fixture.Crash();
  REQUIRE(parts.fixture.version() == 1);
  REQUIRE(parts.Theta() == whole.Theta());
}

TEST_CASE("the end of a job and its removal wait for no part") {
  Round round(/*in_parts=*/true);
  ServerFixture& fixture = round.fixture;
  round.Commits();
  fixture.Turn(Tick{});
  SECTION("the end comes when the round is applied") {
    fixture.DeliverMessage(EndJob{kJob});
    fixture.Turn(Tick{});
    fixture.Turn(Tick{});
    REQUIRE(fixture.version() == 1);
    REQUIRE(fixture.TakeSent<RoundApplied>().size() == 1);
  }
  SECTION("removal at once") {
    fixture.DeliverMessage(RemoveJob{kJob});
    REQUIRE(fixture.requested_erasures.size() == 1);
    fixture.Turn(Tick{});
    REQUIRE(fixture.version() == kNoVersion);
  }
}

TEST_CASE("statistics are made a part at a time, once for repeated requests") {
  Round whole(/*in_parts=*/false), parts(/*in_parts=*/true);
  const auto collect = [](Round& round) {
    round.fixture.DeliverMessage(
        CollectStatistics{kJob, 1, {round.fixture.By(0, 0), round.fixture.By(1, 0)}});
  };
  collect(whole);
  const auto expected = whole.fixture.TakeSent<Statistics>();
  REQUIRE(expected.size() == 1);
  for (int part = 0; part < 3; ++part) {
    REQUIRE(parts.fixture.TakeSent<Statistics>().empty());
    collect(parts);
    parts.fixture.Turn(Tick{});
  }
  const auto sent = parts.fixture.TakeSent<Statistics>();
  REQUIRE(sent.size() == 1);
  REQUIRE(sent[0].layers.size() == expected[0].layers.size());
  for (size_t i = 0; i < sent[0].layers.size(); ++i) {
    REQUIRE(sent[0].layers[i].values == expected[0].layers[i].values);
  }
}

TEST_CASE("statistics of a contribution that is dropped meanwhile are not made") {
  Round round(/*in_parts=*/true);
  ServerFixture& fixture = round.fixture;
  fixture.DeliverMessage(CollectStatistics{kJob, 1, {fixture.By(0, 0), fixture.By(1, 0)}});
  fixture.Turn(Tick{});
  fixture.DeliverMessage(DropContributions{kJob, {fixture.By(1, 0)}, "its island has failed"});
  for (int part = 0; part < 3; ++part) fixture.Turn(Tick{});
  REQUIRE(fixture.TakeSent<Statistics>().empty());
  REQUIRE(fixture.TakeSent<ServerFault>().empty());
}

}  // namespace
}  // namespace atl::ps
