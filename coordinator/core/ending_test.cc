// Jobs that end while a round is under way, and rounds at their limits, in the World's commands.

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/protocol/round_limit.h"
#include "coordinator/core/testing/world.h"

namespace atl::testing {
namespace {

bool HasText(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

TEST_CASE("a round that was decided is made on every server, although the job is cancelled") {
  World w;
  w.StartJob({"ps-0", "ps-1"}, {"a", "b"}, "");
  w.Contribute("a", 4);
  w.Contribute("b", 4);
  w.Do("servers answer once");  // their statistics: version 1 is decided, and not applied yet
  REQUIRE(w.Job().round.phase == "committing");
  SECTION("when all are there") {
    const std::string cancelled = w.Do("cancel lm-1");
    CHECK_FALSE(HasText(cancelled, "EndJob"));
    CHECK(HasText(w.Do("servers answer"), "version 1 is committed"));
  }
  SECTION("when one comes back later") {
    w.Do("server ps-1 dies");
    w.Do("cancel lm-1");
    const std::string output = w.Do("servers answer");
    CHECK_FALSE(HasText(output, "EndJob"));  // what is not done keeps its momentum
    CHECK(w.Job().summary.version == 0);
    w.Do("coordinator restarts");
    w.DoLines({"server ps-0 attaches incarnation=2", "server ps-1 attaches incarnation=2"});
    CHECK(HasText(w.Do("servers answer"), "version 1 is committed"));
  }
  CHECK(w.Job().summary.version == 1);
  CHECK(w.Job().summary.state == JobState::kCancelled);
  CHECK(w.Job().summary.tokens_committed == 80);
  CHECK_FALSE(HasText(w.Do("wait 10"), "CommitRound"));
}

TEST_CASE("a cancelled job does not wait for a server that has lost what was decided") {
  World w;
  w.StartJob({"ps-0", "ps-1"}, {"a", "b"}, "");
  w.Contribute("a", 4);
  w.Contribute("b", 4);
  w.Do("servers answer once");
  w.DoLines({"server ps-1 dies", "cancel lm-1", "servers answer"});
  w.Do("server ps-1 attaches incarnation=2 empty");
  w.Do("servers answer");
  CHECK_FALSE(HasText(w.Do("wait 10"), "ps-1"));
}

TEST_CASE("a_job_that_skips_more_of_its_data_than_it_may_ends_and_says_how_much") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "tokens=1000");  // 100 sequences, of which one may be skipped
  const auto contribute = [&](const std::string& skipped) {
    w.DoLines({"worker a leases wanted=4", "worker a pushes skipped=" + skipped, "worker a stages",
               "servers answer"});
    return w.Job().summary;
  };
  auto summary = contribute("2-3");
  CHECK(summary.state == JobState::kRunning);
  CHECK(summary.version == 1);
  CHECK(summary.skipped_sequences == 1);
  w.Do("coordinator restarts");
  w.DoLines(
      {"server ps-0 attaches incarnation=1", "worker a attaches incarnation=1", "servers answer"});
  CHECK(w.Job().summary.skipped_sequences == 1);
  summary = contribute("5-6");
  CHECK(summary.state == JobState::kFailed);
  CHECK(summary.version == 2);
  CHECK(summary.skipped_sequences == 2);
}

TEST_CASE("a_push_that_skips_what_it_has_not_consumed_is_refused") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "tokens=1000");
  w.DoLines({"worker a leases wanted=4", "worker a pushes skipped=3-5", "worker a stages",
             "servers answer"});
  CHECK(w.Job().summary.version == 0);
  w.DoLines({"worker a leases wanted=4", "worker a pushes skipped=4-5,4-5", "worker a stages",
             "servers answer"});
  CHECK(w.Job().summary.version == 0);
  w.DoLines({"worker a leases wanted=4", "worker a pushes", "worker a stages", "servers answer"});
  CHECK(w.Job().summary.version == 1);
}

TEST_CASE(
    "of more contributions than a merge by layer takes, the later ones are in the next round") {
  const bool by_layer = GENERATE(true, false);
  const size_t islands = kMaxContributionsByLayer + 2;
  const size_t most = by_layer ? kMaxContributionsByLayer : islands;
  std::vector<NodeId> workers;
  for (size_t i = 0; i < islands; ++i) workers.push_back(absl::StrCat("w", i));
  World w;
  w.StartJob(
      {"ps-0"}, workers,
      absl::StrCat("max=100 tokens=10000 wait-for-all merge=", by_layer ? "radial" : "mean"));
  w.Round(workers, 1);
  REQUIRE(w.Job().summary.version == 1);
  CHECK(w.Job().decisions.back().participants.size() == most);
  for (size_t i = 0; i < most; ++i) w.Do(absl::StrCat("worker w", i, " ready"));
  for (size_t i = 0; i < most; ++i) w.Contribute(absl::StrCat("w", i), 1);
  w.Do("servers answer");
  REQUIRE(w.Job().summary.version == 2);
  CHECK(w.Job().decisions.back().participants.size() == most);
}

TEST_CASE("a server that is not back yet makes no room, and closes no round for the lack of it") {
  World w;
  w.StartJob({"ps-0"}, {"a", "b"}, "wait-for-all");
  w.Contribute("a", 4);
  w.Do("worker b leases wanted=4");
  w.Do("coordinator restarts");
  w.DoLines({"worker a attaches incarnation=1", "worker b attaches incarnation=1",
             "worker b pushes consumed=4-8", "server ps-0 attaches incarnation=1"});
  CHECK(w.Job().round.phase == "window open");
}

