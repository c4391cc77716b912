// The trainer of an island of several workers, at its leader: its own devices, and the followers'
// by calls over the peer link. Without a plan it trains on this worker's first device alone, from
// Prepare on.
//
// Whatever fails leaves the island to be configured again, with the same plan or a new one:
// Configure finds out which steps were taken and moves layers.
//
// Threads: as Trainer says. A member that is lost ends what goes on within moments.

#ifndef ATOLL_WORKER_ISLAND_GROUP_TRAINER_H_
#define ATOLL_WORKER_ISLAND_GROUP_TRAINER_H_

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "worker/core/actions.h"
#include "worker/island/member.h"
#include "worker/runtime/trainer.h"
#include "worker/state/save_plan.h"

namespace atl::worker {

class GroupTrainer final : public Trainer {
 public:
  // What the adapters of all members see, after a step and a little later; on the caller's thread.
  using OnBoundaries = std::function<void(const BoundariesSeen&)>;

  // The memory of all members' devices, likewise, whenever it is another than was said last.
  using OnMemory = std::function<void(const MemorySeen&)>;
  // Waits until the member's devices serve nobody else any more.
  using AwaitFree = std::function<absl::Status()>;
  // Configure: the members may leave the plan before; on its thread.
  using OnSettled = std::function<void(const Settled&)>;

  // `member` outlives it and serves nobody else while this leads. `on_traced` answers Trace, on
  // the caller's thread.
  explicit GroupTrainer(GroupMember* member, OnBoundaries on_boundaries = nullptr,
                        OnMemory on_memory = nullptr, StepTracer::OnTraced on_traced = nullptr,
                        AwaitFree await_free = nullptr, OnSettled on_settled = nullptr)
      : member_(member),
        on_boundaries_(std::move(on_boundaries)),
        on_memory_(std::move(on_memory)),
        tracer_(std::move(on_traced)),
        await_free_(std::move(await_free)),
        on_settled_(std::move(on_settled)) {}
  ~GroupTrainer() override;

  std::string Name() const override;
  absl::StatusOr<JobFacts> Prepare(const JobSpec& spec) override;
  std::string Lacks() const override { return lacks_; }
  void Release() override;
  absl::Status InitialWeights() override;
  absl::StatusOr<MeanLoss> Step(const std::vector<PositionRange>& ranges,
                                double learning_rate) override;
  absl::StatusOr<int64_t> CountMasked(const std::vector<PositionRange>& ranges) override;
  absl::StatusOr<MeanLoss> Validate(int64_t sequences, int set) override;

  std::shared_ptr<OuterState> outer() const override { return member_->outer(); }
  // Members whose devices have room for it snapshot what they hold, and read it while steps go on;
  // if one has none, all read it at once.
  absl::StatusOr<Completion> CaptureDelta(const worker::CaptureDelta& command) override;
  // Where the devices of all members have room for it.
  absl::StatusOr<Completion> StageCarry() override;
  absl::Status AdoptPulled(const worker::AdoptPulled& command) override;
  absl::StatusOr<std::vector<MeanLoss>> ValidateBase(int64_t sequences, int sets) override;
  absl::Status GatherOuter(OuterKind kind, int layer, std::span<float> out) override;

  // These are of a worker alone: the layers of an island of several belong to its members.
  absl::Status GetParameters(int layer, std::span<float> out) override;
  absl::Status SetParameters(int layer, std::span<const float> values) override;
  absl::Status GetMoments(int layer, std::span<float> first, std::span<float> second) override;
  absl::Status SetMoments(int layer, std::span<const float> first,
                          std::span<const float> second) override;
  int64_t optimizer_steps() const override { return steps_; }
  absl::Status SetOptimizerSteps(int64_t steps) override;

  absl::StatusOr<PlanTaken> Configure(const JobId& job, Generation generation,
                                      const IslandPlan& plan,
                                      const std::vector<ShardPlacement>& shards = {},
                                      const NodeId& before = "",
                                      Leadership* known = nullptr) override;
  void Keep(Leadership known) override;

  // A save is whole, or never will be, and why.
  struct SaveOutcome {
    int64_t save = 0;
    Tier tier = Tier::kMemory;
    SavedState state;  // no units: it is not whole
    std::string trouble;
  };
  using OnSaved = std::function<void(const SaveOutcome&)>;
  // Called on any thread. Before the first Configure.
  void SetOnSaved(OnSaved on_saved) { on_saved_ = std::move(on_saved); }
  absl::StatusOr<bool> SaveState(const LocalCheckpoint& about, Tier tier) override;
  void ResumeFrom(int64_t save) override { resume_save_ = save; }
  // Hears the followers' answers to the step before: whoever took it has taken it then.
  absl::Status Settle();
  // What each member's devices hold of the plan.
  const Holdings& holdings() const { return holdings_; }
  void Interrupt(const std::string& reason) override;
  void ForgetInterrupts() override { interrupted_ = false; }

  // Records the next step that begins, on all members; or says why the one under way failed. For
  // any thread.
  void Trace(const TraceNextStep& request) { tracer_.Ask(request); }

 private:
  // How long followers have to say what became of what has failed here.
  static constexpr Duration kEndTimeout = std::chrono::seconds(5);

  using Calls = std::vector<std::pair<NodeId, CallId>>;

