// Every request for a trace ends, with a step or with a reason.

#include "coordinator/trace_desk.h"

#include <catch2/catch.hpp>

namespace atl {
namespace {

using namespace std::chrono_literals;

// A job with one island, and users who request a step of it.
class Story {
 public:
  Story() {
    job.summary.job = "sea-1";
    job.summary.state = JobState::kRunning;
    IslandView& island = job.islands.emplace_back();
    island.record.job = "sea-1";
    island.record.worker = "w1";
    island.record.incarnation = 5;
    island.record.generation = 3;
    island.attached = true;
    island.doing = "training";
    island.progress.emplace().generation = 3;
  }

  void Asks(std::optional<IslandId> island = {}, const JobId& name = "sea-1") {
    desk.Ask(now, name, island, 30s, [this](absl::StatusOr<TracedStep> step) {
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
    auto work = desk.Advance(now, [this](const JobId& name) {
      return name == "sea-1" ? std::optional(job) : std::nullopt;
    });
    deadline = work.deadline;
    for (TraceDesk::Message& message : work.send) sent.push_back(std::move(message));
  }
  void Answers(const std::string& trouble = "", const NodeId& worker = "w1") {
    StepTraced traced{"sea-1", sent.back().message.request, trouble, {}};
    traced.trace.step = 8;
    desk.OnMessage({worker, 5, std::move(traced)});
    Turn();
  }
  std::string Error() {
    REQUIRE(errors.size() == 1);
    return errors[0];
  }

  TraceDesk desk{2};
  Instant now = Instant(1h);
  JobView job;
  std::vector<TraceDesk::Message> sent;
  Instant deadline = kNever;
  std::vector<TracedStep> steps;
  std::vector<std::string> errors;
};

TEST_CASE("A request goes to the leader, and its answer to every requester") {
  Story story;
  story.Turn();
  CHECK(story.deadline == kNever);
  story.Asks();
  REQUIRE(story.sent.size() == 1);
  CHECK(story.sent[0].worker == "w1");
  CHECK(story.sent[0].incarnation == 5);
  CHECK(story.sent[0].message.generation == 3);
  CHECK(story.sent[0].message.request > int64_t{2} << 32);
  CHECK(story.deadline == story.now + kTraceLook);
  story.Asks(0);  // shares the answer
  CHECK(story.sent.size() == 1);
  story.Answers("", "w2");  // another worker
  CHECK(story.steps.empty());
  story.Answers();
  REQUIRE(story.steps.size() == 2);
  CHECK(story.steps[1].measured.step == 8);
  CHECK(story.steps[1].leader == "w1");
  CHECK(story.deadline == kNever);
  story.Answers();  // once more changes nothing
  CHECK(story.steps.size() == 2);
}

TEST_CASE("A job that does not run, or is not there, is said at once") {
  Story story;
  SECTION("no such job") {
    story.Asks({}, "see-1");
    CHECK(story.Error() == "there is no job see-1: see atoll ls");
  }
  SECTION("paused") {
    story.job.summary.state = JobState::kPaused;
    story.job.summary.reason = "paused by the user";
    story.Asks();
    CHECK(story.Error() ==
          "sea-1 is paused: paused by the user: no step is coming; atoll resume sea-1");
  }
  SECTION("done meanwhile") {
    story.Asks();
    story.job.summary.state = JobState::kDone;
    story.Turn();
    CHECK(story.Error() == "sea-1 is done: no step is coming");
  }
  SECTION("no such island") {
    story.Asks(7);
    CHECK(story.Error() == "sea-1 has no island 7; it has 0");
  }
  CHECK(story.steps.empty());
}

TEST_CASE("An island between plans is waited for, and the deadline says what it is doing") {
  Story story;
  story.job.islands[0].progress->generation = 2;  // it has not got its order yet
  story.job.islands[0].planning = "making a plan: the island begins";
  story.Asks();
  CHECK(story.sent.empty());
  SECTION("until it leads") {
    story.job.islands[0].progress->generation = 3;
    story.Turn();
    CHECK(story.sent.size() == 1);
    story.Answers();
    CHECK(story.steps.size() == 1);
  }
  SECTION("or the deadline") {
    story.now += 30s;
    story.Turn();
    CHECK(story.Error() ==
          "island 0 of sea-1 has not made a step within 30 s: it is making a plan: the island "
          "begins");
  }
}

TEST_CASE("A leader or a step that is lost ends the request") {
  Story story;
  story.Asks();
  SECTION("the leader") {
    story.job.islands[0].record.incarnation = 0;
    story.job.islands[0].record.reason = "evicted: its connection is lost";
    story.Turn();
    CHECK_THAT(story.Error(), Catch::Contains("w1, which led island 0, is unavailable: evicted"));
  }
  SECTION("the step") {
    story.Answers("the island abandoned a step: w2 is lost");
    CHECK(story.Error() == "the island abandoned a step: w2 is lost");
  }
  SECTION("the coordinator") {
    story.desk.Close("the coordinator is ending");
    CHECK(story.Error() == "the coordinator is ending");
  }
  story.Turn();
  CHECK(story.errors.size() == 1);
}

TEST_CASE("Jobs are not looked at more often than needed") {
  Story story;
  int views = 0;
  const auto advance = [&] {
    (void)story.desk.Advance(story.now, [&](const JobId&) {
      ++views;
      return std::optional(story.job);
    });
  };
  advance();
  CHECK(views == 0);  // no request waits
  story.Asks();
  story.Asks();
  for (int i = 0; i < 10; ++i) advance();
  CHECK(views == 0);
  story.now += kTraceLook;
  advance();
  CHECK(views == 1);  // both requests are of one job
}

TEST_CASE("Requests are bounded") {
  Story story;
  for (size_t i = 0; i <= kTraceRequestsMax; ++i) story.Asks();
  CHECK(story.Error() == "too many requests for traces");
  CHECK(story.sent.size() == 1);
}

}  // namespace
}  // namespace atl
