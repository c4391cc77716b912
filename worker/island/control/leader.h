// The leader of an island: takes the core's trainer commands, and posts their events. It takes the
// island through plans, steps, exchanges with the parameter servers, saves and failures, by calls
// to all members, this worker's own part included. It holds a few kilobytes that every member can
// rebuild; what it has of devices, links, disks and threads is the port. Without a plan it trains
// on this worker's first device alone, from Prepare on.
//
// Fault tolerance: every failure has one recovery path: Reconfigure, which interrupts, agrees on
// the newest step, sets the plan up again, collects the holdings of all members, and moves layers.
// A step counts if all layers are held at the step after it; else it is replayed; else the state is
// lost, or restored from a save and brought to where it was.
//
// Commands are done one after the other, on a lane of their own. Two things are done on lanes of
// their own while steps go on: a captured pseudo-gradient is made of a copy of its state, and what
// a pulled version is to add to the parameters is brought to the devices. Every command but
// TrainStep waits for them first. (So do saves, on members' threads: worker/state.)
//
// No time, randomness, thread or network of its own: the port has them, and tests/sim plays the
// leader with a port in virtual time.
//
// Threads: Enqueue, Interrupt, Stage, CancelStaging, staging, queued and Trace are for any thread,
// and never wait. Everything else is for who knows that no command is under way.

#ifndef ATOLL_WORKER_ISLAND_CONTROL_LEADER_H_
#define ATOLL_WORKER_ISLAND_CONTROL_LEADER_H_

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "worker/core/actions.h"
#include "worker/island/control/port.h"
#include "worker/island/messages/wire.h"
#include "worker/island/tracing.h"
#include "worker/state/save_plan.h"
#include "worker/state/state_transfer.h"

namespace atl::worker {

struct LeaderOptions {
  // For measurements on one machine: every step is computed as usual, and then lasts so long, by
  // sleeping. Steps that mostly sleep let islands share cores without slowing each other. Only
  // timing changes.
  Duration emulate_step{0};
  // Memory of the host for the model; 0: no limit. Prepare refuses what needs more.
  int64_t host_bytes = 0;
  // The devices' copies of the model are in that memory, too. Otherwise devices look after
  // themselves.
  bool devices_on_host = true;
};

class IslandLeader {
 public:
  // Called on any thread, and must not wait; all but `post` may be null.
  struct Hooks {
    std::function<void(Event)> post;
    // Waits until the member's devices serve no other leader any more; may wait.
    std::function<absl::Status()> await_free = nullptr;
    // Deletes what is on the disk of a job that has been removed.
    std::function<void(const JobId&)> remove = nullptr;
    // Transfers ever begun, and those that go on now.
    std::function<int64_t()> transfers_started = nullptr;
    std::function<int64_t()> transfers_running = nullptr;
    // Returns the profiles of this worker's devices for the job that was just opened, where it is
    // wanted: in any case if the job `needs_plan` to fit. What is `cancelled` ends soon, with what
    // is known by then. May wait.
    std::function<std::vector<DeviceProfile>(const JobSpec&, const JobFacts&, bool needs_plan,
                                             const std::atomic<bool>& cancelled)>
        profiles = nullptr;
  };

  // `port` outlives it, and serves no other leader while this leads.
  IslandLeader(IslandPort* port, LeaderOptions options, Hooks hooks);
  // Ends soon what goes on, and waits for it; commands behind it are dropped.
  ~IslandLeader();
  IslandLeader(const IslandLeader&) = delete;
  IslandLeader& operator=(const IslandLeader&) = delete;

  // A trainer command or ReleaseJob. The core has at most one command outstanding, and releases.
  void Enqueue(Action command);
  // Ends soon what was enqueued until now and works with several devices, begun or not.
  void Interrupt(const std::string& reason);
  // The pull is complete: posts `pulled`, but first, where the devices have memory of their own and
  // room, brings to them what adopting it would add to the parameters, during the steps that
  // follow. Nothing is done or posted if CancelStaging is called before it begins, and if it is
  // called meanwhile, a Tick is posted when the layer on its way, the last one, is there.
  void Stage(const PullDone& pulled);
  // Cancels the staging: the pulled version is not read any more until AdoptPulled, but by what
  // goes on of the staging.
  void CancelStaging();
  bool staging() const { return stage_.going; }
  size_t queued() const;  // commands that wait for the one under way
  // Records the next step that begins, on all members; or reports why the one under way failed.
  void Trace(const TraceNextStep& request) { tracer_.Request(request); }

  // ---- What it knows. ----
  const IslandPlan& plan() const { return plan_; }
  const Holdings& holdings() const { return holdings_; }  // when the plan was set up
  int64_t steps() const { return steps_; }                // of the optimizer
  // Receives the followers' answers to the step before: it is taken everywhere then.
  absl::Status Drain();
  // Loss of the parameters as they are, over so many sequences of a set (IslandPort).
  absl::StatusOr<LossSum> Evaluate(int set, int64_t sequences);
  // Evaluates the parameters as they are, in what the command has.
  absl::StatusOr<ValidationDone> EvaluateAll(const Validate& command);

