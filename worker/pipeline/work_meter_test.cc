#include "worker/pipeline/work_meter.h"

#include <catch2/catch.hpp>

namespace atl::worker {
namespace {

using std::chrono::milliseconds;

constexpr int32_t kLayers = 6;

// Layers 0 to 3 of six on one of `ranks` devices, three micro-batches of two sequences.
DeviceRole Role(int32_t ranks = 1) {
  IslandPlan plan;
  plan.number = 1;
  PlanStage first{0, 4, {}, {2, 3}}, second{4, 2, {}, {}};
  for (int32_t rank = 0; rank < ranks; ++rank) {
    first.devices.push_back("w1/" + std::to_string(rank));
    second.devices.push_back("w2/" + std::to_string(rank));
  }
  plan.replicas = {{{first, second}, 2, 3}};
  return MakeDeviceRole(plan, "w1/0", kLayers, TiedTable::kNone);
}

struct Fixture {
  explicit Fixture(const DeviceRole& role = Role())
      : meter(role, kLayers, [this] { return ++windows; }) {}

  // A step that waits, computes F for so long, and B and W as long.
  void Steps(int forward_ms, int lasts_ms = 100, bool timed = true) {
    DeviceStep step;
    step.device = "w1/0";
    step.timed = timed;
    step.begun = now;
    const auto spends = [&](PlanOpKind kind, int ms) {
      step.spans.push_back({{kind, 0, 0}, now, now + milliseconds(ms)});
      now += milliseconds(ms);
    };
    spends(PlanOpKind::kReceive, 40);
    spends(PlanOpKind::kForward, forward_ms);
    spends(PlanOpKind::kInputGradient, forward_ms / 2);
    spends(PlanOpKind::kWeightGradient, forward_ms / 2);
    spends(PlanOpKind::kOptimizer, 3);
    now = step.begun + milliseconds(lasts_ms);
    step.ended = now;
    meter.Add({step});
  }

  int64_t windows = 0;
  Instant now{};
  WorkMeter meter;
};

TEST_CASE("twenty steps are a window, and the one in the middle counts") {
  Fixture fixture;
  for (int i = 0; i < 19; ++i) fixture.Steps(i % 3 == 0 ? 50 : 10);
  CHECK(fixture.meter.work().window == 0);
  fixture.Steps(10);
  const DeviceWork& work = fixture.meter.work();
  CHECK(work.window == 1);
  CHECK(work.device == "w1/0");
  CHECK(work.forward_seconds == Approx(0.010));
  CHECK(work.backward_seconds == Approx(0.010));
  CHECK(work.micro_batch_sequences == 2);
  CHECK(work.embeddings == 3);
  CHECK(work.blocks == 9);
  CHECK(work.recomputed_blocks == 6);
  CHECK(work.heads == 0);
  for (int i = 0; i < 20; ++i) fixture.Steps(30);
  CHECK(work.window == 2);
  CHECK(work.forward_seconds == Approx(0.030));
}

TEST_CASE("long steps end a window after ten seconds, three at least") {
  Fixture fixture;
  for (int i = 0; i < 2; ++i) fixture.Steps(10, 9000);
  CHECK(fixture.windows == 0);
  fixture.Steps(10, 9000);
  CHECK(fixture.windows == 1);
}

TEST_CASE("steps without a time from the host's clock are not reported") {
  Fixture behind;
  for (int i = 0; i < 40; ++i) behind.Steps(10, 100, i % 16 == 0);
  CHECK(behind.windows == 0);
}

// A step of a device that computes for so long and is in its group's all-reduces for so long, in F
// and, as long, in B and W.
DeviceStep Shared(const std::string& device, int computes_ms, int all_reduce_ms) {
  DeviceStep step;
  step.device = device;
  step.timed = true;
  for (const PlanOpKind kind : {PlanOpKind::kForward, PlanOpKind::kInputGradient}) {
    OpSpan span{{kind, 0, 0}, Instant{}, Instant{} + milliseconds(computes_ms + all_reduce_ms)};
    span.in_group = milliseconds(all_reduce_ms);
    step.spans.push_back(span);
  }
  return step;
}

TEST_CASE("in a tensor-parallel group each device's time is without waiting for the others") {
  Fixture slow(Role(2)), quick(Role(2)), alone(Role(2));
  for (int i = 0; i < 20; ++i) {
    slow.meter.Add({Shared("w1/0", 30, 2), Shared("w1/1", 10, 22)});
    quick.meter.Add({Shared("w1/1", 30, 2), Shared("w1/0", 10, 22)});
    alone.meter.Add({Shared("w1/0", 30, 2), Shared("w2/0", 10, 22)});  // the other is elsewhere
  }
  CHECK(slow.meter.work().tensor_parallel == 2);
  CHECK(slow.meter.work().forward_seconds == Approx(0.032));
  CHECK(slow.meter.work().backward_seconds == Approx(0.032));
  CHECK(quick.meter.work().forward_seconds == Approx(0.012));
  CHECK(quick.meter.work().backward_seconds == Approx(0.012));
  CHECK(alone.windows == 0);
}

}  // namespace
}  // namespace atl::worker