  // For what this worker does alone: whether Interrupt was called.
  std::function<bool()> Cancelled() const {
    return [this] { return interrupted_.load(); };
  }
  std::vector<NodeId> Followers() const;
  absl::Status ConfigureAlone();
  IslandPlan PlanOfOne() const;  // of a worker without a plan
  // Whether a plan may need less of a device than that.
  bool PlanMayNeedLess(const JobSpec& spec) const;
  absl::Status SetUp(Holdings* holdings);
  absl::Status AgreeOnStep();
  absl::Status Inherit(const NodeId& before, Leadership* inherited);
  std::map<NodeId, OuterOrder> PlanOuter(std::string* lost) const;
  absl::Status MoveOuter(std::string* lost);
  absl::Status FetchAll(LayerMoves& moves, int64_t save);
  absl::StatusOr<PlanTaken> MoveState(const Holdings& holdings);
  LayerMoves PlanMovesOrRestore(const Holdings& holdings);
  void LookIntoRemote(const Holdings& holdings);
  bool PlanReplay(int64_t save, int64_t optimizer_step);
  LayerMoves PlanGoingBack(const Holdings& holdings, LayerMoves otherwise);
  void NoteWholeSaves(const Holdings& holdings);
  struct Replayed {
    int64_t optimizer_step = 0;  // reached
    bool all = false;
  };
  absl::StatusOr<Replayed> ReplayChanges(int64_t from, bool base_lost);
  absl::Status StepAgain(const LoggedStep& step);
  void OnSaveDone(const NodeId& from, const v1::SaveDone& done);
  int64_t NumberOf(const LocalCheckpoint& about, Tier tier);
  void ForgetSaving();

  // Sends the call to all followers.
  absl::StatusOr<Calls> CallAll(const v1::GroupFrame& frame);
  absl::Status AwaitAll(const Calls& calls, Duration timeout);
  void Hear(const NodeId& from, const v1::GroupReply& reply);
  // Work of all members: own part, then the followers' answers. Their errors end ours at once.
  template <typename Work>
  auto Together(const v1::GroupFrame& frame, const Work& work) -> decltype(work());
  void Fail();  // nothing works until Configure
  void InterruptAll();

  // What all members do, between two steps, or beside them; own part on this thread.
  absl::Status AllDo(const v1::GroupFrame& frame, const std::function<absl::Status()>& own);
  absl::Status AllDoBeside(const std::vector<NodeId>& followers, const v1::GroupFrame& frame,
                           const std::function<absl::Status()>& own) const;
  bool HaveAll(const std::set<NodeId>& taken) const;  // those that hold layers have taken copies
  int64_t ModelBytes() const;
  absl::Status ApplyAll(OuterKind kind, OuterTarget target);
  absl::Status Carry();
  absl::StatusOr<bool> AddStaged();  // false: nothing was staged, or its memory was needed since
  absl::Status FetchTables();
  absl::Status TakeBaseOut();

  // Has all members take copies, as this one does by `own`; who has done so.
  absl::StatusOr<std::set<NodeId>> TakeCopies(const v1::GroupFrame& frame,
                                              const std::function<absl::StatusOr<bool>()>& own);
  // Whole layers of a worker alone.
  absl::Status ReadyAlone();
  absl::Status GetParts(int layer, const ShardParts& out);
  absl::Status SetParts(int layer, const ShardParts& values);

  absl::Status Ready();
  void SayBoundaries();
  void SayMemory();

  // Of the step that has just been made, from all members.
  absl::StatusOr<StepTrace> CollectTrace(Instant begun, int64_t sequences,
                                         const StepOutcome& outcome);
  absl::StatusOr<std::map<NodeId, ClockOffset>> AskClocks();

  GroupMember* const member_;
  const OnBoundaries on_boundaries_;
  const OnMemory on_memory_;
  StepTracer tracer_;
  const AwaitFree await_free_;
  const OnSettled on_settled_;
  PeerFence fence_;
  bool alone_ = true;  // no plan was given
  IslandPlan plan_;
  Holdings holdings_;
  std::vector<ShardPlacement> shards_;          // of the job
  std::map<NodeId, OuterHoldings> outer_held_;  // by all members, when the plan was set up
  OuterTag outer_expected_;                     // of what counts of it
  bool base_is_in_ = false;                     // theta_base is the parameters, or some of them
  bool configured_ = false;
  bool failed_ = false;
  std::string broken_;  // why the devices' state counts no more, whatever steps they say
  std::optional<int64_t> known_steps_;  // before the newest step; none: we have not led this job
  bool step_tried_ = false;
  std::string lacks_;
  int64_t steps_ = 0;
  int64_t epoch_ = 0;
  int64_t number_ = 0;                           // of the newest step or evaluation
  Calls pending_;                                // of the newest step, which has succeeded here
  std::map<NodeId, BoundariesSeen> boundaries_;  // by member, of the newest step heard of
  BoundariesSeen said_;                          // the newest that on_boundaries_ was given
  std::map<NodeId, std::vector<DeviceMemoryState>> memory_;  // likewise
  MemorySeen memory_said_;
  std::atomic<bool> staged_ = false;  // the devices have all that AddStaged is to add
  std::atomic<bool> interrupted_ = false;

  OnSaved on_saved_;
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
  // What was being set when something failed is not set: there is a way back to what was before.
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

#endif  // ATOLL_WORKER_ISLAND_GROUP_TRAINER_H_
