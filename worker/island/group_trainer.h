// The trainer of an island of several workers, at its leader: the model's side of it. What takes
// the island from one state to another is its control (control.h). Without a plan it trains on this
// worker's first device alone, from Prepare on.
//
// Whatever fails leaves the island to be configured again, with the same plan or a new one.
//
// Threads: as Trainer says. A member that is lost ends what goes on within moments.

#ifndef ATOLL_WORKER_ISLAND_GROUP_TRAINER_H_
#define ATOLL_WORKER_ISLAND_GROUP_TRAINER_H_

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "worker/core/actions.h"
#include "worker/island/control/control.h"
#include "worker/island/member/member.h"
#include "worker/runtime/trainer.h"

namespace atl::worker {

class GroupTrainer final : public Trainer {
 public:
  // What the adapters of all members see, after a step and a little later; on the caller's thread.
  using OnStageLinks = std::function<void(const StageLinksSeen&)>;

  // The memory of all members' devices, likewise, whenever it differs from the last report.
  using OnMemory = std::function<void(const MemorySeen&)>;
  // Waits until the member's devices serve no other leader any more.
  using AwaitFree = std::function<absl::Status()>;
  // Configure: the members may leave the plan before; on its thread.
  using OnDrained = std::function<void(const Drained&)>;

  // `member` outlives it and serves no other leader while this leads. `on_traced` answers Trace, on
  // the caller's thread.
  explicit GroupTrainer(GroupMember* member, OnStageLinks on_stage_links = nullptr,
                        OnMemory on_memory = nullptr, StepTracer::OnTraced on_traced = nullptr,
                        AwaitFree await_free = nullptr, OnDrained on_drained = nullptr);
  ~GroupTrainer() override;

  std::string Name() const override;
  absl::StatusOr<JobFacts> Prepare(const JobSpec& spec) override;
  std::string Lacks() const override { return lacks_; }
  void Release() override;
  absl::Status InitialWeights() override { return control_.InitialWeights(); }
  absl::StatusOr<MeanLoss> Step(const std::vector<PositionRange>& ranges,
                                double learning_rate) override;
  absl::StatusOr<int64_t> CountMasked(const std::vector<PositionRange>& ranges) override;
  absl::StatusOr<MeanLoss> Validate(int64_t sequences, int set) override;

  std::shared_ptr<OuterState> outer() const override { return member_->outer_exchange().state(); }
  // Members whose devices have room for it snapshot what they hold, and read it while steps go on;
  // if one has none, all read it at once.
  absl::StatusOr<Completion> CaptureDelta(const worker::CaptureDelta& command) override {
    return control_.CaptureDelta(command);
  }
  // Where the devices of all members have room for it.
  absl::StatusOr<Completion> StageCarry() override { return control_.StageCarry(); }
  absl::Status AdoptPulled(const worker::AdoptPulled& command) override {
    return control_.AdoptPulled(command);
  }
  absl::StatusOr<std::vector<MeanLoss>> ValidateBase(int64_t sequences, int sets) override;
  absl::Status ResetMoments() override { return control_.SetOptimizerSteps(0); }

  absl::StatusOr<PlanTaken> Configure(const JobId& job, Generation generation,
                                      const IslandPlan& plan,
                                      const std::vector<ShardPlacement>& shards = {},
                                      const NodeId& before = "",
                                      Leadership* known = nullptr) override;
  void Keep(Leadership known) override;

  using SaveOutcome = IslandControl::SaveOutcome;
  using OnSaved = std::function<void(const SaveOutcome&)>;
  // Called on any thread. Before the first Configure.
  void SetOnSaved(OnSaved on_saved) { on_saved_ = std::move(on_saved); }
  absl::StatusOr<Kept> SaveState(const LocalCheckpoint& about, Tier tier) override {
    return control_.SaveState(about, tier);
  }
  void ResumeFrom(int64_t save, std::vector<PositionRange> leased) override {
    control_.ResumeFrom(save, std::move(leased));
  }
  // Receives the followers' answers to the step before: it is taken everywhere then.
  absl::Status Drain() { return control_.Drain(); }
  // What each member's devices hold of the plan.
  const Holdings& holdings() const { return control_.holdings(); }
  // Steps that the optimizer has taken.
  int64_t optimizer_steps() const { return control_.steps(); }
  void Interrupt(const std::string& reason) override;
  void ForgetInterrupts() override { control_.ForgetInterrupts(); }

  // Records the next step that begins, on all members; or reports why the one under way failed. For
  // any thread.
  void Trace(const TraceNextStep& request) { tracer_.Request(request); }

 private:
  void Lead();  // the member's calls are for the control
  // Whether a plan may need less of a device than everything on one.
  bool PlanMayNeedLess(const JobSpec& spec) const;

  void OnReply(const NodeId& from, const GroupReply& reply);
  void ReportStageLinks();
  void ReportMemory();

  // Of the step that has just been made, from all members.
  absl::StatusOr<StepTrace> CollectTrace(Instant begun, int64_t sequences);
  absl::StatusOr<std::map<NodeId, ClockOffset>> MeasureClocks();

  GroupMember* const member_;
  const OnStageLinks on_stage_links_;
  const OnMemory on_memory_;
  StepTracer tracer_;
  const AwaitFree await_free_;
  OnSaved on_saved_;
  std::string lacks_;
  std::map<NodeId, StageLinksSeen> stage_links_;  // by member, of the newest reported step
  StageLinksSeen said_;                           // the newest that on_stage_links_ was given
  std::map<NodeId, std::vector<DeviceMemoryState>> memory_;  // likewise
  MemorySeen memory_said_;
  IslandControl control_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_GROUP_TRAINER_H_
