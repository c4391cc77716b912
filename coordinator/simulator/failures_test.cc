#include "coordinator/simulator/failures.h"

#include <catch2/catch.hpp>

#include "common/rng.h"
#include "coordinator/simulator/bounds.h"
#include "coordinator/simulator/schedules.h"
#include "coordinator/simulator/testing/uniform.h"

namespace atl::sim {
namespace {

using What = Failure::What;

// Two stages, two micro-batches, 1F1B, 10 ns forward and backward, 5 ns from one to the other:
// F0 0-10, 10-20; F1 15-25, B1 25-35, F1 35-45, B1 45-55; B0 40-50, 60-70.
Problem Two() {
  return MakeUniform(
      {.stages = 2, .micro_batches = 2, .forward_ns = 10, .backward_ns = 10, .latency_ns = 5});
}

FailedStep Play(const Problem& problem, const std::vector<Failure>& failures,
                const FailureRule& rule = {}) {
  const auto step = SimulateWithFailures(problem, *OneForwardOneBackward(problem), failures, rule,
                                         {.record = true});
  INFO(step.status().ToString());
  REQUIRE(step.ok());
  return *step;
}

TEST_CASE("Without a failure, or with one after the end, nothing changes") {
  const Problem problem = Two();
  const Result plain = *Simulate(problem, *OneForwardOneBackward(problem), {.record = true});
  CHECK(plain.makespan_ns == 70);
  for (const std::vector<Failure>& failures :
       {std::vector<Failure>{}, {{What::kDevice, 1, 70}}, {{What::kLink, 0, 70, 80}}}) {
    const FailedStep step = Play(problem, failures);
    CHECK(step.done);
    CHECK(step.redone.empty());
    CHECK(step.total_ns == 70);
    CHECK(step.last.operations == plain.operations);
    CHECK(step.last.messages.size() == plain.messages.size());
  }
}

TEST_CASE("A device that fails and comes back: the step is redone, and the lost work is reported") {
  const FailureRule rule{.detect_ns = 30, .restore_ns = 4};
  // Back before it was noticed: the step begins at 40 + 30 + 4.
  FailedStep step = Play(Two(), {{What::kDevice, 0, 40, 45}}, rule);
  CHECK(step.done);
  CHECK(step.total_ns == 74 + 70);
  REQUIRE(step.redone.size() == 1);
  CHECK(step.redone[0].device == 0);
  CHECK(step.redone[0].end_ns == 40);
  CHECK(step.redone[0].operations == 4);    // two F of stage 0, F and B of stage 1
  CHECK(step.redone[0].busy_ns == 40 + 5);  // and half an F of stage 1
  // Back late: at 200 + 4. A second device fails meanwhile and is back sooner.
  step = Play(Two(), {{What::kDevice, 0, 40, 200}, {What::kDevice, 1, 100, 110}}, rule);
  CHECK(step.total_ns == 204 + 70);
  CHECK(step.redone.size() == 1);
  // The second fails during the second attempt.
  step = Play(Two(), {{What::kDevice, 0, 40, 45}, {What::kDevice, 1, 100, 101}}, rule);
  CHECK(step.redone.size() == 2);
  CHECK(step.total_ns == 134 + 70);
}

TEST_CASE("A device that never comes back: the step is lost, by name") {
  const FailedStep step = Play(Two(), {{What::kDevice, 1, 20}}, {.detect_ns = 30});
  CHECK_FALSE(step.done);
  CHECK(step.total_ns == 50);
  CHECK_THAT(step.reason, Catch::Contains("device 1 fails at 20 ns and never comes back"));
  CHECK(step.failed_device == 1);
}

TEST_CASE("A link that is down delays its own messages only") {
  // The second activation leaves stage 0 at 20; the link is down from 18 to 32.
  const Problem problem = Two();
  const int link = problem.chunks[0].forward_link;
  FailedStep step = Play(problem, {{What::kLink, link, 18, 32}});
  CHECK(step.done);
  CHECK(step.redone.empty());
  CHECK(step.last.messages[1].start_ns == 32);
  CHECK(step.total_ns == 72);  // F1 37-47, B1 47-57, B0 62-72
  step = Play(problem, {{What::kLink, link, 18}});
  CHECK_FALSE(step.done);
  CHECK_THAT(step.reason, Catch::Contains("fails at 18 ns and never comes back"));
  CHECK(step.last.operations == 5);  // all but F and B of micro-batch 1 in stage 1 and its B in 0
}

TEST_CASE("A transfer that an outage would interrupt is sent again from its first byte") {
  const bool trunk = GENERATE(false, true);
  INFO("trunk " << trunk);
  Problem problem = Two();
  for (const int link : {problem.chunks[0].forward_link, problem.chunks[0].backward_link}) {
    if (trunk) problem.network.links[link].edges[0].trunks = {0};
  }
  problem.network.trunks = {{1e9, {}}};
  problem.chunks[0].forward_bytes = 8;
  const FailedStep step = Play(problem, {{What::kLink, problem.chunks[0].forward_link, 14, 20}});
  REQUIRE(step.done);
  CHECK(step.last.messages[0].arrive_ns == 20 + 8 + 5);
}

TEST_CASE("On a lane, whose link is down lets the others go first") {
  Problem problem;
  problem.network.lanes = 1;
  for (int r = 0; r < 2; ++r) {
    for (int s = 0; s < 2; ++s) {
      Chunk chunk{.device = 2 * r + s, .forward_ns = 10, .backward_ns = 10};
      if (s == 0) {
        chunk.forward_link = r;
        chunk.forward_bytes = 20;
      }
      problem.chunks.push_back(chunk);
      problem.devices.push_back({});
    }
    problem.network.links.push_back({{Edge{5, 1e9, {}, -1}}, 0});
    problem.pipelines.push_back({2 * r, 2, 1, r});
  }
  const FailedStep step = Play(problem, {{What::kLink, 0, 5, 15}});
  REQUIRE(step.done);
  CHECK(step.last.messages[0].start_ns == 30);  // replica 0, after replica 1
  CHECK(step.last.messages[1].start_ns == 10);
}

TEST_CASE("Failures that cannot be are refused") {
  const Problem problem = Two();
  const Schedule schedule = *OneForwardOneBackward(problem);
  const auto refused = [&](const Failure& failure, const std::string& why) {
    const auto step = SimulateWithFailures(problem, schedule, {failure}, {}, {});
    CHECK_THAT(std::string(step.status().message()), Catch::Contains(why));
  };
  refused({What::kDevice, 2, 1, 2}, "there is no device 2");
  refused({What::kLink, -1, 1, 2}, "there is no link -1");
  refused({What::kDevice, 0, 5, 5}, "from 5 to 5 ns is no time");
}

TEST_CASE("Any failures: never faster, nothing runs on what is down, the same again") {
  const uint64_t seed = GENERATE(range(0, 200));
  INFO("seed " << seed);
  Rng rng(seed);
  const Problem problem = MakeUniform({.stages = 2 + static_cast<int>(rng.Below(4)),
                                       .micro_batches = 1 + static_cast<int>(rng.Below(8)),
                                       .forward_ns = 1 + static_cast<Nanos>(rng.Below(30)),
                                       .backward_ns = 1 + static_cast<Nanos>(rng.Below(30)),
                                       .latency_ns = static_cast<Nanos>(rng.Below(20)),
                                       .serial_ns = static_cast<Nanos>(rng.Below(20))});
  std::vector<Failure> failures;
  for (uint64_t i = 0; i < 1 + rng.Below(5); ++i) {
    const bool device = rng.Chance(0.5);
    const size_t count = device ? problem.devices.size() : problem.network.links.size();
    const Nanos at = static_cast<Nanos>(rng.Below(400));
    failures.push_back({device ? What::kDevice : What::kLink, static_cast<int>(rng.Below(count)),
                        at, at + 1 + static_cast<Nanos>(rng.Below(200))});
  }
  const FailureRule rule{static_cast<Nanos>(rng.Below(30)), static_cast<Nanos>(rng.Below(30))};
  const FailedStep step = Play(problem, failures, rule);
  REQUIRE(step.done);
  const Nanos plain = Play(problem, {}).total_ns;
  CHECK(step.total_ns >= plain);
  CHECK(step.last.makespan_ns >= MakespanBound(problem).time_ns);
  CHECK(step.total_ns == step.last_start_ns + step.last.makespan_ns);
  CHECK(Play(problem, failures, rule).total_ns == step.total_ns);
  for (const Failure& failure : failures) {
    const Nanos at = failure.at_ns - step.last_start_ns;
    const Nanos back = failure.back_ns - step.last_start_ns;
    if (failure.what == What::kDevice) {
      const bool during = at > 0 && at < step.last.makespan_ns;
      CHECK_FALSE(during);
      continue;
    }
    for (const MessageSpan& message : step.last.messages) {
      if (message.link != failure.index) continue;
      const Nanos sent = std::max(message.sent_ns, message.start_ns + 1);
      const bool apart = sent <= at || message.start_ns >= back;
      CHECK(apart);
    }
  }
}

}  // namespace
}  // namespace atl::sim
