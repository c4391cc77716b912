// Coordinators with the wrong store, servers with the wrong folder, and jobs that have failed: what
// they have in common is that nothing is deleted.

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "coordinator/core/rounds/decision_chain.h"
#include "coordinator/core/testing/world.h"

namespace atl::testing {
namespace {

bool HasText(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

// A job at version 2, of two islands on two servers.
void TrainTwoRounds(World& w) {
  w.StartJob({"ps-0", "ps-1"}, {"a", "b"}, "");
  for (int round = 0; round < 2; ++round) {
    w.Contribute("a", 4);
    w.Contribute("b", 4, 1.5);
    w.Do("servers answer");
  }
  REQUIRE(w.Job().summary.version == 2);
}

// All members connect again, the processes being the same.
std::string AllAttach(World& w) {
  std::string done;
  for (const char* line :
       {"server ps-0 attaches incarnation=1", "server ps-1 attaches incarnation=1",
        "worker a attaches incarnation=1", "worker b attaches incarnation=1"}) {
    done += w.Do(line);
  }
  return done + w.Do("servers answer");
}

// The job's workers get an island each and train a round; returns its version.
Version TrainOneRound(World& w) {
  w.DoLines({"worker a prepared", "worker b prepared", "servers answer", "worker a ready",
             "worker b ready"});
  w.Round({"a", "b"}, 4);
  return w.Job().summary.version;
}

TEST_CASE("members_refuse_a_coordinator_of_another_cluster_which_ends_and_deletes_nothing") {
  World w;
  TrainTwoRounds(w);
  w.DoLines({"coordinator is-backed-up", "coordinator is-lost cluster=00000000000000bb"});
  const std::string output = AllAttach(w) + w.Do("wait 10");
  CHECK_FALSE(HasText(output, "EndJob"));
  CHECK_FALSE(HasText(output, "RemoveJob"));
  CHECK_FALSE(HasText(output, "stop"));
  CHECK_FALSE(HasText(output, "for good"));  // they try again
  const auto foreign = w.core().ForeignMembers(w.now());
  REQUIRE(foreign.size() == 4);
  CHECK(foreign[0].cluster == "00000000000000aa");
  CHECK(w.core().Members(w.now()).empty());
  // The right one comes back.
  w.Do("coordinator is-rolled-back");
  AllAttach(w);
  CHECK(w.core().ForeignMembers(w.now()).empty());
  CHECK(w.Job().summary.state == JobState::kRunning);
  w.DoLines({"worker a ready", "worker b ready"});
  w.Round({"a", "b"}, 4);
  CHECK(w.Job().summary.version == 3);
}

TEST_CASE("an_empty_coordinator_of_the_same_cluster_keeps_what_it_does_not_know_and_can_adopt_it") {
  World w;
  TrainTwoRounds(w);
  const JobView before = w.Job();
  const auto penalties = w.Stored<PenaltyRecord>();
  w.Do("coordinator is-lost");
  w.Do("server ps-0 attaches incarnation=1");
  w.Do("servers answer");
  REQUIRE(w.core().Orphans().size() == 1);
  CHECK(w.core().Orphans()[0].job == "lm-1");
  CHECK(w.core().Orphans()[0].version == 2);
  CHECK_FALSE(w.core().Orphans()[0].missing.empty());
  w.Do("adopt lm-1");
  CHECK(HasText(std::string(w.reply().message()), "no attached server holds layer"));
  const std::string output = AllAttach(w) + w.Do("wait 10");
  CHECK_FALSE(HasText(output, "EndJob"));
  CHECK_FALSE(HasText(output, "stop"));
  CHECK(w.core().Orphans()[0].missing.empty());
  CHECK(w.core().epoch() > 1);  // members have followed the lost one
  w.Do("adopt lm-1");
  REQUIRE(w.reply().ok());
  w.Do("servers answer");
  CHECK(w.core().Orphans().empty());
  const JobView after = w.Job();
  CHECK(after.summary.version == 2);
  CHECK(after.summary.tokens_committed == before.summary.tokens_committed);
  CHECK(after.spec == before.spec);
  CHECK(after.facts == before.facts);
  CHECK(after.shards == before.shards);
  CHECK(after.ledger.committed == before.ledger.committed);
  CHECK(after.ledger.free == after.ledger.budget - after.ledger.committed);
  REQUIRE(after.islands.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(w.Stored<PenaltyRecord>().at(i).state == penalties.at(i).state);
    CHECK(after.islands[i].tokens_committed == before.islands[i].tokens_committed);
    CHECK(after.islands[i].generation > before.islands[i].generation);
  }
  CHECK(TrainOneRound(w) == 3);
  CHECK(w.Island(0).worker == "a");
  CHECK(w.Job().summary.tokens_committed == before.summary.tokens_committed + 80);
}

TEST_CASE("a_job_is_rebuilt_where_the_store_is_older_than_its_servers") {
  World w;
  w.StartJob({"ps-0", "ps-1"}, {"a", "b"}, "");
  w.Do("coordinator is-backed-up");
  for (int round = 0; round < 2; ++round) {
    w.Round({"a", "b"}, 4);
  }
  w.Do("coordinator restarts");  // members follow its epoch
  AllAttach(w);
  const JobView before = w.Job();
  w.Do("coordinator is-restored");
  w.Do("server ps-0 attaches incarnation=1");
  CHECK(w.Job().summary.state == JobState::kRunning);
  CHECK(HasText(w.Job().summary.waiting_for, "which is older"));
  CHECK(w.Job().summary.version == 0);
  AllAttach(w);
  CHECK(w.core().StoreAge().empty());  // it is restored on purpose
  CHECK(w.Job().summary.version == 2);
  CHECK(w.Job().summary.tokens_committed == before.summary.tokens_committed);
  CHECK(w.Job().ledger.committed == before.ledger.committed);
  CHECK(TrainOneRound(w) == 3);
  // Its decisions do not claim to follow those that the store had.
  const auto page = w.core().Decisions("lm-1", 0, 100);
  REQUIRE(page);
  const CheckedDecisions checked = CheckDecisions(page->decisions, page->newest_digest, {}, "");
  INFO(checked.problem);
  CHECK(checked.problem.empty());
  CHECK(checked.begins_at == checked.last_round - 1);
  CHECK(checked.begins_at > checked.first_round);
}

TEST_CASE("a_store_that_lacks_changes_which_a_member_has_seen_decides_nothing_until_adopted") {
  World w;
  TrainTwoRounds(w);
  w.Do("coordinator is-backed-up");
  w.Contribute("a", 4);  // neither a version nor a generation shows it
  w.Do("coordinator is-rolled-back");
  w.Do("worker b attaches incarnation=1");  // it has seen no more than the store has
  CHECK(w.core().StoreAge().empty());
  w.Do("worker a attaches incarnation=1");
  CHECK(HasText(w.core().StoreAge(), "worker a"));
  CHECK(HasText(w.Job().summary.waiting_for, "atoll adopt lm-1"));
  CHECK(HasText(w.Job().summary.waiting_for, "--restore"));
  const std::string output = AllAttach(w) + w.Do("wait 10") + w.Do("worker b ready") +
                             w.Do("worker b leases") + w.Do("servers answer");
  for (const char* decision : {"DropContributions", "LeaseGrant", "PushGrant", "CommitRound",
                               "CollectStatistics", "IslandOrder"}) {
    INFO(decision);
    CHECK_FALSE(HasText(output, decision));
  }
  w.Do("coordinator restarts");  // still
  AllAttach(w);
  CHECK(HasText(w.Job().summary.waiting_for, "atoll adopt lm-1"));
  w.Do("submit name=other number=2");  // what is new has nothing to do with it
  CHECK(w.Job("other-2").summary.state != JobState::kFailed);
  w.Do("cancel other-2");
  w.Do("adopt lm-1");
  REQUIRE(w.reply().ok());
  w.Do("servers answer");
  CHECK(w.Job().summary.version == 2);
  CHECK(w.Job().ledger.pushed == 0);
  CHECK(TrainOneRound(w) == 3);
  w.Do("coordinator restarts");
  AllAttach(w);
  CHECK(w.core().StoreAge().empty());
  CHECK(TrainOneRound(w) == 4);
}

TEST_CASE("a_coordinator_that_has_decided_nothing_leaves_the_newest_store_the_newest") {
  for (const char* wrong : {"coordinator is-lost", "coordinator is-rolled-back"}) {
    INFO(wrong);
    World w;
    w.StartJob({"ps-0", "ps-1"}, {"a", "b"}, "");
    w.Do("coordinator is-backed-up");
    for (int round = 0; round < 2; ++round) {
      w.Round({"a", "b"}, 4);
    }
    w.Do("coordinator puts-its-store-aside");
    w.Do(wrong);
    AllAttach(w);
    w.Do("wait 3");
    CHECK_FALSE(w.core().StoreAge().empty());
    w.Do("coordinator takes-its-store-back");
    AllAttach(w);
    CHECK(w.core().StoreAge().empty());
    w.DoLines({"worker a ready", "worker b ready"});
    w.Round({"a", "b"}, 4);
    CHECK(w.Job().summary.version == 3);
  }
}

TEST_CASE("what_a_round_was_made_of_is_kept_though_the_older_store_hears_first_of_who_is_behind") {
  World w;
  TrainTwoRounds(w);
  w.Do("coordinator is-backed-up");
  w.Contribute("a", 4);
  w.Contribute("b", 4);
  w.Do("servers answer once");  // statistics: version 3 is decided
  w.Do("server ps-1 dies");
  w.DoLines({"servers answer", "coordinator is-restored"});
  CHECK_FALSE(HasText(w.Do("server ps-1 attaches"), "DropContributions"));
  w.DoLines({"server ps-0 attaches incarnation=1", "worker a attaches incarnation=1",
             "worker b attaches incarnation=1", "servers answer"});
  CHECK(w.Job().summary.version == 3);
  CHECK(w.Job().summary.tokens_committed == 240);
}

TEST_CASE("an_older_store_resumes_no_failed_job_and_adopts_one_that_no_server_holds") {
  World w;
  w.DoLines({"server ps-0 attaches", "worker a attaches", "submit"});
  w.Do("worker a refuses reason=no-such-file");
  REQUIRE(w.Job().summary.state == JobState::kFailed);
  w.Do("coordinator is-backed-up");
  w.Do("resume lm-1");
  w.Do("worker a attaches");  // receives a later change
  w.Do("coordinator is-rolled-back");
  w.Do("worker a attaches");
  w.Do("resume lm-1");
  CHECK(HasText(std::string(w.reply().message()), "atoll adopt lm-1"));
  w.Do("adopt lm-1");
  CHECK(w.reply().ok());
  w.Do("resume lm-1");
  CHECK(w.reply().ok());
}

TEST_CASE("a_worker_that_has_another_name_now_makes_no_store_older") {
  World w;
  TrainTwoRounds(w);
  w.Do("coordinator restarts");
  AllAttach(w);
  WorkerHello hello;
  hello.mark = w.GetClusterMark("a");
  w.HandleEvent(FromWorker{"z", 1, hello});
  CHECK(w.core().StoreAge().empty());
  CHECK_FALSE(HasText(w.Job().summary.waiting_for, "adopt"));
}

TEST_CASE("a_version_that_only_one_server_has_applied_is_rolled_forward_by_adopt") {
  World w;
  TrainTwoRounds(w);
  w.Contribute("a", 4);
  w.Contribute("b", 4);
  w.Do("servers answer once");  // statistics: version 3 is decided
  w.Do("server ps-1 dies");
  w.DoLines({"servers answer", "coordinator is-lost"});
  AllAttach(w);
  w.Do("adopt lm-1");
  REQUIRE(w.reply().ok());
  w.Do("servers answer");
  CHECK(w.Job().summary.version == 3);
  CHECK(w.Job().summary.tokens_committed == 240);
}

TEST_CASE("pushes_that_were_not_decided_are_dropped_by_adopt_and_their_data_is_free") {
  World w;
  TrainTwoRounds(w);
  w.Contribute("a", 4);
  w.Do("coordinator is-lost");
  AllAttach(w);
  CHECK(HasText(w.Do("adopt lm-1"), "DropContributions"));
  w.Do("servers answer");
  CHECK(w.Job().ledger.pushed == 0);
  CHECK(TrainOneRound(w) == 3);
}

TEST_CASE("an_id_that_a_member_holds_is_not_given_again") {
  World w;
  TrainTwoRounds(w);
  w.Do("coordinator is-lost");
  AllAttach(w);
  CHECK(HasText(w.Do("submit number=1"), "reply lm-2 OK"));
}

TEST_CASE("only_rm_deletes_an_orphaned_job_also_from_who_comes_back_later") {
  World w;
  TrainTwoRounds(w);
  w.DoLines({"worker a saves holders=a disk base=2 consumed=16-20", "worker a attaches"});
  w.Do("coordinator is-lost");
  w.Do("server ps-0 attaches incarnation=1");
  w.DoLines({"servers answer", "cancel lm-1"});
  CHECK(w.reply().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(HasText(w.Do("remove lm-1"), "-> ps-0: RemoveJob lm-1"));
  CHECK(w.core().Orphans().empty());
  w.Do("coordinator restarts");
  CHECK(HasText(w.Do("server ps-1 attaches incarnation=1"), "-> ps-1: RemoveJob lm-1"));
  CHECK(HasText(w.Do("worker a attaches"), "-> a: ForgetJob lm-1"));
}

TEST_CASE("push_request_before_servers_reattach_is_granted_after_they_do") {
  World w;
  w.StartJob({"ps-0", "ps-1"}, {"a"}, "steps=4 servers=2");
  w.Do("worker a leases wanted=4");
  w.Do("coordinator restarts");
  w.Do("worker a attaches incarnation=1");
  CHECK_FALSE(HasText(w.Do("worker a pushes consumed=0-4"), "PushGrant"));
  CHECK_FALSE(HasText(w.Do("server ps-0 attaches incarnation=1"), "PushGrant"));
  CHECK(HasText(w.Do("server ps-1 attaches incarnation=1"), "-> a: PushGrant"));
}

TEST_CASE("a_failed_job_keeps_everything_and_is_resumed") {
  World w;
  TrainTwoRounds(w);
  const JobView before = w.Job();
  w.Contribute("a", 4);
  // A server that reports a layer it does not hold.
  w.Do("worker b dies");
  REQUIRE(w.Job().round.phase == "collecting");
  Statistics wrong{"lm-1", 3, {w.Stored<ContributionRecord>().at(0).contribution}, {{77, {1}}}};
  w.HandleEvent(FromServer{"ps-0", 1, wrong});
  REQUIRE(w.Job().summary.state == JobState::kFailed);
  const std::string output = w.Do("servers answer") + w.Do("wait 10");
  CHECK_FALSE(HasText(output, "EndJob"));
  CHECK_FALSE(HasText(output, "ForgetJob"));
  w.Do("resume lm-1");
  CHECK(w.reply().ok());
  CHECK(w.Job().summary.state == JobState::kRunning);
  w.DoLines({"servers answer", "worker b attaches"});
  CHECK(TrainOneRound(w) == 3);
  CHECK(w.Job().summary.tokens_committed == before.summary.tokens_committed + 80);
}

TEST_CASE("a_job_that_no_worker_could_run_is_queued_again_by_resume") {
  World w;
  w.DoLines({"server ps-0 attaches", "worker a attaches", "submit"});
  w.Do("worker a refuses reason=no-such-file");
  REQUIRE(w.Job().summary.state == JobState::kFailed);
  w.Do("resume lm-1");
  CHECK(w.Job().summary.state == JobState::kPreparing);
  w.Do("worker a prepared");
  CHECK(w.Job().summary.state == JobState::kInitializing);
}

TEST_CASE("a_server_with_an_empty_folder_makes_the_job_wait_and_gets_nothing") {
  World w;
  TrainTwoRounds(w);
  const std::string output = w.Do("server ps-1 attaches stranger") + w.Do("wait 10");
  CHECK_FALSE(HasText(output, "-> ps-1: AssignShards"));
  CHECK(w.Job().summary.state == JobState::kRunning);
  CHECK(HasText(w.Job().summary.waiting_for, "ps-1 (it came back without the job"));
  w.Do("server ps-1 attaches");
  w.Do("servers answer");
  CHECK_FALSE(HasText(w.Job().summary.waiting_for, "ps-1"));
  w.DoLines({"worker a ready", "worker b ready"});
  w.Round({"a", "b"}, 4);
  CHECK(w.Job().summary.version == 3);
}

TEST_CASE("a_server_whose_folder_is_damaged_makes_the_job_wait_with_the_damage") {
  World w;
  TrainTwoRounds(w);
  w.Do("server ps-1 attaches stranger");
  w.Do("server ps-1 faults reason=damaged-at-offset-64");
  CHECK(w.Job().summary.state == JobState::kRunning);
  CHECK(HasText(w.Job().summary.waiting_for, "ps-1 (damaged-at-offset-64)"));
  CHECK(HasText(w.Job().summary.waiting_for, "atoll recover"));
}

TEST_CASE("an_ended_job_follows_its_server_to_another_endpoint") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "tokens=40");
  w.Contribute("a", 4);
  w.DoLines({"servers answer", "worker a validates loss=1", "servers snapshot"});
  REQUIRE(w.Job().summary.state == JobState::kDone);
  w.Do("server ps-0 attaches key=new-key");
  for (const ShardPlacement& shard : w.Job().shards) CHECK(shard.public_key == "new-key");
}

}  // namespace
}  // namespace atl::testing
