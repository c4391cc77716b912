// One worker's part in an island: its devices under the plan (the engine), its link to the other
// members, and the layers that it sends them. GroupTrainer leads with it, Follower serves with it.
//
// Threads: the peer link's, which must not be delayed; one that sends layers to other members, and
// takes from them what is to be added to its own, while steps go on; and the caller's, one at a
// time, which works the engine. Interrupt is for any thread.

#ifndef ATOLL_WORKER_ISLAND_MEMBER_MEMBER_H_
#define ATOLL_WORKER_ISLAND_MEMBER_MEMBER_H_

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/net/peer/peer_link.h"
#include "worker/collectives/communicators.h"
#include "worker/island/control/port.h"
#include "worker/island/job.h"
#include "worker/island/member/calls.h"
#include "worker/island/member/device_side.h"
#include "worker/island/member/peer_rendezvous.h"
#include "worker/island/member/peer_transport.h"
#include "worker/island/member/saved_tiers.h"
#include "worker/island/member/stamps.h"
#include "worker/island/member/step_log.h"
#include "worker/island/messages/outer_wire.h"
#include "worker/island/messages/wire.h"
#include "worker/island/moves.h"
#include "worker/island/parts.h"
#include "worker/island/tracing.h"
#include "worker/island/work_queue.h"
#include "worker/pipeline/engine.h"
#include "worker/runtime/trainer.h"

namespace atl::worker {

struct GroupOptions {
  PeerLinkOptions link;
  // Makes the worker's devices anew for each job. By index: 0, 1, ...
  std::function<absl::StatusOr<std::vector<LocalDevice>>()> make_devices;
  std::string device_name;  // for display: "cpu"
  DType compute = DType::kFloat32;
  std::string nccl;  // DeviceInfo::nccl of its devices
  NcclFunctions nccl_functions;
  EngineOptions engine;
  DataOptions data;  // how a job's data is read
  // Before anything of a job is read: whether this worker may read all that it names. May be null.
  std::function<absl::Status(const JobSpec&)> check_job;
  // Limit for messages that have come and wait to be received: beyond it they are refused, and the
  // step is abandoned.
  //
  // `atoll show`'s peaks are what devices' backends take. Host memory besides, which plans keep
  // free (coordinator/planning/auxiliary_memory.h): these messages; those on their way out, a copy
  // each until the other end has them (at most PeerLinkOptions::queued_bytes_max a peer);
  // reductions in progress, up to the gradients' bytes; the leader's copies of the model
  // (worker/runtime/island.h); and layers that are sent to new holders, a copy each, while a plan
  // is set up. In a step the first two are the activations and gradients that cross to other
  // workers, at most: the windows and queues are larger, so that they never delay one.
  int64_t transport_bytes_max = int64_t{4} << 30;
  // Of saved states that it may keep in its host's memory, its own part and copies of others'; a
  // save that would need more is not made. 0: any.
  int64_t saves_bytes_max = 0;
  std::string saves_folder;                          // the disk tier of saved states; empty: none
  Duration meet_timeout = std::chrono::seconds(10);  // of all members accepting a plan
  // Of anything that is not a step, of collectives and of the answers to a step; under a plan of
  // long steps these last two wait longer (StepLimit). Of layer state: of its next chunk.
  Duration call_timeout = std::chrono::seconds(60);
  // Of all members having their layers under a new plan, beside what the bytes need (MoveLimit).
  Duration move_timeout = std::chrono::minutes(15);
  // A chunk of a layer that this worker sent has arrived; from the link's thread. May be null.
  std::function<void()> on_transfer_due;
  // Longer than the coordinator takes to detect a failed worker.
  Duration unreachable_after = std::chrono::seconds(8);
};

class GroupMember final : public IslandPort, private PeerHandler {
 public:
  static absl::StatusOr<std::unique_ptr<GroupMember>> Create(GroupOptions options);
  ~GroupMember() override;
  GroupMember(const GroupMember&) = delete;
  GroupMember& operator=(const GroupMember&) = delete;

  const NodeId& name() const { return link_->name(); }
  const std::string& endpoint() const { return link_->endpoint(); }
  const std::vector<std::string>& more_endpoints() const { return link_->more_endpoints(); }
  const GroupOptions& options() const { return options_; }
  PeerLink& link() { return *link_; }
  // Since it was made, to all peers, by edge (peer_link.h).
  std::array<int64_t, kPeerEndpointsMax> EdgeBytesSent() const;

