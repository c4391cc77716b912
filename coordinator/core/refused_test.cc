// Jobs that cannot succeed, in the World's commands.

#include <catch2/catch.hpp>
#include <limits>
#include <string>

#include "coordinator/core/testing/world.h"

namespace atl::testing {
namespace {

bool HasText(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

TEST_CASE("job_that_every_worker_gives_up_stops_at_its_version_with_the_reason") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "steps=4");
  w.Do("worker a refuses reason=loss-not-finite");
  CHECK(w.Job().summary.state == JobState::kRunning);
  w.Do("worker b refuses reason=loss-not-finite");
  const JobSummary summary = w.Job().summary;
  CHECK(summary.state == JobState::kFailed);
  CHECK(summary.version == 0);
  CHECK(HasText(summary.reason, "loss-not-finite"));
}

TEST_CASE("job_that_starts_names_the_members_that_have_not_answered") {
  World w;
  w.DoLines({"server ps-0 attaches", "worker a attaches", "worker b attaches", "worker c attaches",
             "submit min=3 steps=4", "worker b prepared"});
  REQUIRE(w.Job().summary.state == JobState::kPreparing);
  CHECK(HasText(w.Job().summary.waiting_for, "no answer yet from a, c"));
  w.DoLines({"worker a prepared"});
  CHECK(HasText(w.Job().summary.waiting_for, "no answer yet from c"));
  w.DoLines({"worker c prepared"});
  REQUIRE(w.Job().summary.state == JobState::kInitializing);
  CHECK(HasText(w.Job().summary.waiting_for, "no answer yet from island 0 (worker a)"));
}

TEST_CASE("job_whose_worker_is_unavailable_is_not_failed_by_another_that_cannot_run_it") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "steps=4");
  w.DoLines({"worker b attaches", "worker b refuses reason=other-data", "worker a dies"});
  CHECK(w.Job().summary.state == JobState::kRunning);
  CHECK(HasText(w.Job().summary.waiting_for, "other-data"));
  w.DoLines({"worker a attaches incarnation=2", "worker a prepared"});
  CHECK(w.Job().summary.state == JobState::kRunning);
  CHECK(w.Island(0).incarnation == 2);
}

TEST_CASE("initial_weights_that_cannot_be_read_end_the_job_with_the_reason") {
  World w;
  w.DoLines(
      {"server ps-0 attaches", "worker a attaches", "submit min=1 steps=4", "worker a prepared"});
  REQUIRE(w.Job().summary.state == JobState::kInitializing);
  w.Do("worker a refuses reason=not-finite-weights");
  CHECK(w.Job().summary.state == JobState::kFailed);
  CHECK(HasText(w.Job().summary.reason, "not-finite-weights"));
}

TEST_CASE("deltas_that_are_never_finite_stop_the_job_at_its_version") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "steps=4");
  int rounds = 0;
  while (w.Job().summary.state == JobState::kRunning && rounds < 10) {
    w.Contribute("a", 4, std::numeric_limits<double>::quiet_NaN());
    w.DoLines({"servers answer", "worker a ready"});
    ++rounds;
  }
  CHECK(rounds == 3);
  CHECK(w.Job().summary.state == JobState::kFailed);
  CHECK(w.Job().summary.version == 0);
}

TEST_CASE("job_that_too_few_workers_can_run_gives_the_others_back") {
  World w;
  w.DoLines(
      {"server ps-0 attaches", "worker a attaches", "worker b attaches", "submit min=2 steps=4"});
  REQUIRE(w.Job("lm-1").summary.state == JobState::kPreparing);
  w.Do("submit min=1 steps=4");
  w.Do("worker a refuses reason=no-data-here");
  CHECK(w.Job("lm-1").summary.state == JobState::kPreparing);  // b has yet to say
  w.Do("worker b prepared");
  CHECK(w.Job("lm-1").summary.state == JobState::kQueued);
  CHECK(HasText(w.Job("lm-1").summary.waiting_for, "no-data-here"));
  CHECK(w.Job("lm-2").summary.state == JobState::kPreparing);
}

TEST_CASE("job_that_the_workers_there_can_never_start_holds_no_other_up") {
  World w;
  w.DoLines({"server ps-0 attaches", "worker a attaches", "submit min=3 steps=4",
             "submit min=1 steps=4"});
  CHECK(w.Job("lm-1").summary.state == JobState::kQueued);
  CHECK(w.Job("lm-2").summary.state == JobState::kPreparing);
}

TEST_CASE("cancelled_job_stops_the_workers_that_still_prepare_it") {
  World w;
  w.DoLines({"server ps-0 attaches", "worker a attaches", "submit min=1 steps=4"});
  CHECK(HasText(w.Do("cancel lm-1"), "-> a: IslandOrder lm-1"));
}

TEST_CASE("name_is_not_locked_by_an_incarnation_from_a_clock_that_was_ahead") {
  World w;
  w.Do("server ps-0 attaches");
  w.Do("worker a attaches incarnation=3000000000000");
  // While that process is there, no other one gets the name.
  CHECK(HasText(w.Do("worker a attaches incarnation=2000000000000"), "Refused"));
  w.Do("worker a attaches incarnation=3000000000000");
  w.Do("worker a dies");
  CHECK(HasText(w.Do("worker a attaches incarnation=2000000000000"), "Refused"));
  w.Do("worker a dies");
  w.Do("wait 60");
  CHECK(HasText(w.Do("worker a attaches incarnation=2000000000000"), "Welcome"));
  // It serves like any other, also after a restart of the coordinator.
  w.DoLines({"coordinator restarts", "worker a attaches incarnation=2000000000000"});
  CHECK(w.core().Members(w.now()).front().attached);
}

TEST_CASE("incarnation_that_no_clock_shows_is_refused") {
  World w;
  CHECK(HasText(w.Do("worker a attaches incarnation=9223372036854775807"), "Refused"));
  CHECK(HasText(w.Do("worker a attaches incarnation=5"), "Welcome"));
}

}  // namespace
}  // namespace atl::testing
