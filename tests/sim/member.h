// One worker's part in a simulated island: the real leader's port (worker/island/control/port.h)
// in virtual time. Toy layers stand for devices, a look at the other nodes for the peer link; what
// is kept for the parameter servers, copies of saved states and the log of changes are the
// product's own.
//
// A step is made by all members of the plan together and committed as on real devices: each gives
// its vote, and takes the step when it has all others'; what breaks in between leaves some with it
// and others waiting for it.
//
// Calls that block wait in the fiber that makes them. After Die nothing waits any more, and nothing
// that is done has an effect.

#ifndef ATOLL_TESTS_SIM_MEMBER_H_
#define ATOLL_TESTS_SIM_MEMBER_H_

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/cluster.h"
#include "tests/sim/fiber.h"
#include "tests/sim/toy_layer.h"
#include "worker/island/control/port.h"
#include "worker/island/member/stamps.h"
#include "worker/island/messages/wire.h"
#include "worker/state/state_saver.h"
#include "worker/state/unit_store.h"

namespace atl::sim {

// The part of saves on a worker's disk: survives the process.
struct SavedPart {
  JobId job;
  int64_t optimizer_step = 0;
  std::vector<worker::StoredUnit> units;
};
using Disk = std::map<int64_t, SavedPart>;  // by save

class SimMember final : public worker::IslandPort, public std::enable_shared_from_this<SimMember> {
 public:
  struct Hooks {
    // A call that requests work of this worker.
    std::function<void(const NodeId& from, GroupFrame frame)> serve;
    std::function<void()> peer_lost;
    OnSaveDone save_done;  // it leads: an error that a member answers ends what goes on here
  };

  // `disk` outlives it.
  SimMember(World* world, IslandMember self, double slowness, Disk* disk)
      : world_(*world), self_(std::move(self)), slowness_(slowness), disk_(*disk) {}

  void Die();
  bool dead() const { return dead_; }
  void SetHooks(Hooks hooks) { hooks_ = std::move(hooks); }
  // Called when a call is to be done here, before it is.
  void WatchCalls(std::function<void(const GroupFrame&)> watch) { watch_ = std::move(watch); }
  void SetStepLoss(double loss) { step_loss_ = loss; }
  // Makes the fiber that runs wait until `done`, for so long at most. ABORTED: it was interrupted.
  absl::Status WaitUntil(Duration limit, const std::function<bool()>& done);
  void Pause(Duration duration);
  void Wake();  // waiting fibers check again

  // Returns what its devices hold, for checks.
  const std::map<int32_t, ToyLayer>& held() const { return held_; }
  const PeerFence& fence() const { return fence_; }
  bool Several() const { return plan_.members.size() > 1; }  // workers in the plan

