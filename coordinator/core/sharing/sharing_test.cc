// Several jobs that share the workers, in the World's commands.

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "coordinator/core/testing/shared_fixture.h"

namespace atl::testing {
namespace {

bool Has(const World& w, IslandId island, const NodeId& worker, const JobId& job = "lm-1") {
  const IslandView view = w.Island(island, job);
  return view.incarnation != 0 && view.worker == worker;
}

JobState GetState(const World& w, const JobId& job) { return w.Job(job).summary.state; }

// Candidates of the job open it; the first one makes its version 0.
void Begin(World& w, const std::vector<NodeId>& workers) {
  for (const NodeId& name : workers) w.Do(absl::StrCat("worker ", name, " prepared"));
  w.DoLines({"servers answer", absl::StrCat("worker ", workers[0], " pushes"),
             absl::StrCat("worker ", workers[0], " stages"), "servers answer"});
  for (const NodeId& name : workers) w.Do(absl::StrCat("worker ", name, " ready"));
}

void EditWeight(World& w, const JobId& job, int64_t weight) {
  JobSpec spec = w.Job(job).spec;
  spec.schedule.weight = weight;
  w.HandleEvent(ChangeSettings{1, job, spec, "schedule.weight"});
  REQUIRE(w.reply().ok());
}

// Three workers train the first job, and the last of them has leased data when a job of higher
// priority comes that needs two.
struct Preempted : World {
  Preempted() {
    StartJob({"ps-0"}, {"a", "b", "c"}, "min=1 tokens=4000");
    DoLines({"worker c leases wanted=4", "submit name=hi min=2 max=2 priority=5 tokens=400"});
  }
  // The island of c ends what it has begun.
  void RunOut() {
    DoLines({"worker c pushes", "worker c stages"});
    Round({"a"}, 4);
  }
};

TEST_CASE("job_of_higher_priority_gets_its_gang_when_others_have_pushed_what_they_trained") {
  Preempted w;
  CHECK(w.Island(1).incarnation == 0);  // it had nothing under way
  CHECK(Has(w, 2, "c"));
  CHECK(w.Order("c").run == RunState::kRun);
  CHECK(HasText(w.Do("worker c leases wanted=4 request=2"), "LeaseGrant 2: nothing, exhausted"));
  CHECK(GetState(w, "hi-2") == JobState::kQueued);  // a gang begins whole
  w.RunOut();
  CHECK(w.Job().summary.version == 1);
  CHECK(w.Island(2).incarnation == 0);
  CHECK(w.Island(2).rounds_accepted == 1);
  for (const IslandId island : {0, 1, 2}) {
    CHECK(w.Island(island).steps_redone == 0);
    CHECK(w.Island(island).evictions == 0);
  }
  CHECK(GetState(w, "hi-2") == JobState::kPreparing);
  Begin(w, {"b", "c"});
  CHECK(GetState(w, "hi-2") == JobState::kRunning);
  CHECK(Has(w, 0, "b", "hi-2"));
  CHECK(Has(w, 1, "c", "hi-2"));
  w.Do("worker a ready");
  w.Round({"a"}, 4);
  CHECK(w.Job().summary.version == 2);  // with what is left
  SECTION("when it has ended the islands have their workers back") {
    w.DoLines({"cancel hi-2", "worker b beats", "worker c beats", "worker b prepared",
               "worker c prepared"});
    CHECK(Has(w, 1, "b"));
    CHECK(Has(w, 2, "c"));
    CHECK(w.Job().ledger.committed == 12);
  }
  SECTION("what it loses is replaced when it is unlikely that it comes back") {
    w.Do("worker a leases wanted=4");
    w.DoLines({"worker c dies", "wait 20"});
    CHECK(w.Order("a").run == RunState::kRun);
    CHECK(w.Leases("a").size() == 1);
    CHECK_FALSE(HasText(w.Do("worker a leases wanted=4"), "exhausted"));
    CHECK(HasText(w.Do("wait 12"), "island 0 leaves"));
  }
}

TEST_CASE("call_for_workers_goes_on_after_a_restart_of_the_coordinator") {
  Preempted w;
  w.DoLines({"coordinator restarts", "server ps-0 attaches incarnation=1",
             "worker a attaches incarnation=1", "worker b attaches incarnation=1",
             "worker c attaches incarnation=1", "servers answer", "worker a ready",
             "worker c ready"});
  CHECK(HasText(w.Do("worker c leases wanted=4 request=2"), "LeaseGrant 2: nothing, exhausted"));
  CHECK(GetState(w, "hi-2") == JobState::kQueued);
  w.RunOut();
  CHECK(w.Island(2).rounds_accepted == 1);
  CHECK(w.Island(2).steps_redone == 0);
  CHECK(GetState(w, "hi-2") == JobState::kPreparing);
}

TEST_CASE("called_island_that_ends_nothing_is_lost_and_its_data_is_free_again") {
  Preempted w;
  w.Do("worker c stands-still");
  w.Do("wait 570");
  CHECK(Has(w, 2, "c"));
  CHECK(GetState(w, "hi-2") == JobState::kQueued);
  w.Do("wait 40");
  CHECK(w.Island(2).incarnation == 0);
  CHECK(w.Job().ledger.leased == 0);
  CHECK(GetState(w, "hi-2") == JobState::kPreparing);
}

// A job of which nothing is decided: a server that holds shards of it is not back since the store
// was restored. Its workers are, and have steps that are not pushed.
struct Stale : World {
  Stale() {
    StartJob({"ps-0", "ps-1"}, {"a", "b"}, "min=1 tokens=4000 priority=9");
    Do("coordinator is-backed-up");
    Round({"a", "b"}, 4);
    DoLines({"coordinator restarts", "coordinator is-restored",
             "server ps-0 attaches incarnation=1", "worker a attaches incarnation=1",
             "worker b attaches incarnation=1"});
  }
};

TEST_CASE("workers_of_a_job_of_which_nothing_is_decided_go_to_one_that_waits") {
  Stale w;
  REQUIRE(HasText(w.Job().summary.waiting_for, "restored"));
  w.Do("submit name=next min=2 tokens=400");
  w.Do("wait 620");
  CHECK(w.Island(0).incarnation == 0);
  CHECK(w.Island(1).incarnation == 0);
  REQUIRE(GetState(w, "next-2") == JobState::kPreparing);
  Begin(w, {"a", "b"});
  CHECK(GetState(w, "next-2") == JobState::kRunning);
  SECTION("and it has them back when it is known whole and the other one has ended") {
    w.DoLines({"server ps-1 attaches incarnation=1", "servers answer", "cancel next-2",
               "worker a beats", "worker b beats", "worker a prepared", "worker b prepared"});
    CHECK(w.Job().summary.version == 1);
    CHECK(Has(w, 0, "a"));
    CHECK(Has(w, 1, "b"));
  }
}

TEST_CASE("a_job_of_which_nothing_is_decided_keeps_workers_that_no_other_one_needs") {
  Stale w;
  w.Do("wait 620");
  CHECK(Has(w, 0, "a"));
  CHECK(Has(w, 1, "b"));
  w.DoLines({"server ps-1 attaches incarnation=1", "servers answer"});
  CHECK(w.Job().summary.version == 1);
}

TEST_CASE("preparing_job_without_its_gang_gives_way_to_a_job_of_lower_priority") {
  World w;
  w.DoLines({"server ps-0 attaches", "worker a attaches", "worker b attaches",
             "submit name=hi min=2 priority=5 tokens=400", "submit name=lo min=1 tokens=400"});
  REQUIRE(GetState(w, "hi-1") == JobState::kPreparing);
  w.Do("worker a dies");
  CHECK(GetState(w, "hi-1") == JobState::kQueued);
  CHECK(GetState(w, "lo-2") == JobState::kPreparing);
}

TEST_CASE("preparing_job_gives_what_is_beyond_its_gang_and_goes_on") {
  World w;
  w.DoLines({"server ps-0 attaches", "worker a attaches", "worker b attaches",
             "submit min=1 tokens=400", "submit name=two min=1 max=1 tokens=400"});
  CHECK(GetState(w, "lm-1") == JobState::kPreparing);
  CHECK(GetState(w, "two-2") == JobState::kPreparing);
}

TEST_CASE("islands_are_called_when_all_workers_are_back_after_a_restart") {
  Preempted w;
  w.DoLines({"coordinator restarts", "server ps-0 attaches incarnation=1",
             "worker a attaches incarnation=1", "worker b attaches incarnation=1", "servers answer",
             "worker a beats"});
  CHECK(Has(w, 0, "a"));
  w.DoLines({"worker c attaches incarnation=1", "worker c ready"});
  CHECK(HasText(w.Do("worker c leases wanted=4 request=2"), "LeaseGrant 2: nothing, exhausted"));
  CHECK(Has(w, 0, "a"));
}

TEST_CASE("a_gang_is_of_workers_that_have_room_in_the_islands_of_the_job") {
  World w;
  w.DoLines({"server ps-0 attaches", "worker a attaches site=oslo", "worker b attaches site=oslo",
             "worker c attaches site=rome", "submit min=1 tokens=4000"});
  Begin(w, {"a", "b", "c"});
  w.Do("submit name=hi island=site per-island=2 min=1 max=1 priority=5 tokens=400");
  CHECK(GetState(w, "hi-2") == JobState::kPreparing);
  CHECK(w.Job().summary.active_islands == 1);
  CHECK(Has(w, 2, "c"));
}

TEST_CASE("island_that_is_needed_no_more_stays") {
  Preempted w;
  w.DoLines({"worker c leases wanted=4 request=2", "cancel hi-2"});
  CHECK(HasText(w.Do("worker c leases wanted=4 request=2"), "LeaseGrant 2: 4-8"));
  CHECK(Has(w, 2, "c"));
}

TEST_CASE("a_job_takes_its_least_number_of_islands_or_none") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b", "c"}, "min=1 tokens=4000");
  w.Do("submit name=hi min=4 priority=5 tokens=400");
  for (const IslandId island : {0, 1, 2}) CHECK(w.Island(island).incarnation != 0);
  CHECK(GetState(w, "hi-2") == JobState::kQueued);
  w.Do("worker d attaches");
  CHECK(GetState(w, "hi-2") == JobState::kPreparing);
  CHECK(GetState(w, "lm-1") == JobState::kRunning);
  CHECK(w.Job().summary.active_islands == 0);
  w.Do("cancel hi-2");
  w.DoLines({"worker b beats", "worker b prepared", "worker b ready"});
  w.Round({"b"}, 4);
  CHECK(w.Job().summary.version == 1);
}

TEST_CASE("job_below_its_minimum_waits_until_it_has_its_workers_back") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "min=2 tokens=4000");
  w.DoLines({"worker b leases wanted=4", "worker a leases wanted=4",
             "submit name=hi min=1 max=1 priority=1 tokens=400"});
  CHECK(w.Order("a").run == RunState::kRun);
  for (const std::string name : {"a", "b"}) {
    w.DoLines({"worker " + name + " pushes", "worker " + name + " stages"});
  }
  w.Do("servers answer");
  CHECK(w.Job().summary.version == 1);
  CHECK(w.Island(1).incarnation == 0);
  CHECK(w.Order("a").run == RunState::kPause);
  CHECK(HasText(w.Job().summary.waiting_for, "job hi-2 (priority 1) has 1"));
  w.DoLines({"cancel hi-2", "worker b beats", "worker b prepared"});
  CHECK(w.Order("a").run == RunState::kRun);
  CHECK(Has(w, 1, "b"));
}

