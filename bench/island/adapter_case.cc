#include "bench/island/adapter_case.h"

#include <atomic>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "bench/island/shaped_transport.h"
#include "bench/measure.h"
#include "common/check.h"
#include "common/event_loop.h"
#include "kernels/cpu/cpu.h"
#include "tests/island/layouts.h"

namespace atl::bench {
namespace {

constexpr int64_t kRows = 16;  // of a micro-batch
constexpr int kMicroBatches = 8;
constexpr int32_t kLayers = 10;
constexpr int64_t kTokens = 128;
constexpr int64_t kWidth = 64;
constexpr double kBytes = kRows * kTokens * kWidth * 4.0;  // of a message
// A sequence's F, B or W takes 0.1 ms in each layer; each operation takes 20 us more a layer,
// however few its sequences, so that cutting has its price.
constexpr Duration kRow = std::chrono::microseconds(100);
constexpr Duration kOperation = std::chrono::microseconds(20);
constexpr double kWork = 3 * kLayers / 2 * (kRows * 100e-6 + 20e-6);  // of a stage, a micro-batch

// Two workers, with or without adapter, on a link whose rate can be changed.
class AdaptedIsland {
 public:
  explicit AdaptedIsland(bool adapts)
      : transport_(
            [this](const std::string& from, const std::string&) { return MakeSharedLink(from); },
            int64_t{1} << 30),
        communicators_(std::chrono::seconds(30)) {
    IslandLayout layout;
    layout.name = "two stages";
    layout.replicas = {{{kLayers / 2, kLayers / 2}, kMicroBatches, kRows}};
    layout.workers = 2;
    layout.unsplit = true;
    const IslandPlan plan = MakePlan(layout);
    worker::EngineJob job;
    job.model.family = ModelFamily::kGpt2;
    job.model.vocab = 64;
    job.model.d_model = kWidth;
    job.model.layers = kLayers - 2;
    job.model.heads = job.model.kv_heads = 4;
    job.model.ffn = 4 * kWidth;
    job.model.max_positions = job.sequence_length = kTokens;
    job.batch_sequences = kRows * kMicroBatches;
    job.max_chunks = adapts ? 16 : 1;
    worker::EngineOptions options;
    options.emulation.only = true;
    options.emulation.duration = [](const std::string&, LayerKind, PlanOpKind, int64_t rows) {
      return kRow * rows + kOperation;
    };
    for (const IslandMember& member : plan.members) {
      std::vector<worker::LocalDevice> devices;
      devices.push_back({0, NewCpuBackend(1), NewCpuBackend(1)});
      engines_.push_back(
          std::make_unique<worker::Engine>(member.worker, std::move(devices), options));
    }
    OnAll([&](worker::Engine& engine) { Start(engine, job, plan); });
  }

  void SetLink(double bytes_per_s) { bytes_per_s_ = bytes_per_s; }
  int chunks() const { return chunks_; }

  double Step() {
    const worker::StepRequest request{++number_, kRows * kMicroBatches, 1e-3};
    const Instant start = SteadyNow();
    OnAll([&](worker::Engine& engine) {
      const auto outcome = engine.Step(request, [](int64_t, std::span<int32_t> tokens) {
        std::fill(tokens.begin(), tokens.end(), 0);
        return absl::OkStatus();
      });
      ATOLL_CHECK(outcome.ok(), outcome.status().ToString());
      chunks_ = outcome->stage_links[0].chunks;
    });
    return Seconds(SteadyNow() - start);
  }

 private:
  SharedLink MakeSharedLink(const std::string& from) const { return {from, {1e-3, bytes_per_s_}}; }

  void Start(worker::Engine& engine, const worker::EngineJob& job, const IslandPlan& plan) {
    absl::Status status = engine.Configure(job, plan, &transport_, &communicators_);
    ATOLL_CHECK(status.ok(), status.ToString());
    for (const HeldLayer& held : engine.Held()) {
      const std::vector<float> zeros(static_cast<size_t>(held.elements));
      status = engine.SetLayer(held.shard, worker::LayerPart::kParameters, zeros);
      ATOLL_CHECK(status.ok(), status.ToString());
    }
  }

  template <typename Function>
  void OnAll(const Function& function) {
    std::vector<std::thread> threads;
    for (const auto& engine : engines_) threads.emplace_back([&] { function(*engine); });
    for (std::thread& thread : threads) thread.join();
  }

  std::atomic<double> bytes_per_s_{1e9};
  std::atomic<int> chunks_{1};
  ShapedTransport transport_;
  worker::LocalCommunicators communicators_;
  std::vector<std::unique_ptr<worker::Engine>> engines_;
  int64_t number_ = 0;
};

}  // namespace

AdapterGain MeasureAdapter(int rounds) {
  AdaptedIsland off(false), on(true);
  const auto compare = [&](double share_of_work) {
    for (AdaptedIsland* island : {&off, &on}) island->SetLink(kBytes / (share_of_work * kWork));
    // Twelve steps are four windows and more of every stage link's messages.
    for (int i = 0; i < 12; ++i) off.Step(), on.Step();
    const Comparison found = Compare([&] { off.Step(); }, [&] { on.Step(); }, rounds);
    std::printf("%-34.2f %9.1f %9.1f %7d %8.2f\n", share_of_work, 1e3 * found.base_seconds,
                1e3 * found.work_seconds, on.chunks(), found.speed);
    return found.speed;
  };
  std::printf("\nadapter, 2 stages over 2 sites, 1F1B, the link slows down by 55%%\n");
  std::printf("%-34s %9s %9s %7s %8s\n", "a message's bytes / a stage's work", "off ms", "on ms",
              "chunks", "off/on");
  AdapterGain gain;
  gain.steady = compare(0.02);
  compare(0.40);
  gain.slowed = compare(0.40 / 0.45);
  return gain;
}

}  // namespace atl::bench