  // ---- The job. What this worker held of another one is forgotten. ----
  // Once `cancelled` (it may be null) says so, what takes long ends with ABORTED.
  absl::StatusOr<JobFacts> Open(const JobSpec& spec, std::function<bool()> cancelled = nullptr);
  void Close();
  const GroupJob* job() const { return job_.get(); }
  const IslandJob* island_job() const override;
  IslandMember Self() const override;
  IslandLimits limits() const override {
    return {options_.meet_timeout, options_.call_timeout, options_.move_timeout};
  }
  int64_t NowUs() const override;
  int devices() const { return engine() == nullptr ? 0 : engine()->devices(); }

  // ---- The plan. ----
  // Speaks under this plan from now on. Under the same one, only meets lost members again.
  absl::Status Join(const PeerFence& fence, const IslandPlan& plan) override;
  absl::Status Meet(const std::vector<NodeId>& workers,
                    const std::atomic<bool>& interrupted) override;
  void Leave() override;
  // Meets these workers so that links can be measured, while this worker is in no island; ends with
  // the next Join. FAILED_PRECONDITION where it is in one. For any thread.
  absl::Status MeetToMeasure(const PeerFence& fence, const std::vector<IslandMember>& members);
  // An attempt at setting the plan up begins, larger than those before: what belongs to them is
  // dropped from now on, and waits for others may succeed again.
  void BeginEpoch(int64_t epoch) override;
  // Sets the devices up, together with all members' whose devices are in the plan. For `cancelled`
  // see Engine::Configure.
  absl::Status Configure(const std::atomic<bool>* cancelled = nullptr);
  int64_t last_number() const override {
    return last_number_;
  }  // of the steps and evaluations begun
  std::vector<HeldLayer> Held();
  // Gets shards from where the moves say; afterwards all layers in the plan have this step, and
  // are those of `save`, if that is not 0.
  absl::Status Fetch(const std::vector<ShardMove>& moves, int64_t optimizer_step, int64_t save = 0,
                     const StampBook::Stamps& stamps = {});
  void DropSurplus();

  // ---- What this worker knows of the island that it led, for whom takes over. ----
  void Keep(v1::Handover kept) override;  // until Close or the next one
  void DropKept() override;
  std::optional<v1::Handover> kept() const;

  // ---- What is exchanged with the parameter servers: what this worker owns of it. ----
  std::shared_ptr<OuterState> outer() const override;  // null: no plan was set up for this job
  OuterHoldings OuterHeld() const;
  // Gets what the order says; it takes the place of what was kept at CommitOuterLayout.
  absl::Status SetOuterLayout(const OuterOrder& order);
  void CommitOuterLayout();
  // The parameters of what this worker owns, for a pseudo-gradient. `shards`, here and below:
  // layers that they do not concern (Concern) are left alone.
  absl::Status ReadForDelta(const std::vector<ShardPlacement>& shards, bool of_snapshot);
  // Elements of all layers that this worker's devices hold, from their owners. Afterwards it has
  // the pulled version of what it keeps copies of. kAdded leaves out copies of a table that cannot
  // be read here: FetchTables, when all members have done so.
  absl::Status ApplyOuter(OuterKind kind, OuterTarget target,
                          const std::vector<ShardPlacement>& shards);
  // The initial weights of the layers on these devices, by the seed or from the job's files.
  absl::Status MakeInitialWeights();
  // The pulled version is theta_base.
  absl::Status FinishOuter(const OuterTag& tag, bool keep_residual,
                           const std::vector<ShardPlacement>& shards, double share);
  absl::Status FetchTables();
  // Of a whole layer, from its owners.
  absl::Status ReadOuterLayer(OuterKind kind, int32_t layer, std::span<float> out);
  // theta_base becomes the parameters of these devices, until PutBack or the next Configure.
  absl::Status PutBaseIn();
  absl::Status PutBack();
  // What other members say of transfers, and an empty call when one is lost; on the link's thread.
  // It must not wait.
  using OnTransfer = std::function<void(const NodeId& from, const v1::TransferCall& call)>;
  void SetOnTransfer(OnTransfer on_transfer);
  IslandPlan plan() const;

