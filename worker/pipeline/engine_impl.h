// Inside of Engine; included by its sources only. engine.cc: plans and steps; engine_state.cc:
// layers, and steps that were interrupted at their commit point.

#ifndef ATOLL_WORKER_PIPELINE_ENGINE_IMPL_H_
#define ATOLL_WORKER_PIPELINE_ENGINE_IMPL_H_

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/pipeline/engine.h"
#include "worker/pipeline/interrupt.h"
#include "worker/pipeline/local_run.h"

namespace atl::worker {

class Engine::Impl {
 public:
  Impl(NodeId worker, std::vector<LocalDevice> devices, EngineOptions options)
      : worker_(std::move(worker)), options_(std::move(options)) {
    for (LocalDevice& device : devices) {
      const std::string name = absl::StrCat(worker_, "/", device.index);
      runs_.push_back(std::make_unique<LocalRun>(name, std::move(device)));
    }
  }
  ~Impl() {
    interrupt_.Raise(absl::AbortedError("the engine ends"));
    for (const auto& run : runs_) run->thread.Wait();
  }

  absl::Status Configure(const EngineJob& job, const IslandPlan& plan, Transport* transport,
                         CommunicatorFactory* communicators, const std::atomic<bool>* cancelled);
  const IslandPlan& plan() const { return plan_; }
  std::vector<HeldLayer> Held() const;
  void DropSurplus() {
    for (const auto& run : runs_) run->device.DropSurplus();
  }
  absl::Status GetLayer(const LayerShard& shard, LayerPart part, Range range, std::span<float> out);
  absl::Status SetLayer(const LayerShard& shard, LayerPart part, std::span<const float> values);
  absl::Status SetState(const LayerShard& shard, int64_t optimizer_step,
                        const std::map<LayerPart, std::span<const float>>& parts);
  absl::StatusOr<bool> TakeSnapshot() {
    return OnCopies([](Device& device) { return device.TakeSnapshot(); });
  }
  absl::StatusOr<int64_t> SnapshotElements(const LayerShard& shard);
  absl::Status GetSnapshot(const LayerShard& shard, LayerPart part, Range range,
                           std::span<float> out);
  absl::StatusOr<bool> PrepareAddition() {
    return OnCopies([](Device& device) { return device.PrepareAddition(); });
  }
  absl::Status SetAddition(const LayerShard& shard, std::span<const float> values);
  absl::Status Add();
  absl::Status SetOptimizerSteps(int64_t steps);
  int64_t optimizer_steps() const;
  absl::StatusOr<StepOutcome> Run(const StepRequest& request, const SequenceReader& read,
                                  bool train);
  CommitState Committed() const;
  absl::Status TakeStep(const StepSums& step);
  void Interrupt(const std::string& reason) { interrupt_.Raise(absl::AbortedError(reason)); }
  std::vector<DeviceMemory> Memory() const;
  int devices() const { return static_cast<int>(runs_.size()); }

 private:
  absl::Status Check(const EngineJob& job, const IslandPlan& plan) const;
  LocalRun* Find(const std::string& device) const;
  void Stop();
  absl::StatusOr<bool> OnCopies(const std::function<absl::StatusOr<bool>(Device&)>& take);
  void DropCopies();
  absl::Status NoSnapshot(const LayerShard& shard) const;
  absl::Status NoAddition(const LayerShard& shard) const;
  absl::Status MakeDevices();
  absl::Status ShareLayers();
  absl::Status Copy(LocalRun& from, const HeldState& source, LocalRun& to, HeldState& target);
  absl::Status Join(CommunicatorFactory& communicators);
  absl::Status JoinGroups(LocalRun& run, CommunicatorFactory& communicators);
  void NoteTaken();
  absl::Status CheckReady(const StepRequest& request) const;
  absl::Status ReadTokens(const StepRequest& request, const SequenceReader& read, bool train);
  void FillTokens(LocalRun& run, std::span<const int32_t> tokens, int64_t rows, bool train);
  // Runs it on every device that the plan names, each on its thread, and waits.
  template <typename Function>
  absl::Status OnDevices(const Function& function);

  const NodeId worker_;
  const EngineOptions options_;
  std::vector<std::unique_ptr<LocalRun>> runs_;
  worker::Interrupt interrupt_;

  std::optional<EngineJob> job_;
  IslandPlan plan_;
  EngineOptions in_force_;  // options_, with the plan's deadlines
  std::unique_ptr<CommitTable> table_;
  Transport* transport_ = nullptr;
  bool ready_ = false;
  int64_t last_number_ = 0;
  StepSums taken_;
  std::vector<int32_t> tokens_;
  std::mutex copies_mutex_;  // of what the devices have besides their layers
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_ENGINE_IMPL_H_