 private:
  absl::StatusOr<ValidationDone> ScoreTask(const Validate& command);

  // ---- The queue. ----
  struct Staging {
    PullDone pulled;
    int64_t ticket = 0;
  };
  struct Queued {
    std::variant<Action, Staging> task;
    std::optional<std::string> interrupted;
  };
  // Work that is done in parallel to steps: its lane does one thing at a time. It uses the port's
  // outer(): pseudo-gradients are written; theta_base, and for staging the pulled version and the
  // pseudo-gradient, are read.
  struct Beside {
    std::unique_ptr<WorkLane> lane;
    std::atomic<bool> going = false, cancelled = false;
  };
  static constexpr size_t kQueueMax = 256;
  void Push(std::variant<Action, Staging> task);  // with mutex_ held
  void DoNext();
  void AwaitBeside();
  void StagePulled(const Staging& staging);

  // ---- Commands; what they return is posted, or why they failed. ----
  absl::StatusOr<Event> Do(const Prepare& command);
  absl::StatusOr<Event> Do(const Reconfigure& command);
  absl::StatusOr<Event> Do(const MakeInitialWeights& command);
  absl::StatusOr<Event> Do(const TrainStep& command);
  absl::StatusOr<Event> Do(const AdoptPulled& command);
  absl::StatusOr<Event> Do(const Validate& command);
  absl::StatusOr<Event> Do(const Handover& command);
  absl::StatusOr<Event> Do(const SaveState& command);
  absl::Status Do(const CaptureDelta& command);  // posts its events
  absl::Status Do(const ReleaseJob& command);    // has none
  absl::StatusOr<Prepared> Open(const Prepare& command);
  absl::StatusOr<std::string> OpenAlone();  // what does not fit without a plan; empty: all does
  void Release();
  absl::Status CheckMemory(const IslandPlan* plan) const;
  bool PlanMayNeedLess() const;

  // ---- The plan. ----
  absl::Status ConfigureAlone();
  absl::StatusOr<Reconfigured> Configure(const Reconfigure& command);
  IslandPlan MakeSingleDevicePlan() const;
  absl::Status SetUp(Holdings* holdings);
  absl::StatusOr<ConfigureCall> AgreeOnStep();  // what is to be called next
  absl::StatusOr<Leadership> TakeOverState(const NodeId& before);
  std::map<NodeId, OuterLayoutCall> PlanOuter(std::string* lost) const;
  absl::Status TransferOuterState(std::string* lost);
  absl::Status FetchAll(StateTransferPlan& transfers, int64_t save, const StateName& state);
  bool KnowsSteps() const { return known_.known_steps >= 0; }  // else it has not led this job
  StateStamp NewStamp() {
    last_change_ = std::max(last_change_ + 1, port_->NowUs());
    return {fence_.generation, last_change_};
  }
  std::vector<StateName> StatesWanted(const Holdings& holdings) const;
  // Has all members do what changes their parameters.
  absl::Status ChangeAll(GroupFrame frame);
  absl::StatusOr<Reconfigured> TransferState(const Holdings& holdings);
  // Adds to the report what is nowhere of the wanted base and contribution.
  void NoteOuterLost(const OuterTag& wanted, Reconfigured* taken) const;
  StateTransferPlan PlanTransferOrRestore(const Holdings& holdings);
  void AddRemoteSaves(const Holdings& holdings);
  bool PlanReplay(int64_t save, int64_t optimizer_step);
  std::optional<std::vector<LoggedStep>> StepsSinceResumed() const;
  std::optional<StateTransferPlan> PlanFromDevices(const Holdings& holdings);
  std::optional<StateTransferPlan> PlanFromLaterSave(const Holdings& holdings);
  StateTransferPlan PlanGoingBack(const Holdings& holdings, StateTransferPlan otherwise);
  void NoteWholeSaves(const Holdings& holdings);
  struct Replayed {
    int64_t optimizer_step = 0;  // reached
    bool all = false;
  };
  absl::StatusOr<Replayed> ReplayChanges(int64_t from);
  int64_t AssignSaveNumber(const LocalCheckpoint& about, Tier tier);
  void OnSaveDone(const NodeId& from, const SaveDone& done);
  void ForgetSaving();