  // ---- Saved states (worker/state), between steps. ----
  // Copies the units that it owns. After GoOnSaving it goes on beside what follows: `done` is
  // called on another thread.
  absl::Status Save(KeeperTask task, Keeper::Done done);
  void GoOnSaving(int64_t save);
  std::vector<HeldSave> Saves();  // in memory and on the disk
  // Empty: there is no such tier. What is in the remote one has been saved by any worker.
  absl::StatusOr<std::vector<HeldSave>> SavesIn(Tier tier) override;
  void ForgetSaves(int64_t save, Tier tier);  // older ones
  void DropCopies() override;                 // those in memory
  void StopSaving();                          // `done` of Save is not called any more
  absl::Status GetSaved(const NodeId& from, int64_t save, const LayerShard& shard, Range elements,
                        const ShardParts& out);
  // What this worker has seen happen to the island's state since its saves.
  std::optional<ReplayLog::Changes> ChangesSince(int64_t save) const override {
    return log_.Since(save);
  }
  void Log(const std::function<void(ReplayLog&)>& change) override { log_.Change(change); }

  // ---- Work that all members do together. ----
  // `trace`: TraceOf(outcome) will be requested.
  absl::StatusOr<StepOutcome> Step(int64_t number, const std::vector<PositionRange>& ranges,
                                   double learning_rate, bool trace = false);
  absl::StatusOr<LossSum> Evaluate(int64_t number, int64_t first, int64_t count);
  // Of steps in the present generation; see Engine.
  CommitState Committed();
  absl::Status TakeStep(const StepSums& step);
  // What the devices and messages of the newest step did. Waits a moment for messages that have not
  // arrived.
  MemberTrace TraceOf(const StepOutcome& outcome);

  // ---- Layers: those of this worker's devices, or (`from`) of another's. ----
  // These elements of some parts, each in as many floats.
  absl::Status GetShard(const NodeId& from, const LayerShard& shard, Range elements,
                        const ShardParts& out);
  // `borrowed`: what was there comes back.
  absl::Status SetShard(const LayerShard& shard, const ShardParts& values, bool borrowed = false);
  // Of this worker's devices, between steps; see Engine::TakeSnapshot.
  absl::StatusOr<bool> TakeSnapshot(bool moments);
  // One shard of the newest snapshot, of these devices or of another worker's. For any thread:
  // steps may go on meanwhile.
  absl::Status GetSnapshot(const NodeId& from, const LayerShard& shard, Range elements,
                           const ShardParts& out);
  // What is to be added to the parameters that this worker's devices hold, likewise; see
  // Engine::PrepareAddition.
  absl::StatusOr<bool> PrepareAddition();
  absl::Status SetAddition(const LayerShard& shard, std::span<const float> values);
  absl::Status Add();
  absl::Status SetOptimizerSteps(int64_t steps);

  // Ends what this worker's devices do, soon.
  void InterruptWork(const std::string& reason) override;
  // And every wait for others.
  void Interrupt(const std::string& reason);

  // ---- Calls. ----
  // Sends a frame's body; the reply is awaited with Await. An error: the call is not under way.
  absl::StatusOr<CallId> Call(const NodeId& to, v1::GroupFrame frame) override;
  absl::StatusOr<v1::GroupReply> Await(CallId id, Duration timeout) override;
  // Does here what a call requests: all but get_layer and what is no call.
  absl::StatusOr<v1::GroupReply> Do(const v1::GroupFrame& call,
                                    const std::atomic<bool>* interrupted = nullptr) override;
  // What the newest step that Do has made came to; the loss of the newest step or evaluation.
  const StepOutcome& newest_step() const { return newest_step_; }
  const LossSum& newest_loss() const { return newest_loss_; }
  // Of what the present plan's devices do together.
  Duration StepTimeout() const override;
  void Tell(const NodeId& to, v1::GroupFrame frame) override;
  // Sends a shard's parts in chunks that belong to a call. Never waits: of what is larger than an
  // eighth of the link's queue the first chunks leave, and each that arrives lets others follow. An
  // error: none does. Later failures show at the receiver, as missing chunks.
  absl::Status SendParts(const NodeId& to, CallId call,
                         const std::shared_ptr<const OwnedParts>& parts);
  // Requests its time; the answer is for clocks().
  absl::StatusOr<CallId> AskClock(const NodeId& to);
  ClockBook& clocks() { return clocks_; }

