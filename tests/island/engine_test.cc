// An engine's life: interruptions, deadlines, new plans, refusals.

#include <atomic>
#include <catch2/catch.hpp>
#include <latch>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "common/event_loop.h"
#include "kernels/cpu/cpu.h"
#include "kernels/testing/fake_device.h"
#include "tests/island/island_harness.h"
#include "tests/island/layouts.h"

namespace atl::worker {
namespace {

using Catch::Contains;
using Catch::EndsWith;
using Catch::StartsWith;

// ---- vocabulary of these tests ----

constexpr double kLearningRate = 3e-3;

EngineJob Job() {
  EngineJob job;
  job.model.family = ModelFamily::kLlama;
  job.model.vocab = 31;
  job.model.d_model = 16;
  job.model.layers = 4;
  job.model.heads = job.model.kv_heads = 4;
  job.model.ffn = 24;
  job.model.max_positions = 8;
  job.model.tied_head = true;
  job.sequence_length = 8;
  job.batch_sequences = 8;
  return job;
}

IslandPlan Plan(std::vector<int32_t> stages, int workers, const std::string& schedule = "1f1b",
                int64_t number = 1) {
  IslandLayout layout;
  layout.name = "test";
  layout.schedule = schedule;
  layout.workers = workers;
  layout.replicas = {{std::move(stages), 4, 2}};
  IslandPlan plan = MakePlan(layout);
  plan.number = number;
  return plan;
}

std::vector<int32_t> Batch(int step) { return RandomTokens(Job(), 8, 40 + step); }

struct State {
  explicit State(TestIsland& island)
      : params(island.Get(LayerPart::kParameters)),
        first(island.Get(LayerPart::kFirstMoment)),
        second(island.Get(LayerPart::kSecondMoment)) {}
  bool operator==(const State&) const = default;
  Layers params, first, second;
};

void Begin(TestIsland& island) {
  island.Set(LayerPart::kParameters, RandomWeights(Job().model, 5));
}

double Train(TestIsland& island, int step) {
  const auto outcome = island.Step(Batch(step), kLearningRate);
  REQUIRE(outcome.status().message() == "");
  return outcome->loss.mean();
}

SequenceReader Reader(
    const std::vector<int32_t>& tokens, std::function<void()> then = [] {}) {
  return [tokens, then](int64_t first, std::span<int32_t> out) {
    std::copy_n(tokens.begin() + first * (Job().sequence_length + 1), out.size(), out.begin());
    then();
    return absl::OkStatus();
  };
}

// ---- interruptions ----

TEST_CASE("a step that is interrupted changes nothing, and the next one works") {
  const IslandPlan plan = Plan({2, 2, 2}, 2);
  TestIsland island(Job(), plan, {}), twin(Job(), plan, {});
  Begin(island);
  Begin(twin);
  for (int s = 0; s < 3; ++s) REQUIRE(Train(island, s) == Train(twin, s));
  const State before(island);

  // The first worker is in the middle of a step for which the second one never comes.
  std::latch begun(1);
  std::thread interrupter([&] {
    begun.wait();
    island.engine(0).Interrupt("w2 left");
  });
  const auto outcome =
      island.engine(0).Step({50, 8, kLearningRate}, Reader(Batch(3), [&] { begun.count_down(); }));
  interrupter.join();
  REQUIRE(outcome.status().code() == absl::StatusCode::kAborted);
  REQUIRE(outcome.status().message() == "w2 left");
  REQUIRE(State(island) == before);

  const auto refused = island.engine(0).Step({51, 8, kLearningRate}, Reader(Batch(3)));
  REQUIRE(refused.status().message() == "no plan is in force since: w2 left");

  REQUIRE(island.Configure(plan).ok());
  island.Skip(100);
  for (int s = 3; s < 6; ++s) REQUIRE(Train(island, s) == Train(twin, s));
  REQUIRE(State(island) == State(twin));
}

TEST_CASE("a message that does not come is named at the deadline") {
  EngineOptions options;
  options.message_timeout = std::chrono::milliseconds(30);
  TestIsland island(Job(), Plan({3, 3}, 2), options);
  Begin(island);
  const auto outcome = island.engine(1).Step({1, 8, kLearningRate}, Reader(Batch(0)));
  REQUIRE(outcome.status().code() == absl::StatusCode::kDeadlineExceeded);
  REQUIRE(outcome.status().message() ==
          "w2/0: the activation of micro-batch 0 for stage 1 did not come from w1/0 within 0.03 s");
}

TEST_CASE("devices that have not taken the same steps do not take another one together") {
  TestIsland island(Job(), Plan({3, 3}, 2), {});
  Begin(island);
  Train(island, 0);
  REQUIRE(island.engine(1).SetOptimizerSteps(7).ok());
  const State before(island);
  const auto outcome = island.Step(Batch(1), kLearningRate);
  REQUIRE(outcome.status().code() == absl::StatusCode::kFailedPrecondition);
  REQUIRE(outcome.status().message().find("w2/0 has taken 7 optimizer steps, but w1/0 1") !=
          std::string::npos);
  REQUIRE(State(island) == before);
}

TEST_CASE("parameters that were never set are named") {
  TestIsland island(Job(), Plan({3, 3}, 1), {});
  REQUIRE(island.Step(Batch(0), kLearningRate).status().message() ==
          "w1/0: the parameters of layer 0 were never set");
}

// ---- new plans ----

TEST_CASE("a new plan keeps what the worker's devices hold, wherever it is needed now") {
  const IslandPlan first = Plan({2, 2, 2}, 1);
  TestIsland island(Job(), first, {}), twin(Job(), first, {});
  Begin(island);
  Begin(twin);
  for (int s = 0; s < 3; ++s) REQUIRE(Train(island, s) == Train(twin, s));

  REQUIRE(island.Configure(Plan({1, 4, 1}, 1, "zb-h1", 2)).ok());
  REQUIRE(island.engine(0).optimizer_steps() == 3);
  int surplus = 0;
  for (const HeldLayer& held : island.engine(0).Held()) {
    REQUIRE(held.written);
    surplus += held.surplus;
  }
  REQUIRE(surplus == 2);  // layers 1 and 4 moved to the middle
  REQUIRE(State(island) == State(twin));
  island.engine(0).DropSurplus();
  for (const HeldLayer& held : island.engine(0).Held()) REQUIRE_FALSE(held.surplus);
  for (int s = 3; s < 6; ++s) REQUIRE(Train(island, s) == Approx(Train(twin, s)).epsilon(1e-6));
}

TEST_CASE("layers move between workers by Held, GetLayer and SetLayer") {
  const IslandPlan first = Plan({3, 3}, 2);
  TestIsland island(Job(), first, {}), twin(Job(), first, {});
  Begin(island);
  Begin(twin);
  for (int s = 0; s < 2; ++s) REQUIRE(Train(island, s) == Train(twin, s));
  REQUIRE(island.Configure(Plan({2, 4}, 2, "1f1b", 2)).ok());
  int moved = 0;
  for (const HeldLayer& held : island.engine(1).Held()) {
    if (held.written) continue;
    ++moved;
    REQUIRE(held.shard.layer == 2);
    for (const LayerPart part :
         {LayerPart::kParameters, LayerPart::kFirstMoment, LayerPart::kSecondMoment}) {
      std::vector<float> values(static_cast<size_t>(held.elements));
      REQUIRE(island.engine(0).GetLayer(held.shard, part, values).ok());
      REQUIRE(island.engine(1).SetLayer(held.shard, part, values).ok());
    }
  }
  REQUIRE(moved == 1);
  island.SetOptimizerSteps(2);
  for (int s = 2; s < 5; ++s) REQUIRE(Train(island, s) == Approx(Train(twin, s)).epsilon(1e-6));
  std::vector<float> none(10);
  REQUIRE(island.engine(1).GetLayer({0, 0, {1}}, LayerPart::kParameters, none).message() ==
          "w2 does not hold layer 0, rank 0");
}

// ---- memory ----

TEST_CASE("schedules take the memory that they need, and a device's limit is kept") {
  const auto activations = [](const std::string& schedule) {
    TestIsland island(Job(), Plan({3, 3}, 1, schedule), {});
    return island.engine(0).Memory()[0].activation_bytes;
  };
  REQUIRE(activations("1f1b") < activations("gpipe"));

  IslandPlan plan = Plan({6}, 1);
  plan.programs[0].memory_peak_bytes = 123 << 20;
  LocalTransport transport(1 << 20);
  LocalCommunicators communicators(std::chrono::seconds(10));
  // `pool_bytes`: what the backend gives; `memory_bytes`: what the device says it has.
  const auto error = [&](int64_t pool_bytes, int64_t memory_bytes) {
    std::vector<LocalDevice> devices;
    devices.push_back({0, NewCpuBackend(1, pool_bytes), NewCpuBackend(1), memory_bytes});
    Engine engine("w1", std::move(devices), {});
    const absl::Status status = engine.Configure(Job(), plan, &transport, &communicators);
    REQUIRE(status.code() == absl::StatusCode::kResourceExhausted);
    return std::string(status.message());
  };
  constexpr char kPredicted[] = "; the plan predicted a peak of 123.0 MiB; ";
  constexpr char kRemedy[] = "lower inner.micro_batch_sequences or set layout.recompute";
  REQUIRE_THAT(error(0, 100000), StartsWith("w1/0, stage 0 (layers 0 to 5): out of memory: ") &&
                                     Contains(", 97.7 KiB to be had") && Contains(kPredicted) &&
                                     EndsWith(kRemedy));
  DeviceMemory all;
  {
    std::vector<LocalDevice> devices;
    devices.push_back({0, NewCpuBackend(1), NewCpuBackend(1), 0});
    Engine engine("w1", std::move(devices), {});
    REQUIRE(engine.Configure(Job(), plan, &transport, &communicators).ok());
    all = engine.Memory()[0];
    REQUIRE(all.peak_bytes >= all.state_bytes + all.activation_bytes + all.scratch_bytes);
  }
  REQUIRE_THAT(error(all.state_bytes / 2, 0),
               StartsWith("w1/0, stage 0 (layers 0 to 5): layer ") &&
                   Contains(": out of memory on the CPU: ") && Contains(" wanted, ") &&
                   Contains(kPredicted) && EndsWith("(layout.stages, layout.tensor_parallel)"));
  REQUIRE_THAT(error(all.state_bytes + all.activation_bytes / 2, 0),
               StartsWith("w1/0, stage 0 (layers 0 to 5), activations (micro-batches in flight: 1; "
                          "the most for layer ") &&
                   Contains(kPredicted) && EndsWith(kRemedy));
  REQUIRE_THAT(error(all.peak_bytes - all.scratch_bytes / 2, 0),
               Contains("operations' workspace and messages: out of memory on the CPU: ") &&
                   Contains(kPredicted) && EndsWith(kRemedy));
}

// ---- refusals ----

TEST_CASE("a plan or job that cannot be run is refused by name, and changes nothing") {
  const IslandPlan plan = Plan({3, 3}, 1);
  TestIsland island(Job(), plan, {});
  Begin(island);
  LocalTransport transport(1 << 20);
  LocalCommunicators communicators(std::chrono::seconds(10));
  const auto refusal = [&](const EngineJob& job, const IslandPlan& p) {
    const absl::Status status = island.engine(0).Configure(job, p, &transport, &communicators);
    REQUIRE(status.code() == absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  IslandPlan other = plan;
  other.programs[0].ops.pop_back();
  REQUIRE(refusal(Job(), other) == "plan: program of w1/0 does not end in its optimizer step");
  REQUIRE(refusal(Job(), Plan({2, 2, 2}, 1)) == "plan: w1 has no device w1/2");
  EngineJob job = Job();
  job.sequence_length = 9;
  REQUIRE(refusal(job, plan) == "sequences of 9 tokens; the model has positions for 1 to 8");
  job = Job();
  job.max_pieces = 3;
  REQUIRE(refusal(job, plan) == "max_pieces = 3: must be a power of two from 1 to 64");
  job = Job();
  job.compute = DType::kBfloat16;
  REQUIRE(refusal(job, plan) == "plan: w1/0 does not compute in the job's type");
  IslandLayout layout;
  layout.replicas = {{{6}, 4, 2}};
  layout.tensor_parallel = 5;
  REQUIRE(refusal(Job(), MakePlan(layout)).find("head") != std::string::npos);
  Train(island, 0);
}

// ---- order of work ----

// Hands everything on, but for what tests change.
class Wrapped : public Transport {
 public:
  explicit Wrapped(Transport& inner) : inner_(inner) {}
  absl::Status Send(const std::string& from, const std::string& to, const MessageTag& tag,
                    Backend& backend, Stream& stream, const Tensor& payload) override {
    return inner_.Send(from, to, tag, backend, stream, payload);
  }
  bool Arrived(const std::string& device, const MessageTag& tag) override {
    return inner_.Arrived(device, tag);
  }
  void Wait(const std::string& device, std::span<const MessageTag> tags,
            Instant deadline) override {
    inner_.Wait(device, tags, deadline);
  }
  absl::Status Receive(const std::string& device, const MessageTag& tag, Backend& backend,
                       Stream& stream, const Tensor& into, Instant deadline) override {
    return inner_.Receive(device, tag, backend, stream, into, deadline);
  }
  void Abort(const std::string& reason) override { inner_.Abort(reason); }
  void Reset() override { inner_.Reset(); }
  std::vector<BoundaryCounters> counters() const override { return inner_.counters(); }

 private:
  Transport& inner_;
};

// Calls back when so many activations and gradients have been sent.
class AtMessage : public Wrapped {
 public:
  using Wrapped::Wrapped;
  void Set(int messages, std::function<void()> then) {
    then_ = std::move(then);
    left_ = messages;
  }
  absl::Status Send(const std::string& from, const std::string& to, const MessageTag& tag,
                    Backend& backend, Stream& stream, const Tensor& payload) override {
    if (tag.stage != kCommitStage && left_-- == 0) then_();
    return Wrapped::Send(from, to, tag, backend, stream, payload);
  }

 private:
  std::atomic<int> left_{-1};
  std::function<void()> then_;
};

TEST_CASE("wherever a step is interrupted, all devices have taken it or none has") {
  IslandLayout layout;
  layout.name = "two replicas cut unlike";
  layout.replicas = {{{2, 4}, 2, 2}, {{3, 3}, 4, 1}};
  layout.workers = 2;
  const IslandPlan plan = MakePlan(layout);
  LocalTransport queue(1 << 20);
  AtMessage transport(queue);
  TestIsland island(Job(), plan, {}, &transport), twin(Job(), plan, {});
  Begin(island);
  Begin(twin);
  constexpr int kMessages = 12;  // of a step: there and back, of six micro-batches
  int64_t steps = 0;
  for (int n = 0; n <= kMessages; ++n) {
    CAPTURE(n);
    const auto worker = static_cast<size_t>(n % 2);
    transport.Set(n, [&] { island.engine(worker).Interrupt("on purpose"); });
    const auto outcome = island.Step(Batch(n), kLearningRate);
    transport.Set(-1, [] {});
    REQUIRE(outcome.ok() == (n == kMessages));
    const int64_t taken = island.engine(0).optimizer_steps();
    REQUIRE(island.engine(1).optimizer_steps() == taken);
    REQUIRE(taken == steps + (outcome.ok() ? 1 : 0));
    if (taken > steps) Train(twin, n);
    steps = taken;
    REQUIRE(State(island) == State(twin));
    REQUIRE(island.Configure(plan).ok());
    // What was left of the interrupted step is in nobody's way.
    REQUIRE(Train(island, 100 + n) == Train(twin, 100 + n));
    ++steps;
  }
}

// Lets one message be seen only after it was asked for so many times.
class HoldBack : public Wrapped {
 public:
  HoldBack(Transport& inner, MessageTag tag, int times)
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

// Says that messages took as long as on a line of this speed.
class SlowTale : public Wrapped {
 public:
  SlowTale(Transport& inner, double seconds_per_byte)
      : Wrapped(inner), seconds_per_byte_(seconds_per_byte) {}
  absl::Status Send(const std::string& from, const std::string& to, const MessageTag& tag,
                    Backend& backend, Stream& stream, const Tensor& payload) override {
    const int64_t bytes = payload.size() * SizeOf(payload.dtype);
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

MessageTag GradientOf(int32_t micro_batch) {
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
  HoldBack transport(queue, GradientOf(3), 5);
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

// The last gradient is late, and the device itself stands still since it got the one before, until
// it was asked often for what is late. That comes when there is nothing else to do.
class StandStill : public Wrapped {
 public:
  using Wrapped::Wrapped;
  absl::Status Receive(const std::string& device, const MessageTag& tag, Backend& backend,
                       Stream& stream, const Tensor& into, Instant deadline) override {
    ATOLL_RETURN_IF_ERROR(Wrapped::Receive(device, tag, backend, stream, into, deadline));
    if (tag == GradientOf(2)) testing::EnqueueOnFake(backend, stream, [this] { moves_.wait(); });
    return absl::OkStatus();
  }
  bool Arrived(const std::string& device, const MessageTag& tag) override {
    if (tag != GradientOf(3)) return Wrapped::Arrived(device, tag);
    if (--asked_ == 0) {
      moved = SteadyNow();
      moves_.count_down();
    }
    return idle_ && Wrapped::Arrived(device, tag);
  }
  void Wait(const std::string& device, std::span<const MessageTag> tags,
            Instant deadline) override {
    if (tags[0] != GradientOf(3)) return Wrapped::Wait(device, tags, deadline);
    if (deadline > SteadyNow() + std::chrono::seconds(10))
      idle_ = true;  // it waits for nothing else
  }

  Instant moved{};

 private:
  int asked_ = 500;
  bool idle_ = false;
  std::latch moves_{1};
};

TEST_CASE("a device that runs behind its host is given W only when it has nothing else") {
  const IslandPlan plan = WeightsLast();
  TestIsland punctual(Job(), plan, {});
  Begin(punctual);
  const double loss = Train(punctual, 0);
  LocalTransport queue(1 << 20);
  StandStill transport(queue);
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

TEST_CASE("the adapter cuts what a slow line carries, says why, and the curve stays") {
  EngineJob job = Job();
  job.max_pieces = 8;
  EngineOptions options;
  options.emulation.duration = [](const std::string&, LayerKind, PlanOpKind, int64_t rows) {
    return std::chrono::microseconds(300) * rows;
  };
  const IslandPlan plan = Plan({3, 3}, 1);
  const double message_bytes = 2 * 8 * 16 * 4;
  LocalTransport queue(1 << 20);
  SlowTale line(queue, 1.8e-3 / message_bytes);  // as long as the F of a micro-batch
  TestIsland island(job, plan, options, &line);
  TestDevice alone(Job());
  Begin(island);
  alone.Set(RandomWeights(Job().model, 5));

  std::vector<BoundaryState> boundaries;
  for (int s = 0; s < 40 && (s < 5 || boundaries[0].pieces == 1); ++s) {
    const auto outcome = island.Step(Batch(s), kLearningRate);
    REQUIRE(outcome.status().message() == "");
    REQUIRE(outcome->loss.mean() ==
            Approx(alone.Step(Batch(s), kLearningRate).mean()).epsilon(1e-5));
    REQUIRE(outcome->plan_wanted == "");
    boundaries = outcome->boundaries;
  }
  REQUIRE(boundaries.size() == 2);  // activations one way, gradients the other
  REQUIRE(boundaries[0].from == "w1/0");
  REQUIRE(boundaries[0].to == "w1/1");
  REQUIRE(boundaries[0].pieces == 2);  // a micro-batch has two sequences
  REQUIRE(boundaries[0].reason.find("2 pieces in fill and drain (1 before)") == 0);
  for (int s = 40; s < 43; ++s) {  // in pieces
    const double loss = alone.Step(Batch(s), kLearningRate).mean();
    REQUIRE(Train(island, s) == Approx(loss).epsilon(1e-5));
  }
}

TEST_CASE("a saturated line asks for another plan") {
  EngineOptions options;
  options.emulation.duration = [](const std::string&, LayerKind, PlanOpKind, int64_t rows) {
    return std::chrono::microseconds(50) * rows;
  };
  LocalTransport queue(1 << 20);
  SlowTale line(queue, 1.0 / 1024);  // a second a message
  TestIsland island(Job(), Plan({3, 3}, 1), options, &line);
  Begin(island);
  std::string wanted;
  for (int s = 0; s < 40 && wanted.empty(); ++s) {
    const auto outcome = island.Step(Batch(s), kLearningRate);
    REQUIRE(outcome.status().message() == "");
    wanted = outcome->plan_wanted;
  }
  REQUIRE(wanted == "link w1/0 > w1/1 saturated");
}

// The device works for 5 ms on every message that it gets, long after its host has gone on.
class SlowDevice : public SlowTale {
 public:
  using SlowTale::SlowTale;
  absl::Status Receive(const std::string& device, const MessageTag& tag, Backend& backend,
                       Stream& stream, const Tensor& into, Instant deadline) override {
    ATOLL_RETURN_IF_ERROR(SlowTale::Receive(device, tag, backend, stream, into, deadline));
    if (tag.stage == kCommitStage) return absl::OkStatus();
    testing::EnqueueOnFake(backend, stream,
                           [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); });
    return absl::OkStatus();
  }
};

TEST_CASE("a line is not saturated by what a device has only been handed") {
  const double message_bytes = 2 * 8 * 16 * 4;
  LocalTransport queue(1 << 20);
  SlowDevice line(queue, 1e-3 / message_bytes);
  TestIsland island(Job(), Plan({3, 3}, 1), {}, &line, NewFakeDevice);
  Begin(island);
  bool heard = false;
  for (int s = 0; s < 15; ++s) {  // more than two windows of messages
    const auto outcome = island.Step(Batch(s), kLearningRate);
    REQUIRE(outcome.status().message() == "");
    REQUIRE(outcome->plan_wanted == "");
    heard = heard || outcome->boundaries[0].message_seconds > 0;
  }
  REQUIRE(heard);
}

}  // namespace
}  // namespace atl::worker
