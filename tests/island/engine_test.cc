// The states of an engine: interruptions, deadlines, new plans, refusals.

#include <atomic>
#include <catch2/catch.hpp>
#include <latch>
#include <thread>
#include <utility>

#include "kernels/cpu/cpu.h"
#include "tests/catch/limits.h"
#include "tests/island/engine_fixture.h"

namespace atl::worker {
namespace {

using Catch::Contains;
using Catch::EndsWith;
using Catch::StartsWith;

// ---- interruptions ----

TEST_CASE("a step that is interrupted changes nothing, and the next one works") {
  const IslandPlan plan = Plan({2, 2, 2}, 2);
  TestIsland island(Job(), plan, {}), reference(Job(), plan, {});
  Begin(island);
  Begin(reference);
  for (int s = 0; s < 3; ++s) REQUIRE(Train(island, s) == Train(reference, s));
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
  for (int s = 3; s < 6; ++s) REQUIRE(Train(island, s) == Train(reference, s));
  REQUIRE(State(island) == State(reference));
}

TEST_CASE("a message that does not come is named at the deadline") {
  EngineOptions options;
  options.message_timeout = std::chrono::milliseconds(30);
  TestIsland island(Job(), Plan({3, 3}, 2), options);
  Begin(island);
  const auto outcome = island.engine(1).Step({1, 8, kLearningRate}, Reader(Batch(0)));
  REQUIRE(outcome.status().code() == absl::StatusCode::kDeadlineExceeded);
  REQUIRE(outcome.status().message() ==
          "w2/0: the activation of micro-batch 0 for stage 1 did not come from w1/0 within 0.03 s: "
          "its device hangs, or it or the link is many times slower than planned (`atoll profile` "
          "has what was measured)");
}

TEST_CASE("a plan of long steps has long deadlines") {
  EngineOptions options;
  options.message_timeout = std::chrono::milliseconds(30);
  IslandPlan plan = Plan({3, 3}, 2);
  plan.step_ns = Duration(std::chrono::milliseconds(7)).count();
  TestIsland island(Job(), plan, options);
  Begin(island);
  const auto outcome = island.engine(1).Step({1, 8, kLearningRate}, Reader(Batch(0)));
  REQUIRE(outcome.status().message() ==
          "w2/0: the activation of micro-batch 0 for stage 1 did not come from w1/0 within 0.07 s: "
          "its device hangs, or it or the link is many times slower than planned (`atoll profile` "
          "has what was measured)");
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
  TestIsland island(Job(), first, {}), reference(Job(), first, {});
  Begin(island);
  Begin(reference);
  for (int s = 0; s < 3; ++s) REQUIRE(Train(island, s) == Train(reference, s));

  REQUIRE(island.Configure(Plan({1, 4, 1}, 1, "zb-h1", 2)).ok());
  REQUIRE(island.engine(0).optimizer_steps() == 3);
  int surplus = 0;
  for (const HeldLayer& held : island.engine(0).Held()) {
    REQUIRE(held.written);
    surplus += held.surplus;
  }
  REQUIRE(surplus == 2);  // layers 1 and 4 moved to the middle
  REQUIRE(State(island) == State(reference));
  island.engine(0).DropSurplus();
  for (const HeldLayer& held : island.engine(0).Held()) REQUIRE_FALSE(held.surplus);
  for (int s = 3; s < 6; ++s)
    REQUIRE(Train(island, s) == Approx(Train(reference, s)).epsilon(1e-6));
}

TEST_CASE("layers move between workers by Held, GetLayer and SetLayer") {
  const IslandPlan first = Plan({3, 3}, 2);
  TestIsland island(Job(), first, {}), reference(Job(), first, {});
  Begin(island);
  Begin(reference);
  for (int s = 0; s < 2; ++s) REQUIRE(Train(island, s) == Train(reference, s));
  REQUIRE(island.Configure(Plan({2, 4}, 2, "1f1b", 2)).ok());
  int moved = 0;
  for (const HeldLayer& held : island.engine(1).Held()) {
    if (held.written) continue;
    ++moved;
    REQUIRE(held.shard.layer == 2);
    for (const LayerPart part :
         {LayerPart::kParameters, LayerPart::kFirstMoment, LayerPart::kSecondMoment}) {
      std::vector<float> values(static_cast<size_t>(held.elements));
      REQUIRE(island.engine(0).GetLayer(held.shard, part, {0, held.elements}, values).ok());
      REQUIRE(island.engine(1).SetLayer(held.shard, part, values).ok());
    }
  }
  REQUIRE(moved == 1);
  island.SetOptimizerSteps(2);
  for (int s = 2; s < 5; ++s)
    REQUIRE(Train(island, s) == Approx(Train(reference, s)).epsilon(1e-6));
  std::vector<float> none(10);
  REQUIRE(absl::IsNotFound(
      island.engine(1).GetLayer({0, 0, {1}}, LayerPart::kParameters, {0, 10}, none)));
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
  LocalCommunicators communicators(atl::testing::kHangLimit);
  // `pool_bytes`: what the backend gives; `memory_bytes`: what the device says it has.
  // Configure keeps back, as the job says.
  const auto error = [&](int64_t pool_bytes, int64_t memory_bytes, int64_t reserve_bytes = 0) {
    EngineJob job = Job();
    job.memory_reserve_bytes = reserve_bytes;
    std::vector<LocalDevice> devices;
    devices.push_back({0, NewCpuBackend(1, pool_bytes), NewCpuBackend(1), memory_bytes});
    Engine engine("w1", std::move(devices), {});
    const absl::Status status = engine.Configure(job, plan, &transport, &communicators);
    REQUIRE(status.code() == absl::StatusCode::kResourceExhausted);
    return std::string(status.message());
  };
  constexpr char kPredicted[] = "; the plan predicted a peak of 123.0 MiB; ";
  constexpr char kRemedy[] = "lower inner.micro_batch_sequences or set layout.recompute = \"all\"";
  REQUIRE_THAT(error(0, 100000), StartsWith("w1/0, stage 0 (layers 0 to 5): out of memory: ") &&
                                     Contains(", 97.7 KiB to be had") && Contains(kPredicted) &&
                                     EndsWith(kRemedy));
  REQUIRE_THAT(error(0, 1'000'100'000, 1'000'000'000),
               Contains(", 97.7 KiB to be had") && Contains("layout.memory_reserve_bytes"));
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
  LocalCommunicators communicators(atl::testing::kHangLimit);
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
  job.max_chunks = 3;
  REQUIRE(refusal(job, plan) == "max_chunks = 3: must be a power of two from 1 to 64");
  job = Job();
  job.compute = DType::kBfloat16;
  REQUIRE(refusal(job, plan).find("plan: w1/0 (cpu) does not compute in bf16, as the island does: "
                                  "start its worker with --compute bf16") == 0);
  IslandLayout layout;
  layout.replicas = {{{6}, 4, 2}};
  layout.tensor_parallel = 5;
  REQUIRE(refusal(Job(), MakePlan(layout)).find("head") != std::string::npos);
  Train(island, 0);
}

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
    if (left_-- == 0) then_();
    return Wrapped::Send(from, to, tag, backend, stream, payload);
  }

 private:
  std::atomic<int> left_{-1};
  std::function<void()> then_;
};

TEST_CASE("whichever activation or gradient a step is interrupted at, no device has taken it") {
  IslandLayout layout;
  layout.name = "two replicas cut unlike";
  layout.replicas = {{{2, 4}, 2, 2}, {{3, 3}, 4, 1}};
  layout.workers = 2;
  const IslandPlan plan = MakePlan(layout);
  LocalTransport queue(1 << 20);
  AtMessage transport(queue);
  TestIsland island(Job(), plan, {}, &transport), reference(Job(), plan, {});
  Begin(island);
  Begin(reference);
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
    if (taken > steps) Train(reference, n);
    steps = taken;
    REQUIRE(State(island) == State(reference));
    REQUIRE(island.Configure(plan).ok());
    // Leftovers of the interrupted step have no effect.
    REQUIRE(Train(island, 100 + n) == Train(reference, 100 + n));
    ++steps;
  }
}

}  // namespace
}  // namespace atl::worker
