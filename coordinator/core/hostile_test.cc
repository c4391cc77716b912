// Messages with extreme values, of members that are wrong or damaged: none ends the coordinator,
// poisons its store, or decides anything alone. tests/fuzz/cores tries them all.

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/protocol/limits.h"
#include "coordinator/core/testing/world.h"

namespace atl::testing {
namespace {

bool HasText(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

void TrainRounds(World& w, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    w.Round({"a", "b"}, 4);
  }
}

void AllAttach(World& w) {
  w.DoLines({"server ps-0 attaches incarnation=1", "server ps-1 attaches incarnation=1",
             "worker a attaches incarnation=1", "worker b attaches incarnation=1",
             "servers answer"});
}

TEST_CASE("an_empty_answer_of_an_idle_worker_is_no_answer_of_a_candidate") {
  World w;
  w.Do("worker a attaches");
  w.HandleEvent(FromWorker{"a", 1, JobPrepared{}});
  w.HandleEvent(FromWorker{"a", 1, JobRefused{}});
  CHECK(w.core().Members(w.now())[0].attached);
}

TEST_CASE("sums_of_what_an_island_counts_stay_storable") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "");
  for (int time = 0; time < 2; ++time) {
    WorkerHeartbeat beat;
    beat.progress.emplace();
    beat.progress->job = "lm-1";
    beat.progress->generation = w.Order("a").generation;
    beat.progress->steps_redone = kMaxNumber;
    beat.progress->unpushed_steps = kMaxNumber;
    beat.progress->steps_interrupted = kMaxNumber;
    w.HandleEvent(FromWorker{"a", w.Island(0).incarnation, beat});
    w.DoLines({"worker a dies", "worker a attaches", "worker a prepared"});
    CHECK(w.Island(0).steps_redone == kMaxNumber);
    CHECK(w.Island(0).steps_interrupted == kMaxNumber);
  }
}

TEST_CASE("a_job_whose_numbers_leave_no_room_to_go_on_is_not_adopted") {
  World w;
  w.StartJob({"ps-0", "ps-1"}, {"a", "b"}, "");
  TrainRounds(w, 2);
  w.Do("coordinator is-lost");
  AllAttach(w);
  JobDescribed described;
  described.held.job = "lm-1";
  std::string named;
  SECTION("placement") {
    described.held.placement = kMaxNumber;
    named = "placement";
  }
  SECTION("generation") {
    described.held.generation = kMaxGeneration;
    named = "generation";
  }
  SECTION("plan_generation") {
    described.newest.image.plan_generation = kMaxGeneration;
    named = "generation";
  }
  SECTION("version") {
    described.held.version = kMaxVersion;
    named = "version";
  }
  SECTION("more_tokens_in_a_round_than_in_all") {
    described.newest.image.tokens = 2;
    described.newest.image.tokens_committed = 1;
    named = "tokens of its newest round";
  }
  w.HandleEvent(FromServer{"ps-0", 1, described});
  w.Do("adopt lm-1");
  CHECK_FALSE(w.reply().ok());
  CHECK(HasText(std::string(w.reply().message()),
                absl::StrCat("parameter server ps-0 says of it a ", named)));
  CHECK(w.core().Jobs().jobs.empty());
}

TEST_CASE("a_candidate_of_a_job_that_is_adopted_as_finished_is_none_any_more") {
  World w;
  w.DoLines({"server ps-0 attaches", "worker a attaches", "submit tokens=40",
             "coordinator is-backed-up", "worker a prepared", "servers answer", "worker a pushes",
             "worker a stages", "servers answer", "worker a ready"});
  w.Contribute("a", 4);
  w.DoLines({"servers answer", "worker a validates loss=2", "servers answer", "servers snapshot",
             "servers answer"});
  REQUIRE(w.Job().summary.state == JobState::kDone);
  w.DoLines({"coordinator is-restored", "worker a attaches", "server ps-0 attaches incarnation=1",
             "servers answer"});
  REQUIRE(w.Job().summary.state == JobState::kPreparing);
  w.Do("adopt lm-1");
  REQUIRE(w.reply().ok());
  REQUIRE(w.Job().summary.state == JobState::kDone);
  w.Do("wait 5");
  w.Do("submit name=other number=2");
  CHECK(w.Job("other-2").summary.state == JobState::kPreparing);  // it has the worker
}

WorkerHello HelloWith(const ClusterMark& mark) {
  WorkerHello hello;
  hello.mark = mark;
  return hello;
}

constexpr char kCluster[] = "00000000000000aa";

TEST_CASE("a_mark_that_no_coordinator_has_given_makes_no_store_older") {
  for (const ClusterMark& mark :
       {ClusterMark{kCluster, 0, int64_t{1} << 62}, ClusterMark{kCluster, 3, int64_t{4} << 32},
        ClusterMark{kCluster, kMaxEpoch, kMaxEpoch << 32}}) {
    INFO("epoch " << mark.epoch << ", sequence " << mark.sequence);
    World w;
    w.StartJob({"ps-0", "ps-1"}, {"a", "b"}, "");
    w.Do("coordinator restarts");
    w.HandleEvent(FromWorker{"a", 9, HelloWith(mark)});
    w.HandleEvent(FromWorker{"z", 1, HelloWith(mark)});
    CHECK(w.core().StoreAge().empty());
    CHECK_FALSE(HasText(w.Job().summary.waiting_for, "adopt"));
    CHECK(w.core().epoch() < 10);
  }
}