  // ---- Calls to all members of a list, and to this worker's own part. ----
  // How long followers have to answer after a failure here.
  static constexpr Duration kEndTimeout = std::chrono::seconds(5);
  const NodeId& name() const { return self_; }
  absl::Status Ready() const;
  std::vector<NodeId> Followers() const;
  using Calls = std::vector<std::pair<NodeId, CallId>>;
  absl::StatusOr<Calls> CallAll(const GroupFrame& frame);
  absl::Status AwaitAll(const Calls& calls, Duration timeout);
  // Work of all members: own part, then the followers' answers to the call before. Errors of
  // either end both.
  absl::StatusOr<GroupReply> Together(const GroupFrame& frame);
  void Fail();  // nothing works until Reconfigure
  void InterruptAll();
  enum class OnFailure {
    kSetUpAgain,  // nothing works until Reconfigure, and what goes on at members ends
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
  // kReport for any thread: nothing of the leader's own is touched.
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
  // The pulled moments become the devices'.
  absl::Status ApplyMoments(StateStamp changed);
  absl::Status Adopt(const AdoptPulled& command);
  // Returns what brings the addition to the devices; null: there is no room, or no bus to cross,
  // and it would be no quicker so. Run once, or destroyed, on the staging's lane.
  absl::StatusOr<std::function<void()>> PrepareStaging();
  absl::StatusOr<bool> AddStaged();  // false: nothing was staged, or its memory was needed since
  absl::Status FetchTables();
  // Has all members take copies; which of them have done so.
  absl::StatusOr<std::set<NodeId>> TakeCopies(const GroupFrame& frame);
  absl::Status SetOptimizerSteps(int64_t steps);
  // Calls it while the parameters are what is put in.
  absl::Status EvaluateWith(const PutBaseInCall& put_in,
                            const std::function<absl::Status()>& evaluate);
  // Sequences at positions of validation, or of tasks behind them.
  absl::StatusOr<LossSum> EvaluateAt(int64_t first, int64_t count, std::vector<double> references);
  // Returns the references that a step or evaluation on these sequences needs: of a job of pairs,
  // those that are kept here, or found now by all members; else none.
  absl::StatusOr<std::vector<double>> FindReferences(const ReferenceCall& call,
                                                     const std::vector<PositionRange>& ahead);
  absl::Status CallForReferences(ReferenceCall call);
  // Finds those of all validation, before theta_base is put in for it.
  absl::Status FindValidationReferences();

  // ---- What members report of steps (leader_reports.cc). ----
  void NoteReply(const NodeId& from, const GroupReply& reply);
  void ReportStageLinks();
  void ReportMemory();
  absl::StatusOr<StepTrace> CollectTrace(Instant begun, int64_t sequences);
  absl::StatusOr<std::map<NodeId, ClockOffset>> MeasureClocks();

  IslandPort* const port_;
  const LeaderOptions options_;
  const Hooks hooks_;
  NodeId self_ = port_->Self().worker;

  // ---- The job. ----
  JobId job_;
  JobSpec spec_;
  JobFacts facts_;
  bool fits_ = false;     // it has been seen that the host has room
  bool stepped_ = false;  // since the last adoption or capture

  // ---- The island. ----
  PeerFence fence_;
  bool alone_ = true;  // no plan was given
  IslandPlan plan_;
  Holdings holdings_;
  std::vector<ShardPlacement> shards_;          // of the job
  std::map<NodeId, OuterHoldings> outer_held_;  // by all members, when the plan was set up
  bool configured_ = false;
  bool failed_ = false;
  // Knowledge about the job that this worker leads or has led. Its leadership is set by Handover;
  // `outer` is what counts of what members keep; `state_broken`: theta_base is the parameters, or
  // some of them.
  IslandHandover known_;
  int64_t last_change_ = 0;
  bool replacing_ = false;  // the parameters were being replaced, and are to be replaced again
  int64_t steps_ = 0;
  int64_t epoch_ = 0;
  int64_t number_ = 0;                // of the newest step or evaluation
  Calls pending_;                     // of the newest step, which has succeeded here
  std::atomic<bool> staged_ = false;  // the devices have all that AddStaged is to add

  // ---- Saves. ----
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
  int64_t resume_save_ = 0;           // of the newest Reconfigure, until it has succeeded
  std::vector<PositionRange> resume_leased_;
  // The devices, or a later save, have it and these steps.
  std::optional<std::vector<LoggedStep>> beyond_;
  Version committed_ = kNoVersion;  // of the newest Reconfigure
  // True after a failed change: what was being set is not set, and what was before can be restored.
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

  // ---- Reports. ----
  StepTracer tracer_;
  std::map<NodeId, StageLinksSeen> stage_links_;  // by member, of the newest reported step
  StageLinksSeen said_;                           // the newest that was posted
  std::map<NodeId, std::vector<DeviceMemoryState>> memory_;  // likewise
  MemorySeen memory_said_;

  // ---- Threads. ----
  mutable std::mutex mutex_;
  std::deque<Queued> queue_;               // guarded by mutex_
  int64_t stagings_cancelled_ = 0;         // guarded by mutex_
  std::atomic<bool> interrupted_ = false;  // the command under way
  Beside capture_, stage_;
  std::unique_ptr<WorkLane> commands_;  // last: it uses all of the above
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_CONTROL_LEADER_H_
