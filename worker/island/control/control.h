// The control of an island, at its leader: takes the island through plans, steps, exchanges with
// the parameter servers, saves and failures, by calls to all members, this worker's own part
// included. It holds a few kilobytes that every member can rebuild; what it has of devices, links
// and disks is the port.
//
// Fault tolerance: every failure has one recovery path: Configure, which interrupts, agrees on the
// newest step, sets the plan up again, collects the holdings of all members, and moves layers. A
// step counts if all layers are held at the step after it; else it is replayed; else the state is
// lost, or restored from a save and brought to where it was.
//
// No time, randomness, thread or network of its own: the port has them, and tests/sim plays the
// control with a port in virtual time.
//
// Threads: one caller, but for OnSaveDone and Interrupt (any thread), and what CaptureDelta and
// StageCarry return (as Trainer::Completion says).

#ifndef ATOLL_WORKER_ISLAND_CONTROL_CONTROL_H_
#define ATOLL_WORKER_ISLAND_CONTROL_CONTROL_H_

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "worker/core/actions.h"
#include "worker/island/control/port.h"
#include "worker/island/messages/wire.h"
#include "worker/runtime/trainer.h"
#include "worker/state/save_plan.h"
#include "worker/state/state_transfer.h"

namespace atl::worker {

class IslandControl {
 public:
  using Completion = Trainer::Completion;

  // A save is whole, or never will be, and why.
  struct SaveOutcome {
    int64_t save = 0;
    Tier tier = Tier::kMemory;
    SavedState state;  // no units: it is not whole
    std::string trouble;
  };
  struct Hooks {
    // A member's answer to a call, this worker's own to a step included; on the caller's thread.
    std::function<void(const NodeId&, const GroupReply&)> on_reply;
    // The members may leave the plan before; within Configure.
    std::function<void(const Drained&)> drained;
    // On any thread.
    std::function<void(const SaveOutcome&)> saved;
  };

  // `port` outlives it.
  IslandControl(IslandPort* port, Hooks hooks) : port_(port), hooks_(std::move(hooks)) {}
  IslandControl(const IslandControl&) = delete;
  IslandControl& operator=(const IslandControl&) = delete;

  // ---- The plan. ----
  // Of the job that was just opened, everything on this worker's first device.
  absl::Status ConfigureAlone();
  // As Trainer::Configure.
  absl::StatusOr<PlanTaken> Configure(const JobId& job, Generation generation,
                                      const IslandPlan& plan,
                                      const std::vector<ShardPlacement>& shards,
                                      const NodeId& before, Leadership* known);
  void ResumeFrom(int64_t save, std::vector<PositionRange> leased) {
    resume_save_ = save;
    resume_leased_ = std::move(leased);
  }
  // Another worker takes over.
  void Keep(Leadership known);
  void Release();  // the job is closed

  // ---- Work of all members. ----
  absl::Status Step(const std::vector<PositionRange>& ranges, double learning_rate, bool trace);
  absl::Status Evaluate(int64_t first, int64_t count);
  // Receives the followers' answers to the step before: it is taken everywhere then.
  absl::Status Drain();

  // ---- The exchange with the parameter servers; as Trainer says. ----
  absl::Status InitialWeights();
  absl::StatusOr<Completion> CaptureDelta(const worker::CaptureDelta& command);
  absl::StatusOr<Completion> StageCarry();
  absl::Status AdoptPulled(const worker::AdoptPulled& command);
  absl::Status PutBaseIn();
  absl::Status TakeBaseOut();  // after a failure Configure does that
  absl::Status SetOptimizerSteps(int64_t steps);

  // ---- Saved states. ----
  absl::StatusOr<Kept> SaveState(const LocalCheckpoint& about, Tier tier);
  void OnSaveDone(const NodeId& from, const SaveDone& done);

  // What goes on ends soon: the caller also interrupts the port.
  void Interrupt() { interrupted_ = true; }
  void ForgetInterrupts() { interrupted_ = false; }
  const std::atomic<bool>& interrupted() const { return interrupted_; }

  // ---- Calls to all followers. ----
  using Calls = std::vector<std::pair<NodeId, CallId>>;
  std::vector<NodeId> Followers() const;
  absl::StatusOr<Calls> CallAll(const GroupFrame& frame);
  absl::Status AwaitAll(const Calls& calls, Duration timeout);

  // ---- What it knows. ----
  bool alone() const { return alone_; }  // no plan was given
  bool failed() const { return failed_; }
  const IslandPlan& plan() const { return plan_; }
  const Holdings& holdings() const { return holdings_; }  // when the plan was set up
  int64_t steps() const { return steps_; }                // of the optimizer
  int64_t number() const { return number_; }              // of the newest step or evaluation
  absl::Status Ready() const;

 private:
  // How long followers have to answer after a failure here.
  static constexpr Duration kEndTimeout = std::chrono::seconds(5);

