// Tests of what devices do while messages are in flight, and what they report of links.

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "common/event_loop.h"
#include "kernels/testing/fake_device.h"
#include "kernels/testing/gate.h"
#include "tests/island/engine_fixture.h"

namespace atl::worker {
namespace {

// Lets one message be seen only after it was polled so many times.
class LateArrivalTransport : public Wrapped {
 public:
  LateArrivalTransport(Transport& inner, MessageTag tag, int times)
      : Wrapped(inner), tag_(tag), times_(times) {}
  bool Arrived(const std::string& device, const MessageTag& tag) override {
    if (tag == tag_ && times_ > 0) {
      --times_;
      return false;
    }
    return Wrapped::Arrived(device, tag);
  }
  void Wait(const std::string& device, std::span<const MessageTag> tags,
            Instant deadline) override {
    if (times_ == 0) Wrapped::Wait(device, tags, deadline);
  }

 private:
  const MessageTag tag_;
  std::atomic<int> times_;
};

// Reports that messages took as long as on a link of this speed.
class SlowReportTransport : public Wrapped {
 public:
  SlowReportTransport(Transport& inner, double seconds_per_byte)
      : Wrapped(inner), seconds_per_byte_(seconds_per_byte) {}
  absl::Status Send(const std::string& from, const std::string& to, const MessageTag& tag,
                    Backend& backend, Stream& stream, const Tensor& payload) override {
    const int64_t bytes = payload.size() * GetElementSize(payload.dtype);
    const std::lock_guard lock(mutex_);
    sent_[{from, to}].push_back(
        {tag.gradient, bytes, static_cast<double>(bytes) * seconds_per_byte_});
    return Wrapped::Send(from, to, tag, backend, stream, payload);
  }
  std::vector<Transfer> TakeTransfers(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(mutex_);
    return std::exchange(sent_[{from, to}], {});
  }

 private:
  const double seconds_per_byte_;
  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::vector<Transfer>> sent_;
};

// Two stages, the first of which does all F, all B, all W.
IslandPlan WeightsLast() {
  IslandPlan plan = Plan({3, 3}, 1);
  std::vector<PlanOp> order;
  for (const PlanOpKind kind :
       {PlanOpKind::kForward, PlanOpKind::kInputGradient, PlanOpKind::kWeightGradient}) {
    for (int32_t m = 0; m < 4; ++m) order.push_back({.kind = kind, .micro_batch = m});
  }
  plan.programs[0] = CompleteProgram(plan, "w1/0", order);
  return plan;
}

MessageTag MakeGradientTag(int32_t micro_batch) {
  MessageTag tag;
  tag.step = 1;
  tag.stage = 0;
  tag.micro_batch = micro_batch;
  tag.gradient = true;
  return tag;
}

TEST_CASE("while a gradient is on its way, pending W are done, and the result is the same") {
  const IslandPlan plan = WeightsLast();
  TestIsland punctual(Job(), plan, {});
  Begin(punctual);
  const double loss = Train(punctual, 0);

  LocalTransport queue(1 << 20);
  LateArrivalTransport transport(queue, MakeGradientTag(3), 5);
  TestIsland island(Job(), plan, {}, &transport);
  Begin(island);
  const auto outcome = island.Step(Batch(0), kLearningRate);
  REQUIRE(outcome.status().message() == "");
  REQUIRE(outcome->loss.mean() == loss);
  REQUIRE(State(island) == State(punctual));

  // In the program no W comes before the last B; here at least one layer's did for every time that
  // the gradient was not there, in the order of micro-batches.
  const auto is = [](const OpSpan& span, PlanOpKind kind, int32_t m) {
    return span.op.kind == kind && span.op.micro_batch == m;
  };
  std::vector<int32_t> early;
  for (const OpSpan& span : outcome->devices[0].spans) {
    if (is(span, PlanOpKind::kInputGradient, 3)) break;
    if (span.op.kind == PlanOpKind::kWeightGradient) early.push_back(span.op.micro_batch);
  }
  REQUIRE(early.size() >= 4);
  REQUIRE(std::is_sorted(early.begin(), early.end()));
}

// The last gradient is late, and the device itself stalls since it got the one before, until it was
// polled often for the late one. That happens when there is nothing else to do.
class StallingTransport : public Wrapped {
 public:
  explicit StallingTransport(Transport& inner) : Wrapped(inner) { moves_.Close(); }
  absl::Status Receive(const std::string& device, const MessageTag& tag, Backend& backend,
                       Stream& stream, const Tensor& into, Instant deadline) override {
    ATOLL_RETURN_IF_ERROR(Wrapped::Receive(device, tag, backend, stream, into, deadline));
    if (tag == MakeGradientTag(2))
      testing::EnqueueOnFake(backend, stream, [this] { moves_.Pass(); });
    return absl::OkStatus();
  }
  bool Arrived(const std::string& device, const MessageTag& tag) override {
    if (tag != MakeGradientTag(3)) return Wrapped::Arrived(device, tag);
    if (--calls_left_ == 0) {
      moved = SteadyNow();
      moves_.Open();
    }
    return idle_ && Wrapped::Arrived(device, tag);
  }
  void Wait(const std::string& device, std::span<const MessageTag> tags,
            Instant deadline) override {
    if (tags[0] != MakeGradientTag(3)) return Wrapped::Wait(device, tags, deadline);
    if (deadline > SteadyNow() + std::chrono::seconds(10))
      idle_ = true;  // it waits for nothing else
  }