  // ---- worker::IslandPort ----
  IslandMember Self() const override { return self_; }
  bool IsHostile() const {
    return self_.worker == kHostileWorker && (world_.options.lies || world_.options.poison != 1);
  }
  std::unique_ptr<worker::WorkLane> NewLane() override;
  Instant Now() const override { return world_.timeline.now(); }
  absl::StatusOr<JobFacts> Open(const JobSpec& spec, std::function<bool()> cancelled) override;
  void Close() override;
  int devices() const override { return 1; }
  absl::StatusOr<int64_t> CountMasked(const std::vector<PositionRange>&) override { return 0; }
  PositionRange SelectValidationPositions(int, int64_t) const override { return {0, 8}; }
  absl::StatusOr<TaskScore> ScoreTask(size_t, const EvaluatePosition& evaluate) const override {
    TaskScore score{.items = 1};
    for (int64_t position = 8; position < 10; ++position) {  // behind those of validation
      ATOLL_ASSIGN_OR_RETURN(const LossSum loss, evaluate(position));
      score.tokens += loss.tokens;
    }
    return score;
  }
  const worker::IslandJob* island_job() const override { return job_ ? &*job_ : nullptr; }
  worker::IslandLimits limits() const override;
  Duration StepTimeout() const override;
  int64_t NowUs() const override;
  absl::Status Join(const PeerFence& fence, const IslandPlan& plan) override;
  void Leave() override;
  absl::Status Meet(const std::vector<NodeId>& workers,
                    const std::atomic<bool>& interrupted) override;
  void BeginEpoch(int64_t epoch) override;
  int64_t epoch() const override { return epoch_; }
  int64_t last_number() const override { return last_number_; }
  absl::StatusOr<GroupReply> Do(const GroupFrame& call,
                                const std::atomic<bool>* interrupted = nullptr) override;
  absl::StatusOr<worker::CallId> Call(const NodeId& to, GroupFrame frame) override;
  absl::StatusOr<GroupReply> Await(worker::CallId id, Duration timeout) override;
  void Reply(const NodeId& to, worker::CallId call, GroupReply reply) override;
  void Notify(const NodeId& to, GroupFrame frame) override;
  void InterruptWork(const std::string& reason) override;
  void Interrupt(const std::string& reason) override;
  LossSum newest_loss() const override { return newest_loss_; }
  double newest_gradient_norm() const override { return 1; }
  bool newest_skipped() const override { return false; }
  void Lead(OnSaveDone on_save_done) override { SetHooks({.save_done = std::move(on_save_done)}); }
  void StopLeading() override { SetHooks({}); }
  std::shared_ptr<worker::OuterState> outer() const override { return outer_; }
  void Keep(IslandHandover kept) override { kept_ = std::move(kept); }
  void DropKept() override { kept_.reset(); }
  absl::StatusOr<std::vector<HeldSave>> SavesIn(Tier tier) override;
  void DropCopies() override;
  std::optional<worker::ReplayLog::Changes> ChangesSince(int64_t save) const override {
    return log_.Since(save);
  }
  void Log(const std::function<void(worker::ReplayLog&)>& change) override { change(log_); }

 private:
  friend struct StepAttempt;
  struct Waiter {
    std::shared_ptr<Fiber> fiber;
    bool resumed = false;
  };
  struct Called {
    NodeId to;
    std::optional<absl::StatusOr<GroupReply>> result;
  };

  // ---- member.cc ----
  void Block(Duration at_most);
  // The other end, if it can be reached and speaks under the same plan; else why not.
  std::shared_ptr<SimMember> Partner(const NodeId& worker, std::string* why = nullptr) const;
  void LookForLost();
  void Send(const NodeId& to, GroupFrame frame);
  void OnFrame(const NodeId& from, GroupFrame frame);
  bool OnSaveFrame(const NodeId& from, const GroupFrame& frame);  // whether it is one
  void DoLater(const NodeId& from, GroupFrame frame);
  absl::Status Broken(int64_t interrupts) const;  // why what goes on here is to end
  // A moment of work, or in flight from another member.
  absl::Status Takes(Duration at_most);

  // ---- member_work.cc ----
  absl::StatusOr<GroupReply> DoCall(const DrainCall& call);
  absl::StatusOr<GroupReply> DoCall(const DropSurplusCall& call);
  absl::StatusOr<GroupReply> DoCall(const StepCall& call);
  absl::StatusOr<GroupReply> DoCall(const EvaluateCall& call);
  absl::StatusOr<GroupReply> DoCall(const TakeOverCall& call);
  absl::StatusOr<GroupReply> DoCall(const SnapshotCall& call);
  absl::StatusOr<GroupReply> DoCall(const AdditionCall& call);
  absl::StatusOr<GroupReply> DoCall(const CaptureDelta& call);
  absl::StatusOr<GroupReply> DoCall(const SaveCall& call);
  absl::StatusOr<GroupReply> DoCall(const SetStepsCall& call);
  // Lists the plan's holders, in the order of replicas.
  std::vector<NodeId> ListHolders(int32_t layer) const;
  std::vector<HeldLayer> Held() const;
  void Configure(GroupReply* reply);
  CommitState Committed() const;
  absl::Status TakeStep(const StepSums& step);
  void Take(const StepSums& step);
  absl::Status Step(const StepCall& step);
  absl::Status Commit(StepAttempt& attempt, const StepCall& step, const std::set<NodeId>& all);
  // Parameters from all owners, once these have taken the step.
  absl::Status AllGatherParameters(StepAttempt& attempt, const std::set<NodeId>& all);
  absl::Status Fetch(const GroupFrame& call);
  absl::Status FetchPart(const StateSource& source, const worker::ShardParts& into);
  absl::Status SetLayer(int32_t layer, const std::vector<float>& theta, bool temporary);
  absl::Status AddPrepared();
  void SetSteps(int64_t steps);

