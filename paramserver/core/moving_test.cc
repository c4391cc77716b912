// Shards that move from one server to another, and shards that an island fills.

#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>

#include "common/net/tensor/tensor_types.h"
#include "common/protocol/outer_optimizer.h"
#include "paramserver/core/testing/server_fixture.h"

namespace atl::ps {
namespace {

const OwnedShard kMoved{1, 0, 2};

// A giver at version 1 that holds all shards.
void TrainTwoVersions(ServerFixture& fixture) {
  fixture.Begin();
  fixture.PushAll(fixture.By(0, 0), 2);
  fixture.Apply(1, {{fixture.By(0, 0), 1.0}});
}

ReceiveShards Receive(bool fill = false) {
  ReceiveShards message{kJob, 1, 1, {{kMoved, "giver", "", fill}}};
  message.newest = {kJob, 1, {{ServerFixture::By(0, 0), 1.0}}, {}};
  message.decided = {ServerFixture::By(0, kNoVersion), ServerFixture::By(0, 0)};
  return message;
}

AssignShards MakeAssignment(std::vector<OwnedShard> shards) {
  AssignShards assign{kJob, std::move(shards), 0.5, 0.9, 0};
  assign.definition.spec.outer.optimizer = "nesterov";
  assign.definition.placement = 2;
  return assign;
}

// Answers what the receiver requests; whole answers come from the giver.
void Deliver(ServerFixture& giver, ServerFixture& receiver) {
  while (!receiver.fetches.empty()) {
    const FetchPart fetch = receiver.fetches.front();
    receiver.fetches.erase(receiver.fetches.begin());
    const Token token = 1000 + fetch.token;
    giver.Do(PullArrived{fetch.job, fetch.version, fetch.shard, token, fetch.range.begin,
                         fetch.range.size(), fetch.slot});
    const auto reply = giver.replies.at(token);
    const std::vector<float> values(reply.values.begin(), reply.values.end());
    receiver.Do(PartFetched{fetch.token, absl::OkStatus(), ToSharedBytes(values)});
    giver.replies.erase(token);
  }
}

TEST_CASE("a_moved_shard_steps_as_if_it_had_stayed") {
  ServerFixture stays, giver, receiver;
  OuterSpec outer;
  outer.optimizer = GENERATE("sgd", "nesterov", "delayed_nesterov");
  JobSpec spec;
  spec.outer = outer;
  spec.inner.ema = GENERATE(0.0, 0.9);
  for (ServerFixture* fixture : {&stays, &giver, &receiver}) {
    fixture->outer = outer;
    fixture->ema = spec.inner.ema;
    fixture->average_keep = 0.5;
  }
  TrainTwoVersions(stays);
  TrainTwoVersions(giver);
  ReceiveShards receive = Receive();
  receive.slots = static_cast<int32_t>(ListServerSlots(spec).size());
  receiver.DeliverMessage(receive);
  Deliver(giver, receiver);
  REQUIRE(receiver.TakeSent<ShardsReceived>().empty());  // nothing is durable yet
  receiver.Sync();
  const auto received = receiver.TakeSent<ShardsReceived>();
  REQUIRE(received.size() == 1);
  REQUIRE(received[0].shards == std::vector<ShardId>{kMoved.shard});
  REQUIRE(receiver.Theta(kMoved.shard).empty());  // it holds it from the assignment on
  receiver.Crash();
  for (ServerFixture* fixture : {&giver, &receiver}) {
    AssignShards assignment =
        fixture == &receiver ? MakeAssignment({kMoved}) : MakeAssignment({{0, 0, 4}, {2, 1, 3}});
    assignment.definition.spec = spec;
    fixture->DeliverMessage(assignment);
    fixture->Sync();
  }
  REQUIRE(receiver.Theta(kMoved.shard) == stays.Theta(kMoved.shard));
  REQUIRE(giver.Theta(kMoved.shard).empty());
  receiver.Crash();
  for (ServerFixture* fixture : {&stays, &receiver}) {
    fixture->Push(fixture->Id(0, 1, kMoved.shard), {3, -1});
    if (fixture == &stays) fixture->Push(fixture->Id(0, 1, 0), {1, 1, 1, 1});
    if (fixture == &stays) fixture->Push(fixture->Id(0, 1, 2), {1, 1, 1});
    fixture->Apply(2, {{fixture->By(0, 1), 1.0}});
  }
  REQUIRE(receiver.version() == 2);
  REQUIRE(receiver.Theta(kMoved.shard) == stays.Theta(kMoved.shard));  // all slots came along
  for (ServerFixture* fixture : {&stays, &receiver}) {
    fixture->Do(PullArrived{kJob, 2, kMoved.shard, 77, 0, 0, kPullAverage});
    REQUIRE(fixture->replies.contains(77) == (spec.inner.ema > 0));
  }
  if (spec.inner.ema > 0) {
    REQUIRE_FALSE(std::ranges::equal(stays.replies.at(77).values, stays.Theta(kMoved.shard)));
    REQUIRE(std::ranges::equal(stays.replies.at(77).values, receiver.replies.at(77).values));
  }
}

TEST_CASE("a_filled_shard_has_its_parameters_and_no_momentum") {
  ServerFixture giver, receiver;
  TrainTwoVersions(giver);
  const PushId fill{kJob, 0, 1, 1, FillBase(1), kMoved.shard};
  const std::vector<float> theta = giver.Theta(kMoved.shard);
  const Token early = receiver.Push(fill, theta);
  REQUIRE(receiver.Answered(early, PushStatus::kRefused));
  receiver.DeliverMessage(Receive(/*fill=*/true));
  const Token token = receiver.Push(fill, theta);
  REQUIRE_FALSE(receiver.Answered(token, PushStatus::kStaged));
  receiver.Sync();
  REQUIRE(receiver.Answered(token, PushStatus::kStaged));
  REQUIRE(receiver.TakeSent<ShardsReceived>().size() == 1);
  receiver.DeliverMessage(MakeAssignment({kMoved}));
  receiver.Sync();
  REQUIRE(receiver.Theta(kMoved.shard) == theta);
  receiver.Do(PullArrived{kJob, 1, kMoved.shard, 77, 0, 0, /*slot=*/1});
  for (const float value : receiver.replies.at(77).values) REQUIRE(value == 0.0f);
}

TEST_CASE("a_shard_is_filled_from_the_older_version_that_was_ordered_and_no_other_one") {
  ServerFixture giver, receiver;
  TrainTwoVersions(giver);
  const std::vector<float> theta = giver.Theta(kMoved.shard);
  ReceiveShards receive = Receive(/*fill=*/true);
  receive.version = receive.newest.version = 3;
  receive.newest.terms.clear();
  receive.fill_age = 4;
  receiver.DeliverMessage(receive);
  REQUIRE(receiver.TakeSent<ServerFault>().size() == 1);  // there is no version -1
  receive.fill_age = 2;
  receiver.DeliverMessage(receive);
  for (const Version base : {3, 2, 0}) {
    const PushId other{kJob, 0, 1, 1, FillBase(base), kMoved.shard};
    REQUIRE(receiver.Answered(receiver.Push(other, theta), PushStatus::kRefused));
  }
  const Token token = receiver.Push({kJob, 0, 1, 1, FillBase(1), kMoved.shard}, theta);
  receiver.Sync();
  REQUIRE(receiver.Answered(token, PushStatus::kStaged));
  const auto received = receiver.TakeSent<ShardsReceived>();
  REQUIRE(received.size() == 1);
  REQUIRE(received[0].version == 3);
  receiver.DeliverMessage(MakeAssignment({kMoved}));
  receiver.Sync();
  receiver.Crash();
  REQUIRE(receiver.version() == 3);
  REQUIRE(receiver.Theta(kMoved.shard) == theta);
}

TEST_CASE("a_round_without_contributions_leaves_parameters_and_slots_as_they_are") {
  ServerFixture server;
  TrainTwoVersions(server);
  const auto slot = [&] {
    server.Do(PullArrived{kJob, server.version(), kMoved.shard, 77, 0, 0, /*slot=*/1});
    const auto values = server.replies.at(77).values;
    return std::vector<float>(values.begin(), values.end());
  };
  const std::vector<float> theta = server.Theta(kMoved.shard), momentum = slot();
  server.Commit(2, {});
  server.Sync();
  REQUIRE(server.version() == 2);
  REQUIRE(server.Theta(kMoved.shard) == theta);
  REQUIRE(slot() == momentum);
}

TEST_CASE("what_was_not_received_cannot_be_assigned") {
  ServerFixture giver, receiver;
  TrainTwoVersions(giver);
  receiver.DeliverMessage(Receive());
  receiver.DeliverMessage(MakeAssignment({kMoved}));
  REQUIRE(receiver.TakeSent<ServerFault>().size() == 1);
  REQUIRE(receiver.Theta(kMoved.shard).empty());
}

TEST_CASE("late_orders_from_before_a_move_change_nothing") {
  ServerFixture giver, receiver;
  TrainTwoVersions(giver);
  giver.DeliverMessage(MakeAssignment({{0, 0, 4}}));
  giver.Sync();
  giver.Assign();  // of placement 0
  giver.Sync();
  REQUIRE(giver.Theta(kMoved.shard).empty());
  giver.DeliverMessage(RemoveJob{kJob, 2});  // placement 2 gave it a part again
  REQUIRE(giver.requested_erasures.empty());
  giver.DeliverMessage(RemoveJob{kJob, 3});
  REQUIRE(giver.requested_erasures.size() == 1);
}

TEST_CASE("what_was_staged_of_a_shard_that_has_left_is_not_announced_when_it_is_back") {
  ServerFixture giver;
  TrainTwoVersions(giver);
  giver.Push(giver.Id(0, 1, kMoved.shard), {3, -1});
  giver.Sync();
  REQUIRE(giver.TakeSent<PushStaged>().back().push.shard == kMoved.shard);
  giver.DeliverMessage(MakeAssignment({{0, 0, 4}, {2, 1, 3}}));
  giver.Sync();
  giver.sent.clear();
  for (int i = 0; i < 10; ++i) giver.Wait(std::chrono::seconds(1));
  REQUIRE(giver.TakeSent<PushStaged>().empty());
}

TEST_CASE("late_orders_from_before_a_removal_do_not_bring_the_job_back") {
  ServerFixture giver;
  TrainTwoVersions(giver);
  giver.DeliverMessage(MakeAssignment({{0, 0, 4}}));
  giver.Sync();
  giver.DeliverMessage(RemoveJob{kJob, 3});
  giver.Do(JobErased{kJob});
  giver.DeliverMessage(Receive());
  giver.Assign();
  giver.Sync();
  REQUIRE(giver.fetches.empty());
  REQUIRE(giver.Theta(0).empty());
}

TEST_CASE("a_round_that_comes_first_makes_received_parts_useless") {
  ServerFixture giver, receiver;
  TrainTwoVersions(giver);
  receiver.DeliverMessage(Receive());
  Deliver(giver, receiver);
  receiver.Sync();
  ReceiveShards newer = Receive();
  newer.version = newer.newest.version = 2;
  receiver.sent.clear();
  receiver.DeliverMessage(newer);
  receiver.Sync();
  REQUIRE(receiver.TakeSent<ShardsReceived>().empty());
  REQUIRE(receiver.fetches.size() == 2);
  REQUIRE(receiver.fetches[0].version == 2);
}

}  // namespace
}  // namespace atl::ps
