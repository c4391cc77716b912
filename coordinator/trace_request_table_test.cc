// Every request for a trace ends, with a step or with a reason.

#include "coordinator/trace_request_table.h"

#include <catch2/catch.hpp>

namespace atl {
namespace {

using namespace std::chrono_literals;

// A job with one island, and users who request a step of it.
class Fixture {
 public:
  Fixture() {
    job.summary.job = "sea-1";
    job.summary.state = JobState::kRunning;
    IslandView& island = job.islands.emplace_back();
    island.worker = "w1";
    island.incarnation = 5;
    island.generation = 3;
    island.attached = true;
    island.activity = "training";
    island.progress.emplace().generation = 3;
  }

  void QueryTrace(std::optional<IslandId> island = {}, const JobId& name = "sea-1") {
    table.Query(now, name, island, 30s, [this](absl::StatusOr<TracedStep> step) {
      if (step.ok()) {
        steps.push_back(*std::move(step));
      } else {
        errors.emplace_back(step.status().message());
      }
    });
    Turn();
  }
  void Turn() {
    now += kTraceLook;
    auto work = table.Advance(now, [this](const JobId& name) {
      return name == "sea-1" ? std::optional(job) : std::nullopt;
    });
    deadline = work.deadline;
    for (TraceRequestTable::Message& message : work.send) sent.push_back(std::move(message));
  }
  void Answers(const std::string& trouble = "", const NodeId& worker = "w1") {
    StepTraced traced{"sea-1", sent.back().message.request, trouble, {}};
    traced.trace.step = 8;
    table.OnMessage({worker, 5, std::move(traced)});
    Turn();
  }
  std::string Error() {
    REQUIRE(errors.size() == 1);
    return errors[0];
  }

  TraceRequestTable table{2};
  Instant now = Instant(1h);
  JobView job;
  std::vector<TraceRequestTable::Message> sent;
  Instant deadline = kNever;
  std::vector<TracedStep> steps;
  std::vector<std::string> errors;
};

TEST_CASE("A request goes to the leader, and its answer to every requester") {
  Fixture fixture;
  fixture.Turn();
  CHECK(fixture.deadline == kNever);
  fixture.QueryTrace();
  REQUIRE(fixture.sent.size() == 1);
  CHECK(fixture.sent[0].worker == "w1");
  CHECK(fixture.sent[0].incarnation == 5);
  CHECK(fixture.sent[0].message.generation == 3);
  CHECK(fixture.sent[0].message.request > int64_t{2} << 32);
  CHECK(fixture.deadline == fixture.now + kTraceLook);
  fixture.QueryTrace(0);  // shares the answer
  CHECK(fixture.sent.size() == 1);
  fixture.Answers("", "w2");  // another worker
  CHECK(fixture.steps.empty());
  fixture.Answers();
  REQUIRE(fixture.steps.size() == 2);
  CHECK(fixture.steps[1].measured.step == 8);
  CHECK(fixture.steps[1].leader == "w1");
  CHECK(fixture.deadline == kNever);
  fixture.Answers();  // once more changes nothing
  CHECK(fixture.steps.size() == 2);
}

TEST_CASE("A job that does not run, or is not there, is said at once") {
  Fixture fixture;
  SECTION("no such job") {
    fixture.QueryTrace({}, "see-1");
    CHECK(fixture.Error() == "there is no job see-1: see atoll ls");
  }
  SECTION("paused") {
    fixture.job.summary.state = JobState::kPaused;
    fixture.job.summary.reason = "paused by the user";
    fixture.QueryTrace();
    CHECK(fixture.Error() ==
          "sea-1 is paused: paused by the user: no step is coming; atoll resume sea-1");
  }
  SECTION("done meanwhile") {
    fixture.QueryTrace();
    fixture.job.summary.state = JobState::kDone;
    fixture.Turn();
    CHECK(fixture.Error() == "sea-1 is done: no step is coming");
  }
  SECTION("no such island") {
    fixture.QueryTrace(7);
    CHECK(fixture.Error() == "sea-1 has no island 7; it has 0");
  }
  CHECK(fixture.steps.empty());
}

TEST_CASE("An island between plans is waited for, and the deadline says what it is doing") {
  Fixture fixture;
  fixture.job.islands[0].progress->generation = 2;  // it has not got its order yet
  fixture.job.islands[0].planning = "making a plan: the island begins";
  fixture.QueryTrace();
  CHECK(fixture.sent.empty());
  SECTION("until it leads") {
    fixture.job.islands[0].progress->generation = 3;
    fixture.Turn();
    CHECK(fixture.sent.size() == 1);
    fixture.Answers();
    CHECK(fixture.steps.size() == 1);
  }
  SECTION("or the deadline") {
    fixture.now += 30s;
    fixture.Turn();
    CHECK(fixture.Error() ==
          "island 0 of sea-1 has not made a step within 30 s: it is making a plan: the island "
          "begins");
  }
}

TEST_CASE("A leader or a step that is lost ends the request") {
  Fixture fixture;
  fixture.QueryTrace();
  SECTION("the leader") {
    fixture.job.islands[0].incarnation = 0;
    fixture.job.islands[0].reason = "evicted: its connection is lost";
    fixture.Turn();
    CHECK_THAT(fixture.Error(), Catch::Contains("w1, which led island 0, is unavailable: evicted"));
  }
  SECTION("the step") {
    fixture.Answers("the island abandoned a step: w2 is lost");
    CHECK(fixture.Error() == "the island abandoned a step: w2 is lost");
  }
  SECTION("the coordinator") {
    fixture.table.Close("the coordinator is ending");
    CHECK(fixture.Error() == "the coordinator is ending");
  }
  fixture.Turn();
  CHECK(fixture.errors.size() == 1);
}

TEST_CASE("Jobs are not looked at more often than needed") {
  Fixture fixture;
  int views = 0;
  const auto advance = [&] {
    (void)fixture.table.Advance(fixture.now, [&](const JobId&) {
      ++views;
      return std::optional(fixture.job);
    });
  };
  advance();
  CHECK(views == 0);  // no request waits
  fixture.QueryTrace();
  fixture.QueryTrace();
  for (int i = 0; i < 10; ++i) advance();
  CHECK(views == 0);
  fixture.now += kTraceLook;
  advance();
  CHECK(views == 1);  // both requests are of one job
}

TEST_CASE("Requests are bounded") {
  Fixture fixture;
  for (size_t i = 0; i <= kTraceRequestsMax; ++i) fixture.QueryTrace();
  CHECK(fixture.Error() == "too many requests for traces");
  CHECK(fixture.sent.size() == 1);
}

}  // namespace
}  // namespace atl