  // ---- Hooks, set before Join, called on the link's thread. They must not set others. ----
  struct Hooks {
    // A call that requests work of this worker: all but get_layer. Replied to with Reply.
    std::function<void(const NodeId& from, v1::GroupFrame frame)> serve;
    std::function<void(const NodeId& peer, const std::string& reason)> peer_lost;
    // A reply that is an error has come.
    std::function<void(const NodeId& from, const std::string& error)> call_failed;
    // What this worker requested of a member has been saved, or not.
    std::function<void(const NodeId& from, const v1::SaveDone& done)> save_done;
  };
  // No call of the earlier ones is under way when it returns.
  void SetHooks(Hooks hooks);
  void Reply(const NodeId& to, CallId call, v1::GroupReply reply) override;

  // ---- What was seen under the present plan, if it is of several workers or of several devices.
  // For any thread. ----
  std::vector<DeviceWork> Work() const;          // of this worker's devices, once there is a window
  std::vector<LinkFailure> Unreachable() const;  // members to whom there is no connection
  std::vector<GroupSums> Sums() const;           // of these devices with others'
  std::vector<RoundTrip> RoundTrips() const;     // to the other members

  int64_t epoch() const override { return epoch_; }
  std::vector<StageLinkCounters> StageLinks() const;
  // Messages, or chunks of them, that this worker has sent in their turn on a shared line.
  int64_t turns_taken() const { return transport_.turns_taken(); }

 private:
  // Work of transfers_: sends a layer.
  struct OutgoingTransfer {
    NodeId to;
    CallId call = 0;
    v1::LayerCall what;
    int64_t interrupts = 0;  // there had been, when it was requested
  };

  explicit GroupMember(GroupOptions options);

  absl::Status Admit(const NodeId& from, PeerChannel channel, absl::string_view header,
                     int64_t payload_bytes) override;
  void OnMessage(PeerDelivery delivery) override;
  void OnPeerLost(const NodeId& peer, const std::string& reason) override;
  void OnFrame(const PeerFence& fence, const NodeId& from, v1::GroupFrame frame);
  // Whether to stop: perhaps of an attempt that this worker has not begun yet.
  bool TakeInterrupt(const PeerFence& fence, int64_t epoch);

  absl::Status SendFrame(const NodeId& to, const v1::GroupFrame& frame);
  // A plan of this worker alone.
  void JoinAlone(const PeerFence& fence, const IslandPlan& plan);
  void Stamp(const StampBook::Stamps& stamps);  // of the plan's layers
  absl::Status DoCall(const v1::GroupFrame& call, const std::atomic<bool>* interrupted,
                      v1::GroupReply* reply);
  absl::Status DoStep(const v1::StepCall& step, v1::GroupReply* reply);
  absl::Status DoOuter(const v1::OuterCall& call);
  absl::Status DoSave(const v1::SaveCall& call);
  absl::Status TakeOver(v1::GroupReply* reply) const;
  absl::Status TellAll(v1::GroupFrame frame);
  // What has come whole stays, at that step: a fetch that is broken off goes on where it was.
  absl::Status FetchOne(const ShardMove& move, int64_t optimizer_step);
  absl::Status SetState(const LayerShard& shard, int64_t optimizer_step, const ShardParts& values);
  absl::Status FetchFrom(const NodeId& from, const LayerShard& shard, Range elements,
                         v1::LayerCall what, const ShardParts& out);
  absl::Status SendSnapshot(const OutgoingTransfer& outgoing);
  absl::StatusOr<bool> SendSaved(const OutgoingTransfer& outgoing);
  // What quantised pushes owed at a save.
  int64_t KeptResiduals() const;
  absl::Status SaveResiduals(KeeperTask* task);
  absl::Status RestoreResiduals(int64_t save, OuterState& next);
  absl::Status FetchResidualFrom(const NodeId& from, int64_t save, int32_t layer,
                                 ElementRange range, std::span<float> out);
  absl::StatusOr<bool> SendSavedResidual(const OutgoingTransfer& outgoing);
  absl::Status KeepCopies(const KeeperTask& task, const Cancelled& cancelled);
  Cancelled UntilInterrupted() const;  // from now on
  JobId JobOfFence() const;
  absl::Status AwaitChunks(const StateInbox::Key& key, const ShardParts& parts);
  bool AddTransfer(OutgoingTransfer outgoing);  // false: there are too many
  void AnswerTransfer(const OutgoingTransfer& outgoing);
  absl::Status SendTransfer(const OutgoingTransfer& outgoing);
  absl::Status SendOuter(const OutgoingTransfer& outgoing);
  absl::Status FetchOuter(const OuterSource& source, const std::shared_ptr<OuterState>& before,
                          OuterState& next);
  absl::Status FetchOuterFrom(const NodeId& from, OuterKind kind, int32_t layer, ElementRange range,
                              std::span<float> out);
  absl::Status ReadParameters(int32_t layer, ElementRange range, bool of_snapshot,
                              std::span<float> out);
  absl::Status SetDevices(const HeldLayer& held, OuterTarget target, std::span<const float> values);
  std::vector<HeldLayer> HeldShards() const;  // those of the plan
  using ReadLayer = std::function<absl::Status(int32_t layer, std::span<float> out)>;
  // All layers of the plan on these devices, of whole layers as they are read.
  absl::Status SetHeld(OuterTarget target, const std::vector<ShardPlacement>& shards,
                       const ReadLayer& read_layer);
  absl::Status DoDuringSteps(const v1::OuterCall& call);
  bool DoLater(const NodeId& from, v1::GroupFrame& frame);
  bool Serve(const NodeId& from, v1::GroupFrame& frame);
  void OnSaveFrame(const NodeId& from, const v1::GroupFrame& frame);
  void ForgetSeen();  // with state_mutex_ held
  std::shared_ptr<Engine> engine() const;
  std::shared_ptr<Engine> Begin(int64_t number);  // null: no job is open

