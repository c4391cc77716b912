// What makes a server forget a job, and what does not.

#include <catch2/catch.hpp>

#include "paramserver/core/server_story.h"

namespace atl::ps {
namespace {

TEST_CASE("a removed job leaves memory at once and is reported removed once erased from disk") {
  ServerStory story;
  const ContributionId initial = story.By(0, kNoVersion);
  story.Assign();
  story.PushAll(initial, 1);
  story.Sync();
  story.Commit(0, {{initial, 1.0}});
  story.Sync();
  const Token waiting = story.Push(story.Id(0, 0, 0), {1, 2, 3, 4});
  story.told.clear();
  for (int again = 0; again < 2; ++again) story.Says(RemoveJob{kJob});
  REQUIRE(story.asked_erasures == std::vector<JobId>{kJob});
  REQUIRE(story.Answered(waiting, PushStatus::kRefused));
  REQUIRE(story.Told<JobRemoved>().empty());
  const auto admitted = story.core().gate()->Admit(story.Id(0, 0, 1), Encoding::kFloat32, 2);
  REQUIRE(absl::IsNotFound(admitted));
  REQUIRE(story.refusals.contains(story.Pull(0, 0)));
  story.Do(LogSynced{kJob, 100});  // of what was written before
  story.Wait(kHeartbeatInterval);
  REQUIRE(story.Told<ServerHeartbeat>().back().parameter_bytes == 0);
  story.Do(JobErased{kJob});
  REQUIRE(story.Told<JobRemoved>().size() == 1);
  story.Says(RemoveJob{kJob});  // the report was lost
  REQUIRE(story.Told<JobRemoved>().size() == 1);
  REQUIRE(story.asked_erasures.size() == 1);
}

// Version 1 of a job, with what the coordinator said of it.
JobImage TrainOneRound(ServerStory& story) {
  AssignShards assign{kJob, {{0, 0, 4, 0}, {1, 0, 2, 4}, {2, 1, 3, 0}}, 0.5, 0.9, 0};
  assign.charter.facts.layers = {{"a", 6}, {"b", 3}};
  story.Says(assign);
  story.PushAll(story.By(0, kNoVersion), 1);
  story.Sync();
  story.Commit(0, {{story.By(0, kNoVersion), 1.0}});
  story.Sync();
  story.Says(FenceIslands{kJob, {{0, 4, 1}}});
  story.PushAll({0, 4, 1, 0}, 2);
  story.Sync();
  JobImage image;
  image.round = 2;
  image.tokens = image.tokens_committed = 40;
  image.plan_generation = 4;
  image.committed = {{0, 4}};
  image.islands = {{0, "w1", 1, 0, 40, {{{1, 0.5, 0.1, 0}}, {1, 2}}}};
  story.Says(CommitRound{kJob, 1, {{{0, 4, 1, 0}, 1.0}}, {}, image});
  story.Sync();
  return image;
}

TEST_CASE("what_a_commit_was_about_is_told_again_also_after_a_crash") {
  ServerStory story;
  const JobImage image = TrainOneRound(story);
  for (int crashes = 0; crashes < 2; ++crashes) {
    story.told.clear();
    story.Says(DescribeJob{kJob});
    const auto described = story.Told<JobDescribed>();
    REQUIRE(described.size() == 1);
    CHECK(described[0].held.version == 1);
    CHECK(described[0].held.generation == 4);
    CHECK_FALSE(described[0].held.ended);
    CHECK(described[0].assignment.shards.size() == 3);
    CHECK(described[0].assignment.charter.facts.layers.size() == 2);
    CHECK(described[0].newest.version == 1);
    CHECK(described[0].newest.terms.size() == 1);
    CHECK(described[0].newest.image == image);
    story.Crash();
  }
  story.told.clear();
  story.Says(DescribeJob{"job-9"});
  CHECK(story.Told<JobDescribed>().empty());
}

TEST_CASE("a_coordinator_of_another_cluster_is_not_obeyed_and_noted_once") {
  ServerStory story;
  story.cluster = "00000000000000aa";
  story.Says(Welcome{});
  REQUIRE(story.remembered == ClusterMark{"00000000000000aa", 1});
  TrainOneRound(story);
  for (int again = 0; again < 2; ++again) {
    story.Do(ConnectionDown{});
    story.Do(ConnectionUp{});
    story.cluster = "00000000000000bb";
    story.epoch = 9;
    story.Says(Welcome{});
    story.Says(EndJob{kJob});
    story.Says(RemoveJob{kJob});
    CHECK(story.asked_erasures.empty());
    CHECK(story.version() == 1);
    int64_t named = 0;
    for (const std::string& note : story.notes) named += note.find("cluster 0000") != note.npos;
    CHECK(named == 1);
    story.cluster = "00000000000000aa";
    story.epoch = 2;
    story.Says(Welcome{});
    story.told.clear();
    story.Says(DescribeJob{kJob});
    CHECK_FALSE(story.Told<JobDescribed>().at(0).held.ended);
    if (again == 0) story.Crash();  // it is remembered
    story.notes.clear();
  }
  CHECK(story.remembered == ClusterMark{"00000000000000aa", 2});
}

TEST_CASE("what_the_coordinator_has_stored_is_written_down_a_little_later_and_said_at_once") {
  ServerStory story;
  story.cluster = "00000000000000aa";
  story.sequence = 7;
  story.Says(Welcome{});
  REQUIRE(story.remembered->sequence == 7);
  story.sequence = 8;
  TrainOneRound(story);
  CHECK(story.remembered->sequence == 7);
  story.told.clear();
  story.Do(ConnectionDown{});
  story.Do(ConnectionUp{});
  CHECK(story.Told<ServerHello>().at(0).mark.sequence == 8);
  story.Wait(kRememberInterval);
  CHECK(story.remembered->sequence == 8);
}

}  // namespace
}  // namespace atl::ps