  Instant moved{};

 private:
  int calls_left_ = 500;
  bool idle_ = false;
  testing::Gate moves_;
};

TEST_CASE("a device that runs behind its host is given W only when it has nothing else") {
  const IslandPlan plan = WeightsLast();
  TestIsland punctual(Job(), plan, {});
  Begin(punctual);
  const double loss = Train(punctual, 0);
  LocalTransport queue(1 << 20);
  StallingTransport transport(queue);
  TestIsland island(Job(), plan, {}, &transport, NewFakeDevice);
  Begin(island);
  const auto outcome = island.Step(Batch(0), kLearningRate);
  REQUIRE(outcome.status().message() == "");
  REQUIRE(outcome->loss.mean() == loss);
  REQUIRE(State(island) == State(punctual));
  int weights = 0;     // before the last B
  bool stood = false;  // from the B before
  for (const OpSpan& span : outcome->devices[0].spans) {
    if (span.op.kind == PlanOpKind::kInputGradient && span.op.micro_batch == 3) break;
    stood = stood || (span.op.kind == PlanOpKind::kInputGradient && span.op.micro_batch == 2);
    if (span.op.kind != PlanOpKind::kWeightGradient) continue;
    ++weights;
    if (stood) REQUIRE(span.start > transport.moved);
  }
  REQUIRE(weights == 3 * 3);  // of three layers and micro-batches
}

TEST_CASE("the adapter cuts what a slow link carries, says why, and the curve stays") {
  EngineJob job = Job();
  job.max_chunks = 8;
  EngineOptions options;
  options.emulation.duration = [](const std::string&, LayerKind, PlanOpKind, int64_t rows) {
    return std::chrono::microseconds(300) * rows;
  };
  const IslandPlan plan = Plan({3, 3}, 1);
  const double message_bytes = 2 * 8 * 16 * 4;
  LocalTransport queue(1 << 20);
  SlowReportTransport transport(queue,
                                1.8e-3 / message_bytes);  // as long as the F of a micro-batch
  TestIsland island(job, plan, options, &transport);
  TestDevice alone(Job());
  Begin(island);
  alone.Set(RandomWeights(Job().model, 5));

  std::vector<StageLinkState> stage_links;
  for (int s = 0; s < 40 && (s < 5 || stage_links[0].chunks == 1); ++s) {
    const auto outcome = island.Step(Batch(s), kLearningRate);
    REQUIRE(outcome.status().message() == "");
    REQUIRE(outcome->loss.mean() ==
            Approx(alone.Step(Batch(s), kLearningRate).mean()).epsilon(1e-5));
    REQUIRE(outcome->plan_wanted == "");
    stage_links = outcome->stage_links;
  }
  REQUIRE(stage_links.size() == 2);  // activations one way, gradients the other
  REQUIRE(stage_links[0].from == "w1/0");
  REQUIRE(stage_links[0].to == "w1/1");
  REQUIRE(stage_links[0].chunks == 2);  // a micro-batch has two sequences
  REQUIRE(stage_links[0].reason.find("2 chunks in fill and drain (1 before)") == 0);
  for (int s = 40; s < 43; ++s) {  // in chunks
    const double loss = alone.Step(Batch(s), kLearningRate).mean();
    REQUIRE(Train(island, s) == Approx(loss).epsilon(1e-5));
  }
}

TEST_CASE("a saturated line causes a replan request") {
  EngineOptions options;
  options.emulation.duration = [](const std::string&, LayerKind, PlanOpKind, int64_t rows) {
    return std::chrono::microseconds(50) * rows;
  };
  LocalTransport queue(1 << 20);
  SlowReportTransport transport(queue, 1.0 / 1024);  // a second a message
  TestIsland island(Job(), Plan({3, 3}, 1), options, &transport);
  Begin(island);
  std::string wanted;
  for (int s = 0; s < 40 && wanted.empty(); ++s) {
    const auto outcome = island.Step(Batch(s), kLearningRate);
    REQUIRE(outcome.status().message() == "");
    wanted = outcome->plan_wanted;
  }
  REQUIRE(wanted == "link w1/0 > w1/1 saturated");
}

// The device works for 5 ms on every message that it gets, long after its host has continued.
class SlowDevice : public SlowReportTransport {
 public:
  using SlowReportTransport::SlowReportTransport;
  absl::Status Receive(const std::string& device, const MessageTag& tag, Backend& backend,
                       Stream& stream, const Tensor& into, Instant deadline) override {
    ATOLL_RETURN_IF_ERROR(
        SlowReportTransport::Receive(device, tag, backend, stream, into, deadline));
    testing::EnqueueOnFake(backend, stream, [this, activation = !tag.gradient] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      if (activation) worked.push_back(SteadyNow());
    });
    return absl::OkStatus();
  }

