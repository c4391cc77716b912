#include <catch2/catch.hpp>

#include "coordinator/monitoring/cluster_metrics.h"
#include "coordinator/monitoring/progress_watch.h"
#include "coordinator/monitoring/round_counters.h"

namespace atl {
namespace {

constexpr Instant kBegin{std::chrono::seconds(1000)};
Instant At(int seconds) { return kBegin + std::chrono::seconds(seconds); }

// One running job with one attached island of a leader and a follower.
struct Running {
  Running() {
    job.summary.job = "lm-1";
    job.summary.state = JobState::kRunning;
    job.summary.active_islands = 2;
    job.spec.outer.min_islands = 2;
    island().attached = true;
    island().incarnation = 7;
    island().generation = 1;
    island().plan.emplace().number = 1;
    island().workers = {{"a", 7, true, true, true, "training", 1},
                        {"b", 8, false, true, true, "opening the data", 0}};
    Heartbeat(0, 5);
  }
  IslandView& island() { return job.islands.front(); }
  void Heartbeat(int seconds, int64_t step) {
    IslandProgress progress;
    progress.job = "lm-1";
    progress.generation = island().generation;
    progress.inner_step = step;
    progress.step_seconds_idle_link = step_s;
    island().progress = progress;
    watch.OnHeartbeat(At(seconds), progress);
  }
  ProgressWatch::Standing Look(int seconds) { return watch.Of(At(seconds), job, island()); }

