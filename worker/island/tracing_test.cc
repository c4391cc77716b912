// Clocks are aligned, and members' parts of a step become one trace.

#include "worker/island/tracing.h"

#include <catch2/catch.hpp>

#include "worker/island/control/clocks.h"

namespace atl::worker {
namespace {

using namespace std::chrono_literals;

// The other clock is `ahead`; the question takes `there`, the answer `back`.
ClockSample MakeSample(int64_t at, int64_t ahead, int64_t there, int64_t back) {
  return {at, at + there + ahead, at + there + back};
}

TEST_CASE("the difference of two clocks is known to within half a round trip") {
  for (const int64_t ahead : {int64_t{0}, int64_t{-7'000'000'000'000}, int64_t{123'456'789}}) {
    const ClockSample even[] = {MakeSample(1000, ahead, 50, 50)};
    CHECK(EstimateOffset(even).ahead_ns == ahead);
    CHECK(EstimateOffset(even).uncertainty_ns == 50);
    // The directions differ, and each sample is late in another one: together they leave 10 either
    // side of 20, however long each took.
    const ClockSample unlike[] = {MakeSample(1000, ahead, 10, 900),
                                  MakeSample(9000, ahead, 800, 10),
                                  MakeSample(20'000, ahead, 300, 300)};
    CHECK(std::abs(EstimateOffset(unlike).ahead_ns - ahead) <= 10);
    CHECK(EstimateOffset(unlike).uncertainty_ns == 10);
  }
}

TEST_CASE("a clock that was set between two questions is not trusted") {
  const ClockSample samples[] = {MakeSample(1000, 0, 50, 50), MakeSample(5000, 1000, 50, 50)};
  const ClockOffset clock = EstimateOffset(samples);
  CHECK(clock.ahead_ns - clock.uncertainty_ns <= 0);
  CHECK(clock.ahead_ns + clock.uncertainty_ns >= 1000);
}

Instant At(int64_t ns) { return Instant(Duration(ns)); }

OpSpan Span(PlanOpKind kind, int32_t stage, int32_t m, int64_t start, int64_t end) {
  return {{.kind = kind, .stage = stage, .micro_batch = m}, At(start), At(end)};
}

// A device that does F and B and has an all-reduce, from `begun` on.
DeviceStep Step(const std::string& device, int32_t stage, int64_t begun) {
  DeviceStep step;
  step.device = device;
  step.begun = At(begun);
  step.worked = At(begun + 60);
  step.summed = At(begun + 70);
  step.committed = At(begun + 75);
  step.ended = At(begun + 80);
  step.spans = {Span(PlanOpKind::kForward, stage, 0, begun + 10, begun + 30),
                Span(PlanOpKind::kInputGradient, stage, 0, begun + 30, begun + 60),
                Span(PlanOpKind::kOptimizer, stage, 0, begun + 75, begun + 80)};
  step.sync_spans = {{{.kind = PlanOpKind::kSync, .layer = 3}, At(begun + 55), At(begun + 70)}};
  return step;
}

SentMessage Sent(const std::string& from, const std::string& to, int64_t ready, bool there = true) {
  SentMessage sent{from, to, {}, 64, At(ready), At(ready + 2), At(ready + 9), there};
  sent.tag.stage = 1;
  return sent;
}

TEST_CASE("parts of several workers become one trace on the leader's clock") {
  StepOutcome w1, w2;
  w1.devices = {Step("w1/0", 0, 1'000'100)};
  w2.devices = {Step("w2/1", 2, 77'000'900), Step("w2/0", 1, 77'000'500)};
  const MemberTrace leader =
      TraceOfMember(w1, {Sent("w1/0", "w2/0", 1'000'130), Sent("w1/0", "w2/0", 1, false)});
  StepTrace trace;
  Merge(leader, {}, 1'000'000, &trace);
  GroupReply reply;
  SetTrace(TraceOfMember(w2, {}), &reply);
  const auto follower = ReadTrace("w2", reply);
  REQUIRE(follower.ok());
  Merge(*follower, {76'000'000, 5}, 1'000'000, &trace);
  IslandPlan plan;
  plan.replicas = {{{{0, 2, {"w1/0"}, {}}, {2, 2, {"w2/0"}, {}}, {4, 1, {"w2/1"}, {}}}, 1, 1}};
  Arrange(plan, &trace);

  REQUIRE(trace.devices.size() == 3);
  CHECK(trace.devices[0].device == "w1/0");
  CHECK(trace.devices[0].begin_ns == 100);
  CHECK(trace.devices[1].device == "w2/0");
  CHECK(trace.devices[1].begin_ns == 500);
  CHECK(trace.devices[2].device == "w2/1");
  CHECK(trace.devices[2].end_ns == 980);
  CHECK(trace.stages.size() == 3);
  CHECK(trace.left_out == 1);  // its arrival is not known
  REQUIRE(trace.messages.size() == 1);
  CHECK(trace.messages[0].ready_ns == 130);
  CHECK(trace.messages[0].arrive_ns == 139);

  std::map<TraceKind, TraceSpan> spans;
  for (const TraceSpan& span : trace.devices[1].spans) spans[span.kind] = span;
  CHECK(spans.at(TraceKind::kForward).start_ns == 510);
  CHECK(spans.at(TraceKind::kInputGradient).stage == 1);
  CHECK(spans.at(TraceKind::kSync).layer == 3);
  CHECK(spans.at(TraceKind::kSyncWait).start_ns == 560);
  CHECK(spans.at(TraceKind::kSyncWait).end_ns == 570);
  CHECK(spans.at(TraceKind::kCommit).end_ns == 575);
  CHECK(spans.at(TraceKind::kOptimizer).end_ns == 580);
}

TEST_CASE("a member's part is bounded, and says how much is missing") {
  StepOutcome outcome;
  DeviceStep step = Step("w1/0", 0, 5);
  for (int32_t m = 0; m < 80'000; ++m) {
    step.spans.push_back(Span(PlanOpKind::kForward, 0, m, 100 + m, 101 + m));
  }
  outcome.devices = {step};
  const MemberTrace member = TraceOfMember(outcome, {});
  CHECK(member.trace.devices[0].spans.size() == kMemberEntriesMax);
  CHECK(member.trace.left_out + kMemberEntriesMax == 80'006);
  GroupReply reply;
  SetTrace(TraceOfMember(outcome, {}, 80'006), &reply);  // more than a frame holds
  CHECK(std::ssize(Serialize({.body = reply})) < kFrameBytesMax);
  const auto cut = ReadTrace("w1", reply);
  REQUIRE(cut.ok());
  CHECK(cut->trace.left_out > 0);
}

TEST_CASE("a member speaks of its own devices alone, and within limits") {
  StepOutcome outcome;
  outcome.devices = {Step("w1/0", 0, 5)};
  GroupReply reply;
  SetTrace(TraceOfMember(outcome, {}), &reply);
  CHECK(ReadTrace("w2", reply).status().message() == "w2 reports w1/0, which is not its device");
  GroupReply message = reply;
  TraceMessage& sent = message.trace->messages.emplace_back();
  sent.from = "w3/0";
  sent.to = "w1/0";
  CHECK(ReadTrace("w1", message).status().message() == "w1 reports a message from w3/0");
  GroupReply backwards = reply;
  backwards.trace->devices[0].spans[0].start_ns = 1 << 20;
  CHECK(!ParseGroupFrame(Serialize({.body = backwards})).ok());
}

TEST_CASE("messages are kept of the recorded step alone, until they have arrived") {
  MessageLog log;
  SentMessage sent{"w1/0", "w2/0", {}, 8, At(10), {}, {}};
  sent.tag.step = 7;
  CHECK(!log.records(7));
  log.Record(7);
  REQUIRE(log.records(7));
  const size_t first = log.OnSent(sent);
  const size_t second = log.OnSent(sent);
  log.OnArrived(7, second, At(12), At(20));
  log.OnArrived(6, first, At(12), At(20));  // of another step
  const auto taken = log.Take(Instant());
  REQUIRE(taken.size() == 2);
  CHECK(!taken[0].there);
  CHECK(taken[1].arrived == At(20));
  CHECK(!log.records(7));
  log.OnArrived(7, first, At(12), At(20));  // too late, and harmless
  CHECK(log.Take(Instant()).empty());
}

TEST_CASE("a request for a step is answered once") {
  std::vector<StepTraced> answers;
  StepTracer tracer([&](StepTraced answer) { answers.push_back(std::move(answer)); });
  CHECK(!tracer.wanted());
  tracer.Answer(absl::AbortedError("no request"));
  tracer.Request({"sea-1", 0, 1, 41});
  tracer.Request({"sea-1", 0, 1, 42});  // replaces it
  CHECK(tracer.wanted());
  tracer.Answer(absl::AbortedError("w2 is lost"));
  CHECK(!tracer.wanted());
  tracer.Answer(StepTrace());
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].request == 42);
  CHECK(answers[0].trouble == "w2 is lost");
}

}  // namespace
}  // namespace atl::worker