  std::vector<Instant> worked;  // on activations: on one stream; to be read between steps
};

TEST_CASE("what a device has only been handed is neither its work nor saturates a link") {
  const double message_bytes = 2 * 8 * 16 * 4;
  LocalTransport queue(1 << 20);
  SlowDevice transport(queue, 1e-3 / message_bytes);
  TestIsland island(Job(), Plan({3, 3}, 1), {}, &transport, NewFakeDevice);
  Begin(island);
  bool measured = false;
  for (int s = 0; s < 20; ++s) {  // more than two windows of messages
    transport.worked.clear();
    const auto outcome = island.Step(Batch(s), kLearningRate);
    REQUIRE(outcome.status().message() == "");
    REQUIRE(outcome->plan_wanted == "");
    measured = measured || outcome->stage_links[0].message_seconds > 0;
    const DeviceStep& second = outcome->devices[1];
    REQUIRE(second.timed == (s % 16 == 1));
    if (!second.timed) continue;
    size_t forwards = 0;
    for (const OpSpan& span : second.spans) {
      if (span.op.kind == PlanOpKind::kForward)
        REQUIRE(span.end >= transport.worked.at(forwards++));
    }
    REQUIRE(forwards == 4);
  }
  REQUIRE(measured);
}

}  // namespace
}  // namespace atl::worker