TEST_CASE("the_job_of_equal_priority_with_less_work_for_its_weight_has_workers_first") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b", "c", "d"}, "min=1 tokens=4000");
  EditWeight(w, "lm-1", 2);
  w.Do("submit name=two min=1 tokens=3900");
  Begin(w, {"d"});
  CHECK(w.Job("two-2").islands.size() == 1);  // its gang
  EditWeight(w, "two-2", 4);
  CHECK(w.Job().summary.active_islands == 1);
  CHECK(Has(w, 0, "a"));
  SECTION("also when the weight changes") {
    EditWeight(w, "lm-1", 100);
    w.DoLines({"worker b beats", "worker b prepared", "worker c beats", "worker c prepared"});
    CHECK(Has(w, 1, "b"));
    CHECK(Has(w, 2, "c"));
  }
}

TEST_CASE("jobs_have_idle_workers_beyond_their_owners_quota_until_others_need_them") {
  CoordinatorOptions options;
  options.quotas = {{"alice", 1}, {"bob", 1}, {"carol", 2}};
  World w(options);
  w.StartJob({"ps-0"}, {"a", "b", "c"}, "min=1 tokens=4000 priority=5 owner=alice");
  CHECK(w.Job().summary.owner == "alice");
  w.Do("submit name=large min=2 max=2 tokens=400 priority=9 owner=bob");
  CHECK(GetState(w, "large-2") == JobState::kQueued);
  CHECK(HasText(w.Job("large-2").summary.waiting_for, "bob has 2 devices and a quota of 1"));
  w.Do("submit name=two min=2 max=2 tokens=400 owner=carol");
  CHECK(GetState(w, "two-3") == JobState::kPreparing);
  CHECK(Has(w, 0, "a"));
  CHECK(w.Job().summary.active_islands == 1);
  for (const IslandId island : {1, 2}) CHECK(w.Island(island).steps_redone == 0);
  Begin(w, {"b", "c"});
  SECTION("after a restart it is the same") {
    w.DoLines({"coordinator restarts", "server ps-0 attaches incarnation=1",
               "worker a attaches incarnation=1", "worker b attaches incarnation=1",
               "worker c attaches incarnation=1", "servers answer", "wait 20"});
    CHECK(Has(w, 0, "b", "two-3"));
    CHECK(Has(w, 1, "c", "two-3"));
    CHECK(w.Job().summary.owner == "alice");
  }
  SECTION("a job of no quota goes before one beyond its own") {
    w.DoLines({"submit name=free min=2 max=2 tokens=400", "cancel two-3"});
    CHECK(GetState(w, "free-4") == JobState::kPreparing);
    CHECK(GetState(w, "large-2") == JobState::kQueued);
  }
}

