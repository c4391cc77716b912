// Shards with copies on a second server: one fixture is the server that islands push to, the other
// holds the copies.

#include <catch2/catch.hpp>

#include "paramserver/core/testing/server_fixture.h"

namespace atl::ps {
namespace {

const std::vector<OwnedShard> kShards = {{0, 0, 4}, {1, 0, 2}, {2, 1, 3}};

ForwardTo Copy(ShardId shard, Incarnation incarnation = 1) {
  return {shard, "tcp://ps-2:1", "", incarnation};
}

// Shards 0 and 1 have copies on another server.
struct Pair {
  Pair() {
    active.copies = {Copy(0), Copy(1)};
    active.Assign(kShards);
    copy.Assign({{0, 0, 4}, {1, 0, 2}});
    for (ServerFixture* fixture : {&active, &copy}) {
      for (const OwnedShard& shard : kShards) {
        if (fixture == &copy && shard.shard == 2) continue;
        fixture->Push(fixture->Id(0, -1, shard.shard),
                      std::vector<float>(static_cast<size_t>(shard.elements), 1.0F));
      }
      fixture->Apply(0, {{fixture->By(0, -1), 1.0}});
    }
    Delivers();
    active.sent.clear();
    copy.sent.clear();
  }

  // Delivers what the active server forwards, and its answers.
  void Delivers() {
    while (!active.forwards.empty()) {
      const ForwardPush push = std::move(active.forwards.front());
      active.forwards.erase(active.forwards.begin());
      const Token token = copy.Push(push.id, push.encoding, push.elements, push.payload);
      copy.Sync();
      const AcknowledgePush& answer = copy.pushes.at(token);
      active.Do(PushForwarded{push.token, answer.status == PushStatus::kRefused
                                              ? absl::FailedPreconditionError(answer.reason)
                                              : absl::OkStatus()});
    }
  }