  double step_s = 0.1;
  JobView job = [] {
    JobView view;
    view.islands.emplace_back();
    return view;
  }();
  ProgressWatch watch;
};

TEST_CASE("an_island_whose_steps_do_not_grow_is_stalled_and_names_who_it_waits_for") {
  Running r;
  r.Heartbeat(20, 5);
  CHECK(r.Look(20).since_step_s == 20);
  CHECK(r.Look(20).stalled.empty());
  r.Heartbeat(40, 5);
  const std::string stalled = r.Look(40).stalled;
  CHECK(stalled.find("b (opening the data)") != std::string::npos);
}

TEST_CASE("a_step_a_new_generation_and_a_resumed_job_begin_anew") {
  Running r;
  r.Heartbeat(40, 6);
  CHECK(r.Look(41).since_step_s == 1);
  r.island().generation = 2;
  r.Heartbeat(60, 6);
  CHECK(r.Look(61).since_step_s == 1);
  r.watch.On(At(90), {"lm-1", 0, LeaderChanged()});
  CHECK(r.Look(91).since_step_s == 1);
}

TEST_CASE("slow_steps_have_more_time_before_they_count_as_stalled") {
  Running r;
  r.step_s = 10;
  r.Heartbeat(0, 5);
  CHECK(r.Look(100).stalled.empty());
  CHECK_FALSE(r.Look(201).stalled.empty());
}

TEST_CASE("islands_of_a_job_that_waits_for_more_are_not_stalled") {
  Running r;
  r.job.summary.active_islands = 1;
  CHECK(r.Look(1000).stalled.empty());
}

TEST_CASE("paused_jobs_and_vacant_islands_are_not_stalled") {
  Running r;
  r.job.summary.state = JobState::kPaused;
  CHECK(r.Look(1000).stalled.empty());
  r.job.summary.state = JobState::kRunning;
  r.island().attached = false;
  CHECK(r.Look(1000).stalled.empty());
}

IslandRecord Island(int64_t evictions) {
  IslandRecord island;
  island.job = "lm-1";
  island.evictions = evictions;
  return island;
}

// Counts what the core stores of one job.
struct Counted {
  Counted(const std::vector<StoreRecord>& more = {}) {
    std::vector<StoreRecord> records = {JobRecord{"lm-1"}};
    records.insert(records.end(), more.begin(), more.end());
    for (const JobEvent& happened : log.Recover(records)) counters.On(happened);
  }
  void Store(int64_t unix_ms, const CoordinatorEvent& event, const StoreRecord& record) {
    const std::vector<StoreWrite> writes = {{record}};
    for (const JobEvent& happened : log.Read(unix_ms, event, writes)) counters.On(happened);
  }
  const JobCounters* job() const { return counters.Find("lm-1"); }
  RoundLog log;
  RoundCounters counters;
};

TEST_CASE("evictions_are_counted_by_the_event_that_caused_them") {
  Counted counted({Island(2)});
  counted.Store(0, Tick{}, Island(2));
  counted.Store(0, Tick{}, Island(3));
  counted.Store(0, ConnectionLost{MemberKind::kWorker, "w1", 1}, Island(5));
  counted.Store(0, FromWorker{"w1", 1, Leaving{"stopped"}}, Island(5));  // it left
  CHECK(counted.job()->evictions ==
        std::map<std::string, int64_t>{{"silent", 1}, {"connection_lost", 2}});
}

TEST_CASE("rounds_are_counted_once_with_their_duration_and_staleness") {
  Counted counted;
  DecisionRecord decision;
  decision.job = "lm-1";
  decision.version = 4;
  decision.previous = 3;
  decision.participants.resize(1);
  decision.participants[0].contribution.base_version = 1;
  decision.round = 1;
  counted.Store(1'000, Tick{}, decision);
  counted.Store(2'000, Tick{}, decision);  // stored again
  decision.round = 2;
  decision.version = kNoVersion;
  counted.Store(3'000, Tick{}, decision);
  const JobCounters* job = counted.job();
  CHECK(job->committed == 1);
  CHECK(job->voided == 1);
  CHECK(job->round_seconds.count() == 1);
  CHECK(job->staleness.count() == 2);
}

TEST_CASE("a_round_during_which_the_job_was_paused_is_no_measure_of_rounds") {
  Counted counted;
  DecisionRecord decision;
  decision.job = "lm-1";
  ProgressRecord progress;
  progress.job = "lm-1";
  const auto decides = [&](int64_t unix_ms) {
    ++decision.round;
    decision.version = decision.round;
    counted.Store(unix_ms, Tick{}, decision);
    return counted.job()->round_seconds.count();
  };
  const auto becomes = [&](JobState state) {
    progress.state = state;
    counted.Store(0, Tick{}, progress);
  };
  decides(1'000);
  CHECK(decides(2'000) == 1);
  becomes(JobState::kPaused);
  CHECK(decides(3'000) == 1);
  becomes(JobState::kRunning);
  CHECK(decides(9'000) == 1);
  CHECK(decides(10'000) == 2);
}

TEST_CASE("an_empty_cluster_reports_every_state_as_zero") {
  CoordinatorCore core({}, "cluster", 1);
  REQUIRE(core.Recover(kBegin, {}).ok());
  MetricsWriter writer;
  AddClusterMetrics(kBegin, 0, core, {History(), RoundCounters(), ProgressWatch()}, writer);
  const std::string text = writer.Text();
  CHECK(text.find("atoll_jobs{state=\"running\"} 0") != std::string::npos);
  CHECK(text.find("atoll_members{kind=\"worker\",state=\"attached\"} 0") != std::string::npos);
}

TEST_CASE("metrics_of_ten_thousand_members_are_bounded") {
  CoordinatorOptions options;
  options.software_version = "1";
  CoordinatorCore core(options, "cluster", 1);
  REQUIRE(core.Recover(kBegin, {}).ok());
  constexpr int kWorkers = 10'000;
  for (int i = 0; i < kWorkers; ++i) {
    WorkerHello hello;
    hello.software_version = "1";
    core.Step(kBegin, FromWorker{"w" + std::to_string(i), 1, hello});
  }
  MetricsWriter writer;
  AddClusterMetrics(kBegin, 0, core, {History(), RoundCounters(), ProgressWatch()}, writer);
  const std::string text = writer.Text();
  CHECK(text.find("atoll_members{kind=\"worker\",state=\"attached\"} 10000\n") !=
        std::string::npos);
  size_t ages = 0;
  const std::string age = "\natoll_member_heartbeat_age_seconds{";
  for (size_t at = text.find(age); at != std::string::npos; at = text.find(age, at + 1)) ++ages;
  CHECK(ages == kMembersShown);
}

}  // namespace
}  // namespace atl