TEST_CASE("a_small_job_runs_on_what_a_larger_one_cannot_use_yet") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "max=2 tokens=4000");
  w.DoLines({"worker c attaches", "submit name=big min=4 tokens=4000",
             "submit name=small min=1 max=1 tokens=400"});
  CHECK(GetState(w, "big-2") == JobState::kQueued);
  CHECK(GetState(w, "small-3") == JobState::kPreparing);
  Begin(w, {"c"});
  w.Do("worker d attaches");
  CHECK(GetState(w, "small-3") == JobState::kRunning);
  w.Do("cancel lm-1");
  CHECK(GetState(w, "big-2") == JobState::kPreparing);  // no later than without the small one
  CHECK(w.Job("small-3").summary.active_islands == 0);
  CHECK(GetState(w, "small-3") == JobState::kRunning);
}

TEST_CASE("job_that_prepares_gives_way_at_once") {
  World w;
  w.DoLines({"server ps-0 attaches", "worker a attaches", "worker b attaches",
             "submit min=2 tokens=400"});
  REQUIRE(GetState(w, "lm-1") == JobState::kPreparing);
  const std::string output = w.Do("submit name=hi min=1 max=1 priority=1 tokens=400");
  CHECK(GetState(w, "lm-1") == JobState::kQueued);
  CHECK(GetState(w, "hi-2") == JobState::kPreparing);
  CHECK(HasText(output, ": PrepareJob hi-2"));
  w.Do("cancel hi-2");
  CHECK(GetState(w, "lm-1") == JobState::kPreparing);
}

TEST_CASE("island_of_several_workers_leaves_whole_with_its_work_pushed") {
  SharedWorld w;
  w.DoLines({"worker a leases wanted=4", "submit name=hi min=1 max=1 priority=1 tokens=400"});
  CHECK(Has(w, 0, "a"));
  w.DoLines({"worker a pushes", "worker a stages", "servers answer"});
  CHECK(w.Job().summary.version == 1);
  CHECK(w.Island(0).rounds_accepted == 1);
  CHECK(w.Island(0).steps_redone == 0);
  CHECK(GetState(w, "hi-2") == JobState::kPreparing);
  w.DoLines({"worker b prepared", "worker c prepared"});
  CHECK(w.Island(0).workers.size() == 2);
}

}  // namespace
}  // namespace atl::testing