  ServerFixture active, copy;
};

TEST_CASE("a push is forwarded when it is durable, and the copy goes through the same versions") {
  Pair pair;
  pair.active.PushAll(pair.active.By(0, 0), /*seed=*/3);
  REQUIRE(pair.active.forwards.empty());
  pair.active.Sync();
  REQUIRE(pair.active.forwards.size() == 2);  // shard 2 has no copy
  pair.Delivers();
  REQUIRE(pair.copy.TakeSent<PushStaged>().size() == 2);
  for (ServerFixture* fixture : {&pair.active, &pair.copy}) {
    fixture->Commit(1, {{fixture->By(0, 0), 1.0}});
    fixture->Sync();
  }
  for (const ShardId shard : {0, 1}) REQUIRE(pair.active.Theta(shard) == pair.copy.Theta(shard));
}

TEST_CASE("parts of a shard are forwarded as they came") {
  const Encoding encoding = GENERATE(Encoding::kFloat32, Encoding::kInt8, Encoding::kInt4);
  ServerFixture active, copy;
  const std::vector<OwnedShard> shards = {{0, 0, 600}};
  active.copies = {Copy(0)};
  Rng rng(5);
  std::vector<float> values(600);
  for (float& value : values) value = static_cast<float>(rng.Normal());
  for (ServerFixture* fixture : {&active, &copy}) {
    fixture->Assign(shards);
    fixture->Push(fixture->Id(0, -1, 0), std::vector<float>(600, 1.0F));
    fixture->Apply(0, {{fixture->By(0, -1), 1.0}});
  }
  active.forwards.clear();
  for (const auto& [begin, end] : {std::pair(256, 600), std::pair(0, 256)}) {
    PushId id = active.Id(0, 0, 0);
    id.begin = begin;
    id.elements = end - begin;
    const std::vector<float> part(values.begin() + begin, values.begin() + end);
    active.Push(id, encoding, end - begin,
                encoding == Encoding::kFloat32 ? ToSharedBytes(part) : Quantized(encoding, part));
  }
  active.Sync();
  REQUIRE(active.forwards.size() == 2);
  for (const ForwardPush& push : active.forwards) {
    copy.Push(push.id, push.encoding, push.elements, push.payload);
  }
  for (ServerFixture* fixture : {&active, &copy}) {
    fixture->Apply(1, {{fixture->By(0, 0), 1.0}});
  }
  REQUIRE(copy.version() == 1);
  REQUIRE(active.Theta(0) == copy.Theta(0));
}

TEST_CASE("what the other server did not take is forwarded again, others go on meanwhile") {
  Pair pair;
  for (IslandId island = 0; island < 4; ++island) {
    pair.active.PushAll(pair.active.By(island, 0), /*seed=*/1);
  }
  pair.active.Sync();
  REQUIRE(pair.active.forwards.size() == JobDriver::kForwardsAtOnce);
  std::set<PushId> tried;
  for (int turn = 0; turn < 4; ++turn) {
    for (const ForwardPush& push : std::exchange(pair.active.forwards, {})) {
      tried.insert(push.id);
      pair.active.Do(PushForwarded{push.token, absl::UnavailableError("it is not there")});
    }
    REQUIRE(pair.active.forwards.empty());
    pair.active.Wait(kRetryInterval);
  }
  REQUIRE(tried.size() == 8);  // none is in the way of another
  pair.Delivers();
  REQUIRE(pair.copy.TakeSent<PushStaged>().size() == 8);
}

TEST_CASE("a copy that restarts or is on another server gets all that is staged") {
  Pair pair;
  pair.active.PushAll(pair.active.By(0, 0), /*seed=*/3);
  pair.active.Sync();
  pair.Delivers();
  pair.active.Assign(kShards);  // a repetition changes nothing
  REQUIRE(pair.active.forwards.empty());
  pair.active.copies = {Copy(0, /*incarnation=*/2), Copy(1)};
  pair.active.Assign(kShards);
  REQUIRE(pair.active.forwards.size() == 1);
  pair.Delivers();  // duplicates are taken as such
  REQUIRE(pair.active.forwards.empty());
}

TEST_CASE("a restarted server forwards what its log has once it knows the destination") {
  Pair pair;
  pair.active.PushAll(pair.active.By(0, 0), /*seed=*/3);
  pair.active.Sync();
  pair.active.Crash();
  REQUIRE(pair.active.forwards.empty());
  pair.active.Assign(kShards);
  REQUIRE(pair.active.forwards.size() == 2);
}

TEST_CASE("what is decided is not forwarded any more") {
  Pair pair;
  pair.active.PushAll(pair.active.By(0, 0), /*seed=*/3);
  pair.active.Sync();
  for (const ForwardPush& push : std::exchange(pair.active.forwards, {})) {
    pair.active.Do(PushForwarded{push.token, absl::UnavailableError("it is not there")});
  }
  pair.active.DeliverMessage(
      DropContributions{kJob, {pair.active.By(0, 0)}, "its island has failed"});
  pair.active.Sync();
  pair.active.Wait(kRetryInterval);
  REQUIRE(pair.active.forwards.empty());
}

TEST_CASE("statistics are of the shards that are requested") {
  Pair pair;
  pair.active.PushAll(pair.active.By(0, 0), /*seed=*/3);
  pair.active.Sync();
  const auto collect = [&](std::vector<ShardId> shards) {
    pair.active.sent.clear();
    pair.active.DeliverMessage(
        CollectStatistics{kJob, 1, {pair.active.By(0, 0)}, std::move(shards)});
    return pair.active.TakeSent<Statistics>();
  };
  const auto all = collect({});
  const auto first = collect({0});
  const auto second = collect({1});
  REQUIRE(all.size() == 1);
  REQUIRE(first.size() == 1);
  REQUIRE(first[0].shards == std::vector<ShardId>{0});
  REQUIRE(first[0].layers.size() == 1);
  REQUIRE(all[0].layers[0].values[0] ==
          Approx(first[0].layers[0].values[0] + second[0].layers[0].values[0]));
  REQUIRE(collect({7}).empty());
}

}  // namespace
}  // namespace atl::ps