  // ---- member_outer.cc ----
  absl::Status CheckOuter() const;
  absl::Status DoOuter(const OuterLayoutCall& order);
  absl::Status DoOuter(const CaptureCall& call);
  absl::Status DoOuter(const ApplyCall& call);
  absl::Status DoOuter(const FinishCall& call);
  absl::Status DoOuter(const PutBaseInCall& call);
  absl::Status DoOuter(const PutBackCall& call);
  absl::Status DoOuter(const InitialWeightsCall& call);
  absl::Status DoOuter(const FetchTablesCall& call);
  absl::Status ReadOuterFrom(const NodeId& from, const std::shared_ptr<worker::OuterState>& own,
                             OuterKind kind, int32_t layer, ElementRange range,
                             std::span<float> out) const;
  absl::StatusOr<std::vector<float>> ReadOuterLayer(OuterKind kind, int32_t layer);
  absl::Status ApplyOuter(OuterKind kind, OuterTarget target,
                          const std::vector<ShardPlacement>& shards, bool temporary);
  absl::Status ReadFirstMoments(int32_t layer, ElementRange range, std::span<float> out) const;
  absl::Status ReadForDelta(const std::vector<ShardPlacement>& shards, bool of_snapshot);
  std::map<int32_t, std::vector<float>> Thetas() const;  // of the plan's layers

  // ---- member_saves.cc ----
  absl::Status Save(worker::SaveTask task);
  void GoOnSave(int64_t save);
  absl::Status KeepCopies(const worker::SaveTask& task, int64_t number);
  absl::Status ReadSaved(int64_t save, const LayerShard& shard, Range elements,
                         const worker::ShardParts& out) const;
  absl::Status GetSaved(const NodeId& from, int64_t save, const LayerShard& shard, Range elements,
                        const worker::ShardParts& out);

  World& world_;
  const IslandMember self_;
  const double slowness_;
  Disk& disk_;
  bool dead_ = false;
  Hooks hooks_;
  std::list<std::shared_ptr<Waiter>> waiters_;
  std::map<worker::CallId, Called> calls_;
  worker::CallId next_call_ = 1;
  std::map<NodeId, Instant> last_arrival_;  // when the newest message to a member arrives
  int64_t interrupts_ = 0;
  std::string work_broken_;     // why devices do nothing together until the next attempt
  std::map<NodeId, bool> met_;  // of the plan's members; false: lost since

  std::function<void(const GroupFrame&)> watch_;
  double step_loss_ = 1;
  LossSum newest_loss_;

  std::optional<worker::IslandJob> job_;
  PeerFence fence_;
  IslandPlan plan_;
  int64_t epoch_ = 0;
  int64_t interrupted_epoch_ = -1;
  int64_t last_number_ = 0;
  std::map<int32_t, ToyLayer> held_;
  worker::StampTable stamps_;
  std::map<int32_t, std::vector<float>> snapshot_, addition_, put_aside_;
  bool addition_prepared_ = false;
  PeerFence stepped_;
  StepSums taken_, waits_;
  LoggedStep stepping_;  // the newest
  int64_t stepping_number_ = 0;
  std::shared_ptr<worker::OuterState> outer_, next_outer_;
  std::optional<IslandHandover> kept_;
  worker::ReplayLog log_;
  worker::UnitStore units_;
  std::map<Tier, worker::SaveTask> prepared_saves_;  // prepared
  int64_t save_epoch_ = 0;                           // older ones are cancelled
};

// One attempt at a step, of all members of a plan together.
struct StepAttempt {
  std::set<NodeId> votes;                 // that were given
  bool committed = false;                 // all were
  std::map<NodeId, Instant> received_at;  // when they have all of them
  std::set<NodeId> missed;                // members that never receive them: a link broke
  std::set<NodeId> took;                  // members that have taken the step
  StepSums sums;
};

}  // namespace atl::sim

#endif  // ATOLL_TESTS_SIM_MEMBER_H_
