// A recorded step and its prediction as a person reads them.

#include "cli/text/trace_text.h"

#include <catch2/catch.hpp>

#include "common/protocol/wire.h"

namespace atl::cli {
namespace {

constexpr int64_t kMs = 1'000'000;

TraceSpan Span(TraceKind kind, int32_t stage, int32_t m, int64_t start_ms, int64_t end_ms) {
  TraceSpan span;
  span.kind = kind;
  span.stage = stage;
  span.micro_batch = m;
  span.start_ns = start_ms * kMs;
  span.end_ns = end_ms * kMs;
  return span;
}

TraceMessage Sent(bool gradient, int64_t start_ms, int64_t takes_ms) {
  TraceMessage message;
  message.from = gradient ? "w2/0" : "w1/0";
  message.to = gradient ? "w1/0" : "w2/0";
  message.stage = gradient ? 0 : 1;
  message.gradient = gradient;
  message.bytes = 1'000'000;
  message.ready_ns = message.start_ns = start_ms * kMs;
  message.arrive_ns = (start_ms + takes_ms) * kMs;
  return message;
}

// One micro-batch through two stages: F takes 10, B and W 10 each, messages as long as is said.
// The step ends when w1 has done its optimizer step.
StepTrace Step(int64_t message_ms, int64_t late_ms = 0, int64_t f1_ms = 10) {
  StepTrace trace;
  trace.plan_number = 3;
  trace.step = 8;
  trace.sequences = 4;
  trace.stages = {{0, 0, 0, 3, {"w1/0"}}, {0, 1, 3, 3, {"w2/0"}}};
  const int64_t sent = late_ms + f1_ms, f2 = sent + message_ms, b2 = f2 + 10, back = b2 + 10;
  const int64_t b1 = back + message_ms;
  const int64_t end = b1 + 21;
  trace.devices = {
      {"w1/0",
       late_ms * kMs,
       end * kMs,
       {Span(TraceKind::kForward, 0, 0, late_ms, sent), Span(TraceKind::kWait, 0, 0, sent, b1),
        Span(TraceKind::kInputGradient, 0, 0, b1, b1 + 10),
        Span(TraceKind::kWeightGradient, 0, 0, b1 + 10, b1 + 20),
        Span(TraceKind::kOptimizer, 0, 0, b1 + 20, end)}},
      {"w2/0",
       0,
       (back + 11) * kMs,
       {Span(TraceKind::kWait, 1, 0, 0, f2), Span(TraceKind::kForward, 1, 0, f2, b2),
        Span(TraceKind::kInputGradient, 1, 0, b2, back),
        Span(TraceKind::kWeightGradient, 1, 0, back, back + 10),
        Span(TraceKind::kOptimizer, 1, 0, back + 10, back + 11)}}};
  trace.devices[0].spans[1].gradient = true;
  trace.messages = {Sent(false, sent, message_ms), Sent(true, back, message_ms)};
  trace.step_ns = end * kMs;
  return trace;
}

StepTrace Planned() {
  StepTrace trace = Step(100);
  trace.links = {{"w1", "w2", 20 * kMs, 12.5e6}, {"w2", "w1", 20 * kMs, 12.5e6}};
  trace.about = "layer times measured";
  return trace;
}

TEST_CASE("a device's step is shared out among its parts, without a rest") {
  const StepTrace step = Step(40);  // 10 + 40 + 20 + 40 + 21 = 131 ms
  const PartTimes times = ComputePartTimes(step, step.devices[0], false);
  CHECK(times.of(StepPart::kForward) == 10 * kMs);
  CHECK(times.of(StepPart::kBackward) == 10 * kMs);
  CHECK(times.of(StepPart::kWeights) == 10 * kMs);
  CHECK(times.of(StepPart::kWait) == 100 * kMs);
  CHECK(times.of(StepPart::kOptimizer) == 1 * kMs);
  CHECK(times.of(StepPart::kOther) == 0);
  CHECK(times.bubble() == Approx(100.0 / 131));
  const PartTimes second = ComputePartTimes(step, step.devices[1], true);
  CHECK(second.of(StepPart::kBackward) == 20 * kMs);  // and W
  CHECK(second.of(StepPart::kWeights) == 0);
  CHECK(second.of(StepPart::kCommit) == (131 - 81) * kMs);  // until the other one is done
  int64_t all = 0;
  for (const int64_t ns : second.ns) all += ns;
  CHECK(all == step.step_ns);
}

TEST_CASE("W that fill a wait are not waiting") {
  StepTrace step = Step(40);
  TraceDevice& device = step.devices[0];
  device.spans.push_back(Span(TraceKind::kWeightGradient, 0, 1, 30, 60));
  CHECK(ComputePartTimes(step, device, false).of(StepPart::kWait) == 70 * kMs);
  CHECK(ComputePartTimes(step, device, false).of(StepPart::kOther) == 0);
}

std::string First(const StepTrace& measured) {
  const auto lines = Differences(Planned(), measured, 3);
  REQUIRE(!lines.empty());
  return lines[0];
}

TEST_CASE("a slow link is distinguished from a slow sender") {
  // 1 MB takes 20 ms and 80: 100 Mbit/s. With 149 ms it gets 62.
  CHECK(First(Step(149)) ==
        "w1/0 waits 98.00 ms longer for gradients from w2/0: messages take 149 ms, planned 100 ms "
        "(62 Mbit/s over w2 > w1, planned 100)");
  CHECK(First(Step(100, 0, 70)) ==
        "w1/0 computes F 60.00 ms longer: 70 ms a micro-batch, planned 10 ms");
  const auto lines = Differences(Planned(), Step(100, 0, 70), 3);
  REQUIRE(lines.size() == 2);
  CHECK(lines[1] ==
        "w2/0 waits 60.00 ms longer for activations from w1/0: they are made 60 ms later than "
        "planned");
}

TEST_CASE("a slower link does not explain a shorter wait") {
  StepTrace planned = Planned();  // F of w1 took long
  planned.devices[1].spans[0].start_ns = -300 * kMs;
  const auto lines = Differences(planned, Step(149), 3);
  REQUIRE(lines.size() == 3);
  CHECK(lines[1] ==
        "w2/0 waits 251.00 ms shorter for activations from w1/0: nothing that was measured of them "
        "explains it");
}

TEST_CASE("messages that wait for their link are marked") {
  StepTrace measured = Step(100, 0, 70);
  for (TraceMessage& message : measured.messages) message.ready_ns -= 50 * kMs;
  CHECK_THAT(Differences(Planned(), measured, 3)[1],
             Catch::Contains("messages wait 50 ms for the link before they leave, planned 0"));
}

TEST_CASE("faster, late and long operations are listed, small differences are not") {
  CHECK_THAT(First(Step(40)), Catch::Contains("waits 120.00 ms shorter for gradients"));
  CHECK_THAT(First(Step(100, 30)), Catch::Contains("waits 30.00 ms longer for activations") ||
                                       Catch::Contains("it began 30.00 ms after"));
  StepTrace waits = Planned();
  TraceSpan commit = Span(TraceKind::kCommit, 0, 0, 251, 291);
  waits.devices[0].spans.push_back(commit);
  waits.devices[0].end_ns = waits.step_ns = 291 * kMs;
  CHECK_THAT(First(waits),
             Catch::Contains("waits 40.00 ms longer for the exchange that commits the step"));
  CHECK(Differences(Planned(), Planned(), 3).empty());
}

TEST_CASE("the text has both steps, the table and the reasons") {
  TraceAnswer answer{"sea-1", 0, "w1", 2, Planned(), "", Step(149)};
  answer.measured.clocks = {{"w2", 123'000}};
  const std::string text = TraceText(answer);
  INFO(text);
  CHECK_THAT(text,
             Catch::Contains("sea-1, island 0 led by w1, generation 2, plan 3: step 8, 4 "
                             "sequences\n") &&
                 Catch::Contains("predicted 251.00 ms, measured 349.00 ms (+39.0%); layer times "
                                 "measured") &&
                 Catch::Contains("may be off the leader's by: w2 0.123 ms") &&
                 Catch::Contains("difference") && Catch::Contains("+98.00") &&
                 Catch::Contains("largest differences\n  w1/0 waits 98.00 ms longer"));
  answer.predicted.reset();
  answer.no_prediction = "the island has no plan";
  answer.measured.left_out = 7;
  const std::string alone = TraceText(answer);
  CHECK_THAT(alone, Catch::Contains("no prediction: the island has no plan") &&
                        Catch::Contains("7 spans or messages are missing") &&
                        !Catch::Contains("predicted") && !Catch::Contains("largest"));
}

TEST_CASE("an answer that breaks a limit is refused") {
  v1::TraceReply reply;
  REQUIRE(Encode(Step(40), reply.mutable_measured()).ok());
  reply.set_job("sea-1");
  const auto answer = ToAnswer(reply);
  REQUIRE(answer.ok());
  CHECK(answer->measured == Step(40));
  CHECK(!answer->predicted);
  reply.mutable_measured()->mutable_devices(0)->mutable_spans(0)->set_end_ns(-1);
  CHECK(!ToAnswer(reply).ok());
}

}  // namespace
}  // namespace atl::cli