  const GroupOptions options_;
  std::unique_ptr<GroupJob> job_;
  IslandJob island_job_;  // of job_
  PeerTransport transport_;
  PeerRendezvous rendezvous_;
  PeerBlocks blocks_;
  Calls calls_;
  ClockBook clocks_;
  StateInbox inbox_;
  std::atomic<int64_t> epoch_ = 0;
  std::atomic<int64_t> interrupted_epoch_ = -1;  // newest that the leader has abandoned
  std::atomic<int64_t> last_number_ = 0;
  std::atomic<int64_t> interrupts_ = 0;  // calls of Interrupt

  std::mutex meeting_mutex_;  // whom the link speaks with; before state_mutex_
  mutable std::mutex state_mutex_;
  std::shared_ptr<Engine> engine_;  // guarded by state_mutex_
  // An engine that refused a plan still works with the older ones.
  std::shared_ptr<CommunicatorFactory> older_, communicators_;
  std::unique_ptr<DeviceSide> device_side_;  // of the job; null: the host can touch all memory
  PeerFence fence_;                          // guarded by state_mutex_
  std::optional<v1::Handover> kept_;         // guarded by state_mutex_
  std::shared_ptr<OuterState> outer_;        // guarded by state_mutex_
  std::shared_ptr<OuterState> next_outer_;   // guarded by state_mutex_
  std::vector<HeldLayer> held_shards_;       // once each, by layer; guarded by state_mutex_
  StampBook stamps_;                         // guarded by state_mutex_
  IslandPlan plan_;                          // guarded by state_mutex_
  PeerFence stepped_;                        // of the newest step; guarded by state_mutex_
  std::vector<DeviceWork> work_;             // guarded by state_mutex_
  std::vector<GroupSums> sums_;              // guarded by state_mutex_

  std::mutex hooks_mutex_;  // held while one is called; before state_mutex_
  Hooks hooks_;             // guarded by hooks_mutex_
  OnTransfer on_transfer_;  // guarded by hooks_mutex_
  std::vector<std::pair<LayerShard, std::vector<float>>> put_aside_;  // by PutBaseIn

  std::mutex engine_mutex_;  // one caller of the engine at a time
  // Of the thread that calls Do.
  StepOutcome newest_step_;
  int64_t traced_number_ = -1;  // of newest_step_, if it was to be traced
  LossSum newest_loss_;

  SavedTiers saved_;
  StepLog log_;
  std::array<std::unique_ptr<Keeper>, kTiers> keepers_;
  WorkQueue transfers_;             // answers requests for layers
  WorkQueue outer_work_;            // makes pseudo-gradients, brings versions to devices
  std::unique_ptr<PeerLink> link_;  // last, after all that its thread calls
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_MEMBER_MEMBER_H_