  IslandPlan MakeSingleDevicePlan() const;
  absl::Status SetUp(Holdings* holdings);
  absl::Status AgreeOnStep();
  absl::Status TakeOverState(const NodeId& before, Leadership* taken_over);
  std::map<NodeId, OuterLayoutCall> PlanOuter(std::string* lost) const;
  absl::Status TransferOuterState(std::string* lost);
  absl::Status FetchAll(StateTransferPlan& transfers, int64_t save, const StateName& state);
  bool KnowsSteps() const { return known_.known_steps >= 0; }  // else it has not led this job
  StateStamp NewStamp() {
    last_change_ = std::max(last_change_ + 1, port_->NowUs());
    return {fence_.generation, last_change_};
  }
  std::vector<StateName> StatesWanted(const Holdings& holdings) const;
  // What all members do changes their parameters.
  absl::Status ChangeAll(GroupFrame frame);
  absl::StatusOr<PlanTaken> TransferState(const Holdings& holdings);
  StateTransferPlan PlanTransferOrRestore(const Holdings& holdings);
  void AddRemoteSaves(const Holdings& holdings);
  bool PlanReplay(int64_t save, int64_t optimizer_step);
  std::optional<StateTransferPlan> PlanFromDevices(const Holdings& holdings);
  StateTransferPlan PlanGoingBack(const Holdings& holdings, StateTransferPlan otherwise);
  void NoteWholeSaves(const Holdings& holdings);
  struct Replayed {
    int64_t optimizer_step = 0;  // reached
    bool all = false;
  };
  absl::StatusOr<Replayed> ReplayChanges(int64_t from, bool base_lost);
  int64_t AssignSaveNumber(const LocalCheckpoint& about, Tier tier);
  void ForgetSaving();

  const NodeId& name() const { return self_; }
  absl::Status DoHere(const GroupFrame& frame) { return port_->Do(frame).status(); }
  // Work of all members: own part, then the followers' answers to the call before. Errors of
  // either end both.
  absl::StatusOr<GroupReply> Together(const GroupFrame& frame);
  void Fail();  // nothing works until Configure
  void InterruptAll();
  // ---- Calls to all members of a list, and to this worker's own part. ----
  enum class OnFailure {
    kSetUpAgain,  // nothing works until Configure, and what goes on at members ends
    kReport,
  };
  struct Broadcasting {
    std::vector<NodeId> followers;
    Duration timeout{};  // of their answers; moments once one has failed
    OnFailure on_failure = OnFailure::kSetUpAgain;
    const std::atomic<bool>* interrupted = nullptr;  // of the own part, see Engine::Configure
    bool own_part = true;
  };
  using Replies = std::map<NodeId, GroupReply>;
  using FrameFor = std::function<GroupFrame(const NodeId& member)>;
  static FrameFor ToAll(GroupFrame frame) {
    return [frame = std::move(frame)](const NodeId&) { return frame; };
  }
  // The replies of all; or what has failed first, rather than what was interrupted by it. With
  // kReport for any thread: nothing of the control's own is touched.
  absl::StatusOr<Replies> Broadcast(const FrameFor& frame_for, const Broadcasting& how);
  Duration TransferLimit() const;  // of whole layers that go between members
  // Between two steps.
  absl::Status AllDo(const GroupFrame& frame);
  absl::StatusOr<Replies> AllDo(const GroupFrame& frame, Duration timeout);
  bool HaveAll(const std::set<NodeId>& taken) const;  // those that hold layers have taken copies
  int64_t ModelBytes() const;
  absl::Status ApplyAll(OuterKind kind, OuterTarget target,
                        const std::vector<ShardPlacement>& shards = {});
  absl::Status Carry(const std::vector<ShardPlacement>& shards);
  absl::StatusOr<bool> AddStaged();  // false: nothing was staged, or its memory was needed since
  absl::Status FetchTables();
  // Has all members take copies; which of them have done so.
  absl::StatusOr<std::set<NodeId>> TakeCopies(const GroupFrame& frame);

  IslandPort* const port_;
  const Hooks hooks_;
  NodeId self_ = port_->Self().worker;
  PeerFence fence_;
  bool alone_ = true;
  IslandPlan plan_;
  Holdings holdings_;
  std::vector<ShardPlacement> shards_;          // of the job
  std::map<NodeId, OuterHoldings> outer_held_;  // by all members, when the plan was set up
  bool configured_ = false;
  bool failed_ = false;
  // Of the job that this worker leads or has led. Its leadership is set by Keep; `outer` is what
  // counts of what members keep; `state_broken`: theta_base is the parameters, or some of them.
  IslandHandover known_;
  int64_t last_change_ = 0;
  bool replacing_ = false;  // the parameters were being replaced, and are to be replaced again
  int64_t steps_ = 0;
  int64_t epoch_ = 0;
  int64_t number_ = 0;
  Calls pending_;                     // of the newest step, which has succeeded here
  std::atomic<bool> staged_ = false;  // the devices have all that AddStaged is to add
  std::atomic<bool> interrupted_ = false;

  HeldSaves saves_;                      // of all members, when the plan was set up
  std::set<int64_t> bad_saves_;          // what could not be read
  std::map<Tier, int64_t> whole_saves_;  // the newest in each tier; guarded by save_mutex_
  int64_t last_save_ = 0;                // number of the newest
  struct Numbered {
    LocalCheckpoint about;
    int64_t steps = 0;
    Tier tier = Tier::kDisk;
  };
  std::optional<Numbered> numbered_;  // what last_save_ is of, unless of copies in memory
  int64_t resume_save_ = 0;           // see ResumeFrom
  std::vector<PositionRange> resume_leased_;
  std::optional<std::vector<LoggedStep>> beyond_;  // the devices have it, and these steps
  // What was being set when something failed is not set: what was before can be restored.
  bool change_failed_ = false;
  // From where and how the island comes back to where it was; until it has.
  struct Replay {
    int64_t save = 0;
    int64_t target = 0;  // optimizer step
    std::vector<LoggedChange> changes;
  };
  std::optional<Replay> replay_;
  struct Saving {
    LocalCheckpoint about;
    SavePlan plan;
    std::vector<IslandMember> members;
    std::set<NodeId> done;
    std::string trouble;
  };
  std::mutex save_mutex_;
  std::map<Tier, Saving> saving_;  // guarded by save_mutex_; the newest of each tier
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_CONTROL_CONTROL_H_
