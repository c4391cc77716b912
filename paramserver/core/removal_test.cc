// Tests of what makes a server forget a job, and what does not.

#include <catch2/catch.hpp>

#include "paramserver/core/testing/server_fixture.h"

namespace atl::ps {
namespace {

TEST_CASE("a removed job leaves memory at once and is reported removed once erased from disk") {
  ServerFixture fixture;
  fixture.Begin();
  const Token waiting = fixture.Push(fixture.Id(0, 0, 0), {1, 2, 3, 4});
  fixture.sent.clear();
  for (int again = 0; again < 2; ++again) fixture.DeliverMessage(RemoveJob{kJob});
  REQUIRE(fixture.requested_erasures == std::vector<JobId>{kJob});
  REQUIRE(fixture.Answered(waiting, PushStatus::kRefused));
  REQUIRE(fixture.TakeSent<JobRemoved>().empty());
  const auto admitted = fixture.gate().Admit(fixture.Id(0, 0, 1), Encoding::kFloat32, 2);
  REQUIRE(absl::IsNotFound(admitted));
  REQUIRE(fixture.refusals.contains(fixture.Pull(0, 0)));
  fixture.Do(LogSynced{kJob, 100});  // of what was written before
  fixture.Wait(kHeartbeatInterval);
  REQUIRE(fixture.TakeSent<ServerHeartbeat>().back().parameter_bytes == 0);
  fixture.Do(JobErased{kJob});
  REQUIRE(fixture.TakeSent<JobRemoved>().size() == 1);
  fixture.DeliverMessage(RemoveJob{kJob});  // the report was lost
  REQUIRE(fixture.TakeSent<JobRemoved>().size() == 1);
  REQUIRE(fixture.requested_erasures.size() == 1);
}

TEST_CASE("of_too_many_jobs_that_left_the_first_is_forgotten_first") {
  ServerFixture fixture;
  const auto leaves = [&](const JobId& job) { fixture.DeliverMessage(RemoveJob{job, 5}); };
  const auto assign = [&](const JobId& job) {
    AssignShards late{job, {{0, 0, 4, 0}}, 0.5, 0.9, 0};  // of a placement before
    fixture.DeliverMessage(late);
  };
  leaves("m-first");
  for (size_t i = 1; i < ServerCore::kLeftMax; ++i) leaves(absl::StrCat("m-", i));
  leaves("a-newest");
  fixture.sent.clear();
  assign("a-newest");
  CHECK(fixture.TakeSent<ShardsAssigned>().empty());
  assign("m-first");
  CHECK(fixture.TakeSent<ShardsAssigned>().size() == 1);
}

// Version 1 of a job, with what the coordinator said of it.
JobImage TrainOneRound(ServerFixture& fixture) {
  AssignShards assign{kJob, {{0, 0, 4, 0}, {1, 0, 2, 4}, {2, 1, 3, 0}}, 0.5, 0.9, 0};
  assign.definition.facts.layers = {{"a", 6}, {"b", 3}};
  fixture.DeliverMessage(assign);
  fixture.PushAll(fixture.By(0, kNoVersion), 1);
  fixture.Apply(0, {{fixture.By(0, kNoVersion), 1.0}});
  fixture.DeliverMessage(FenceIslands{kJob, {{0, 4, 1}}});
  fixture.PushAll({0, 4, 1, 0}, 2);
  fixture.Sync();
  JobImage image;
  image.round = 2;
  image.tokens = image.tokens_committed = 40;
  image.plan_generation = 4;
  image.committed = {{0, 4}};
  image.islands = {{0, "w1", 1, 0, 40, {{{1, 0.5, 0.1, 0}}, {1, 2}}}};
  fixture.DeliverMessage(CommitRound{kJob, 1, {{{0, 4, 1, 0}, 1.0}}, {}, image});
  fixture.Sync();
  return image;
}

TEST_CASE("commit_details_are_reported_again_after_crash") {
  ServerFixture fixture;
  const JobImage image = TrainOneRound(fixture);
  for (int crashes = 0; crashes < 2; ++crashes) {
    fixture.sent.clear();
    fixture.DeliverMessage(DescribeJob{kJob});
    const auto described = fixture.TakeSent<JobDescribed>();
    REQUIRE(described.size() == 1);
    CHECK(described[0].held.version == 1);
    CHECK(described[0].held.generation == 4);
    CHECK_FALSE(described[0].held.ended);
    CHECK(described[0].assignment.shards.size() == 3);
    CHECK(described[0].assignment.definition.facts.layers.size() == 2);
    CHECK(described[0].newest.version == 1);
    CHECK(described[0].newest.terms.size() == 1);
    CHECK(described[0].newest.image == image);
    fixture.Crash();
  }
  fixture.sent.clear();
  fixture.DeliverMessage(DescribeJob{"job-9"});
  CHECK(fixture.TakeSent<JobDescribed>().empty());
}

TEST_CASE("a_coordinator_of_another_cluster_is_not_obeyed_and_noted_once") {
  ServerFixture fixture;
  fixture.cluster = "00000000000000aa";
  fixture.DeliverMessage(Welcome{});
  REQUIRE(fixture.remembered == ClusterMark{"00000000000000aa", 1});
  TrainOneRound(fixture);
  for (int again = 0; again < 2; ++again) {
    fixture.Do(ConnectionDown{});
    fixture.Do(ConnectionUp{});
    fixture.cluster = "00000000000000bb";
    fixture.epoch = 9;
    fixture.DeliverMessage(Welcome{});
    fixture.DeliverMessage(EndJob{kJob});
    fixture.DeliverMessage(RemoveJob{kJob});
    CHECK(fixture.requested_erasures.empty());
    CHECK(fixture.version() == 1);
    int64_t named = 0;
    for (const std::string& note : fixture.notes) named += note.find("cluster 0000") != note.npos;
    CHECK(named == 1);
    fixture.cluster = "00000000000000aa";
    fixture.epoch = 2;
    fixture.DeliverMessage(Welcome{});
    fixture.sent.clear();
    fixture.DeliverMessage(DescribeJob{kJob});
    CHECK_FALSE(fixture.TakeSent<JobDescribed>().at(0).held.ended);
    if (again == 0) fixture.Crash();  // it is remembered
    fixture.notes.clear();
  }
  CHECK(fixture.remembered == ClusterMark{"00000000000000aa", 2});
}

TEST_CASE("what_the_coordinator_has_stored_is_written_down_a_little_later_and_said_at_once") {
  ServerFixture fixture;
  fixture.cluster = "00000000000000aa";
  fixture.sequence = 7;
  fixture.DeliverMessage(Welcome{});
  REQUIRE(fixture.remembered->sequence == 7);
  fixture.sequence = 8;
  TrainOneRound(fixture);
  CHECK(fixture.remembered->sequence == 7);
  fixture.sent.clear();
  fixture.Do(ConnectionDown{});
  fixture.Do(ConnectionUp{});
  CHECK(fixture.TakeSent<ServerHello>().at(0).mark.sequence == 8);
  fixture.Wait(kRememberInterval);
  CHECK(fixture.remembered->sequence == 8);
}

}  // namespace
}  // namespace atl::ps