TEST_CASE("a late push request for a version decided long ago has no effect") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "");
  for (int round = 0; round < 2; ++round) {
    w.Contribute("a", 2);
    w.DoLines({"servers answer", "worker a ready"});
  }
  REQUIRE(w.Job().summary.version == 2);
  const Generation before = w.Order("a").generation;
  w.DoLines({"worker a leases wanted=2", "worker a pushes", "worker a pushes base=0 consumed=0-2"});
  CHECK(w.Order("a").generation == before);
  REQUIRE(w.Job().round.contributions.size() == 1);
  w.DoLines({"worker a stages", "servers answer"});
  CHECK(w.Job().summary.version == 3);
}

TEST_CASE("the newest version that was exported stays known, also over a restart") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "");
  CHECK(w.Job().summary.exported_version == kNoVersion);
  w.Round({"a"}, 2);
  CHECK(HasText(w.Do("note-export lm-1 version=2"), "FAILED_PRECONDITION"));
  w.DoLines({"note-export lm-1 version=1", "note-export lm-1 version=0", "coordinator restarts"});
  CHECK(w.Job().summary.exported_version == 1);
}

TEST_CASE("of the rounds of a minute one commit is logged, the others for debugging") {
  World w;
  w.StartJob({"ps-0"}, {"a"}, "");
  const auto severity = [&](const std::string& text) {
    const auto line = std::find_if(w.log().begin(), w.log().end(), [&](const EventRecord& one) {
      return absl::StartsWith(one.text, text);
    });
    REQUIRE(line != w.log().end());
    return line->severity;
  };
  for (int round = 0; round < 3; ++round) {
    if (round == 2) w.Do("wait 61");
    w.Contribute("a", 2);
    w.DoLines({"servers answer", "worker a ready"});
  }
  CHECK(severity("version 1 is decided") == Severity::kDebug);
  CHECK(severity("version 2 is committed") == Severity::kDebug);
  CHECK(severity("version 3 is committed") == Severity::kInfo);
}

TEST_CASE("words that are not well-formed are kept as far as they are") {
  World w;
  w.DoLines({"server ps-0 attaches", "worker a attaches", "worker b attaches", "submit min=2"});
  const std::string refusal = w.Do("worker a refuses reason=caf\xc3");
  CHECK(HasText(refusal, "caf?"));
  CHECK(HasText(w.Do("worker b refuses reason=" + std::string(999, 'x') + "\xc3\xa9"),
                "no worker can run it: a: caf?; b: xxx"));
}

TEST_CASE("of many workers that refuse a job some are named, and the number of the others") {
  World w;
  w.Do("server ps-0 attaches");
  for (int i = 0; i < 20; ++i) w.Do(absl::StrCat("worker w", i, " attaches"));
  w.Do("submit min=20 max=20");
  std::string output;
  for (int i = 0; i < 20; ++i) {
    output = w.Do(absl::StrCat("worker w", i, " refuses reason=", std::string(2000, 'x')));
  }
  CHECK(HasText(output, "failed: no worker can run it: w0: xxx"));
  CHECK(HasText(output, "; and 12 more"));
  CHECK(w.Job().summary.reason.size() < 10'001);
}

TEST_CASE("jobs_that_have_ended_are_listed_page_by_page_and_the_others_on_the_newest_one") {
  World w;
  for (int i = 0; i < 4; ++i) w.Do("submit");
  w.DoLines({"cancel lm-2", "cancel lm-3", "cancel lm-4"});
  const auto names = [](const CoordinatorCore::JobPage& page) {
    std::vector<JobId> jobs;
    for (const JobSummary& job : page.jobs) jobs.push_back(job.job);
    return jobs;
  };
  const auto newest = w.core().Jobs(0, 2);
  CHECK(names(newest) == std::vector<JobId>{"lm-1", "lm-3", "lm-4"});
  const auto older = w.core().Jobs(newest.before, 2);
  CHECK(names(older) == std::vector<JobId>{"lm-2"});
  CHECK(older.before == 0);
  CHECK(w.core().Jobs(0, 3).before == 0);
}

TEST_CASE("what_events_of_a_running_job_cost_does_not_grow_with_jobs_that_have_ended") {
  constexpr int kEnded = 2000;
  World w;
  w.StartJob({"ps-0"}, {"a"}, "tokens=100000000 steps=4");
  // The least of some times: now and then the World compares all that is stored.
  const auto visits = [&](const std::vector<std::string>& lines, int times = 5) {
    int64_t least = std::numeric_limits<int64_t>::max();
    for (int i = 0; i < times; ++i) {
      const int64_t before = w.core().JobVisits();
      w.DoLines(lines);
      least = std::min(least, w.core().JobVisits() - before);
    }
    return least;
  };
  const std::vector<std::string> heartbeats = {"worker a beats", "worker a beats", "wait 20"};
  const std::vector<std::string> round = {"worker a leases wanted=4", "worker a pushes",
                                          "worker a stages", "servers answer", "worker a ready"};
  const int64_t heartbeats_alone = visits(heartbeats), round_alone = visits(round);
  for (int i = 1; i <= kEnded; ++i) {
    w.DoLines({absl::StrCat("submit name=old number=", i), absl::StrCat("cancel old-", i)});
  }
  REQUIRE(w.Job(absl::StrCat("old-", kEnded)).summary.state == JobState::kCancelled);
  CHECK(visits(heartbeats) <= heartbeats_alone);
  CHECK(visits(round) <= round_alone);
  CHECK(visits({"submit name=next number=1"}) < kEnded / 10);
}

}  // namespace
}  // namespace atl::testing