TEST_CASE("members_that_the_store_does_not_know_make_it_older_only_together") {
  World w;
  w.StartJob({"ps-0", "ps-1"}, {"a", "b"}, "");
  w.Do("coordinator restarts");
  const ClusterMark mark{kCluster, 7, (int64_t{7} << 32) + 1};
  w.HandleEvent(FromWorker{"y", 1, HelloWith(mark)});
  CHECK(w.core().StoreAge().empty());
  CHECK(w.core().epoch() > 7);  // it can follow
  AllAttach(w);
  CHECK_FALSE(HasText(w.Job().summary.waiting_for, "adopt"));
  w.HandleEvent(FromWorker{"z", 1, HelloWith(mark)});
  CHECK(HasText(w.core().StoreAge(), "worker z"));
}

TEST_CASE("a_window_of_a_job_that_has_become_stale_is_no_deadline") {
  World w;
  w.StartJob({"ps-0", "ps-1"}, {"a", "b"}, "");
  TrainRounds(w, 1);
  w.Do("coordinator restarts");
  const ClusterMark mark{kCluster, 7, (int64_t{7} << 32) + 1};
  w.HandleEvent(FromWorker{"y", 1, HelloWith(mark)});
  AllAttach(w);
  w.DoLines({"worker a ready", "worker b ready"});
  w.Contribute("a", 4);
  REQUIRE(w.Job().round.phase == "window open");
  w.HandleEvent(FromWorker{"z", 1, HelloWith(mark)});
  w.Do("wait 20");  // beyond its grace: World checks each next deadline
  CHECK(HasText(w.Job().summary.waiting_for, "adopt"));
}

TEST_CASE("a_coordinator_that_stalls_again_and_again_still_finds_an_island_without_progress") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "steps=4 tokens=100000 grace=10 wait-for-all");
  w.DoLines({"worker b leases", "worker b stands-still"});
  w.Contribute("a", 4);
  // Longer than the 15 minutes that synchronous rounds wait.
  for (int i = 0; i < 180 && w.Job().summary.version == 0; ++i) {
    w.DoLines({"wait 6", "coordinator is-held-up 2", "servers answer"});
  }
  CHECK(w.Job().summary.version == 1);
}

TEST_CASE("a_validation_loss_far_from_training_needs_a_second_validator") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "validate=1 tokens=10000");
  w.Do("worker a validates loss=5");
  REQUIRE(w.Job().summary.validation_loss == 5);
  TrainRounds(w, 1);
  REQUIRE(w.Job().summary.version == 1);
  const NodeId first = w.Order("a").validate_version == 1 ? "a" : "b";
  const NodeId second = first == "a" ? "b" : "a";
  SECTION("one_that_contradicts_it_counts_alone") {
    w.Do(absl::StrCat("worker ", first, " validates loss=0 version=1"));
    CHECK(w.Job().summary.validation_loss == 5);
    CHECK(w.Order(second).validate_version == 1);
    w.Do(absl::StrCat("worker ", second, " validates loss=2 version=1"));
    CHECK(w.Job().summary.validation_loss == 2);
  }
  SECTION("one_that_confirms_it_makes_it_count") {
    w.Do(absl::StrCat("worker ", first, " validates loss=0.01 version=1"));
    w.Do(absl::StrCat("worker ", second, " validates loss=0.012 version=1"));
    CHECK(w.Job().summary.validation_loss == 0.012);
  }
  SECTION("a_loss_that_is_none_never_counts") {
    w.Do(absl::StrCat("worker ", first, " validates loss=-1 version=1"));
    w.Do(absl::StrCat("worker ", second, " validates loss=-1 version=1"));
    CHECK(w.Job().summary.validation_loss == 5);
    TrainRounds(w, 1);
    CHECK(w.Job().summary.version == 2);  // and nothing waits for it
  }
}

TEST_CASE("a_job_at_which_the_coordinator_crashed_fails_at_the_next_start_and_can_be_resumed") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "");
  w.Do("submit name=other number=2");
  w.Do("coordinator crashes-at lm-1");
  CHECK(w.Job().summary.state == JobState::kFailed);
  CHECK(HasText(w.Job().summary.reason, "crashed while it handled this job"));
  CHECK(w.Job("other-2").summary.state == JobState::kQueued);
  w.Do("coordinator restarts");
  CHECK(w.Job().summary.state == JobState::kFailed);
  w.DoLines({"server ps-0 attaches incarnation=1", "worker a attaches incarnation=1", "resume lm-1",
             "worker a prepared", "servers answer", "worker a ready"});
  CHECK(w.Job().summary.state == JobState::kRunning);
  w.Do("coordinator crashes-at no-such-job");
  CHECK(w.Job().summary.state == JobState::kRunning);
}

TEST_CASE("a_worker_that_found_a_cause_before_the_job_was_resumed_is_asked_again") {
  World w;
  w.DoLines({"server ps-0 attaches", "worker a attaches", "submit"});
  w.HandleEvent(FromWorker{"a", 1, JobRefused{"lm-1", "no such file", 0}});
  REQUIRE(w.Job().summary.state == JobState::kFailed);
  w.Do("resume lm-1");
  REQUIRE(w.Job().summary.state == JobState::kPreparing);
  w.HandleEvent(FromWorker{"a", 1, JobRefused{"lm-1", "no such file", 1}});  // of before
  CHECK(w.Job().summary.state == JobState::kPreparing);
  w.DoLines({"worker a prepared", "servers answer"});
  CHECK(w.Job().summary.state == JobState::kInitializing);
}

}  // namespace
}  // namespace atl::testing
