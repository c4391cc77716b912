// One worker's part in an island: its devices under the plan (the engine), its link to the other
// members, and what each call makes it do. IslandLeader leads with it, Follower serves with it.
//
// Its parts have interfaces of their own: calls to other members (GroupCalls), layers
// (MemberLayers), saved states (SavedStates) and the exchange with the parameter servers
// (OuterExchange). What they share is a MemberState, whose header has the order of locks.
//
// Threads: the peer link's, which must not be delayed; one that sends layers to other members, and
// one that takes from them what is to be added to its own, while steps go on; those of saves; and
// the caller's, one at a time, which works the engine. Interrupt is for any thread.

#ifndef ATOLL_WORKER_ISLAND_MEMBER_MEMBER_H_
#define ATOLL_WORKER_ISLAND_MEMBER_MEMBER_H_

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/net/peer/peer_link.h"
#include "worker/collectives/communicators.h"
#include "worker/data/read_ahead.h"
#include "worker/island/control/port.h"
#include "worker/island/member/device_side.h"
#include "worker/island/member/group_calls.h"
#include "worker/island/member/member_layers.h"
#include "worker/island/member/member_state.h"
#include "worker/island/member/outer_exchange.h"
#include "worker/island/member/peer_transport.h"
#include "worker/island/member/saved_states.h"
#include "worker/island/member/saved_tiers.h"
#include "worker/island/messages/wire.h"
#include "worker/island/tracing.h"
#include "worker/pipeline/engine.h"
#include "worker/work_queue.h"

namespace atl::worker {

struct GroupOptions {
  PeerLinkOptions link;
  // Makes the worker's devices anew for each job. By index: 0, 1, ...
  std::function<absl::StatusOr<std::vector<LocalDevice>>()> make_devices;
  std::string device_name;  // for display: "cpu"
  DType compute = DType::kFloat32;
  NcclFunctions nccl_functions;
  EngineOptions engine;
  DataOptions data;  // how a job's data is read
  // Before anything of a job is read: whether this worker may read all that it names. May be null.
  std::function<absl::Status(const JobSpec&)> check_job;
  // Limit for messages that have come and wait to be received: beyond it they are refused, and the
  // step is abandoned.
  //
  // `atoll show`'s peaks are what devices' backends take. Host memory besides, which plans keep
  // free (coordinator/planning/auxiliary_memory.h): these messages; outgoing ones, a copy
  // each until the other end has them (at most PeerLinkOptions::queued_bytes_max a peer);
  // reductions in progress, up to the gradients' bytes; the leader's copies of the model
  // (worker/island/README.md); and layers that are sent to new holders, a copy each, while a plan
  // is set up. In a step the first two are the activations and gradients that cross to other
  // workers, at most: the windows and queues are larger, so that they never delay one.
  int64_t transport_bytes_max = int64_t{4} << 30;
  // Bytes of saved states that it may keep in its host's memory, its own part and copies of
  // others'; a save that would need more is not made. 0: any.
  int64_t saves_bytes_max = 0;
  std::string saves_folder;                          // the disk tier of saved states; empty: none
  Duration meet_timeout = std::chrono::seconds(10);  // of all members accepting a plan
  // The limit of anything that is not a step, of collectives and of the answers to a step; under a
  // plan of long steps these last two wait longer (StepLimit). Of layer state: of its next chunk.
  Duration call_timeout = std::chrono::seconds(60);
  // The limit for all members to have their layers under a new plan, besides what the bytes need
  // (GetStateTransferLimit).
  Duration state_transfer_timeout = std::chrono::minutes(15);
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

  const NodeId& name() const { return state_.name(); }
  const std::string& endpoint() const { return link_->endpoint(); }
  const std::vector<std::string>& more_endpoints() const { return link_->more_endpoints(); }
  const GroupOptions& options() const { return options_; }
  PeerLink& link() { return *link_; }

  // ---- Its parts, which live as long as it does. ----
  GroupCalls& calls() { return calls_; }
  MemberLayers& layers() { return layers_; }
  SavedStates& saves() { return saves_; }
  OuterExchange& outer_exchange() { return outer_exchange_; }

  // ---- The job. ----
  absl::StatusOr<JobFacts> Open(const JobSpec& spec, std::function<bool()> cancelled) override;
  void Close() override;
  const GroupJob* job() const { return state_.job().get(); }  // null: none is open; until Close
  int devices() const override;
  absl::StatusOr<int64_t> CountMasked(const std::vector<PositionRange>& ranges) override;
  std::vector<double> GetReferences(const ReferenceCall& call) const override;

  // ---- The plan. ----
  IslandPlan plan() const { return *state_.plan(); }
  // Speaks under this plan from now on. Under the same one, only meets lost members again.
  absl::Status Join(const PeerFence& fence, const IslandPlan& plan) override;
  // Meets these workers so that links can be measured, while this worker is in no island; ends with
  // the next Join. FAILED_PRECONDITION where it is in one. For any thread.
  absl::Status MeetToMeasure(const PeerFence& fence, const std::vector<IslandMember>& members);

  // ---- Steps. ----
  // Those of the present generation; see Engine.
  CommitState Committed();
  void Interrupt(const std::string& reason) override;

  // ---- Hooks, set before Join, called on the link's thread. They must not set others. ----
  struct Hooks {
    // A call that requests work of this worker: all but get_layer. Replied to with Reply.
    std::function<void(const NodeId& from, GroupFrame frame)> serve;
    std::function<void(const NodeId& peer, const std::string& reason)> peer_lost;
    OnSaveDone save_done;  // see IslandPort::Lead
  };
  // No call of the earlier ones is under way when it returns.
  void SetHooks(Hooks hooks);
  // Receives what other members request and report of transfers, and Lost when a member is lost; on
  // the link's thread. It must not wait.
  struct Lost {};
  using TransferFrame = std::variant<PushShards, StartPull, PushShardDone, PullDone, PullFailed,
                                     CancelTransfersCall, Lost>;
  using OnTransfer = std::function<void(const NodeId& from, TransferFrame frame)>;
  void SetOnTransfer(OnTransfer on_transfer);

  // ---- What was seen under the present plan, if it is of several workers or of several devices.
  // For any thread. ----
  // Returns the work of this worker's devices, once there is a window.
  std::vector<DeviceWork> Work() const { return state_.work(); }
  std::vector<LinkFailure> ListUnreachable() const;  // members to whom there is no connection
  // Returns the times of these devices' all-reduces with others'.
  std::vector<AllReduceTimes> GetAllReduceTimes() const { return state_.sums(); }
  double GetUtilisation() const;              // share of the time in which they compute
  std::vector<RoundTrip> RoundTrips() const;  // to the other members
  // Since it was made, to all peers, by edge (peer_link.h).
  std::array<int64_t, kPeerEndpointsMax> EdgeBytesSent() const;
  // Messages, or chunks of them, that this worker has sent under a grant on a shared link.
  int64_t grants_used() const { return transport_.grants_used(); }

 private:
  explicit GroupMember(GroupOptions options);

  // ---- IslandPort: for leader and follower alone. ----
  std::unique_ptr<WorkLane> NewLane() override;
  Instant Now() const override;
  PositionRange SelectValidationPositions(int set, int64_t sequences) const override {
    return job()->data.SelectValidationPositions(set, sequences);
  }
  absl::StatusOr<TaskScore> ScoreTask(size_t task, const EvaluatePosition& evaluate) const override;
  void InterruptWork(const std::string& reason) override;
  LossSum newest_loss() const override { return newest_loss_; }
  double newest_gradient_norm() const override { return newest_step_.gradient_norm; }
  bool newest_skipped() const override { return newest_step_.skipped; }
  void Lead(OnSaveDone on_save_done) override { SetHooks({.save_done = std::move(on_save_done)}); }
  void StopLeading() override;
  const IslandJob* island_job() const override;
  IslandMember Self() const override;
  IslandLimits limits() const override {
    return {options_.meet_timeout, options_.call_timeout, options_.state_transfer_timeout};
  }
  int64_t NowUs() const override;
  absl::Status Meet(const std::vector<NodeId>& workers,
                    const std::atomic<bool>& interrupted) override;
  void Leave() override;
  void BeginEpoch(int64_t epoch) override;
  int64_t epoch() const override { return state_.epoch(); }
  int64_t last_number() const override { return last_number_; }
  Duration StepTimeout() const override;
  // All calls but get_layer.
  absl::StatusOr<GroupReply> Do(const GroupFrame& call,
                                const std::atomic<bool>* interrupted = nullptr) override;
  absl::StatusOr<CallId> Call(const NodeId& to, GroupFrame frame) override {
    return calls_.Call(to, std::move(frame));
  }
  absl::StatusOr<GroupReply> Await(CallId id, Duration timeout) override {
    return calls_.Await(id, timeout);
  }
  void Reply(const NodeId& to, CallId call, GroupReply reply) override {
    calls_.Reply(to, call, std::move(reply));
  }
  void Notify(const NodeId& to, GroupFrame frame) override;
  std::shared_ptr<OuterState> outer() const override { return outer_exchange_.state(); }
  void Keep(IslandHandover kept) override { state_.Keep(std::move(kept)); }
  void DropKept() override { state_.Keep(std::nullopt); }
  absl::StatusOr<std::vector<HeldSave>> SavesIn(Tier tier) override { return saved_.In(tier); }
  void DropCopies() override { saves_.DropCopies(); }
  std::optional<ReplayLog::Changes> ChangesSince(int64_t save) const override {
    return state_.log().Since(save);
  }
  void Log(const std::function<void(ReplayLog&)>& change) override { state_.log().Change(change); }

  // ---- PeerHandler, and what it leads to. ----
  absl::Status Admit(const NodeId& from, PeerChannel channel, absl::string_view header,
                     int64_t payload_bytes) override;
  void OnMessage(PeerDelivery delivery) override;
  void OnPeerLost(const NodeId& peer, const std::string& reason) override;
  void OnFrame(const PeerFence& fence, const NodeId& from, GroupFrame frame);
  bool OnBody(const NodeId& from, const GroupFrame& frame);  // whether that was all
  void On(const NodeId& from, const SaveDone& done);
  void On(const NodeId& from, const GoOnSaving& go_on);
  void On(const NodeId& from, const ForgetSaves& forget);
  void OnReply(const NodeId& from, GroupFrame frame);
  bool DoLater(const NodeId& from, const GroupFrame& frame);
  bool Serve(const NodeId& from, GroupFrame& frame);
  bool AddTransfer(LayerRequest request);  // false: there are too many
  void AnswerTransfer(const LayerRequest& request);

  // ---- The work of calls. ----
  static bool IsOfStep(const GroupFrame& frame);
  static bool IsBesideSteps(const GroupFrame& frame);
  absl::StatusOr<GroupReply> DoConfigure(const ConfigureCall& call,
                                         const std::atomic<bool>* interrupted);
  absl::StatusOr<GroupReply> DoCall(const DrainCall& call);
  absl::StatusOr<GroupReply> DoCall(const DropSurplusCall& call);
  absl::StatusOr<GroupReply> DoCall(const StepCall& call);
  absl::StatusOr<GroupReply> DoCall(const TraceCall& call);
  absl::StatusOr<GroupReply> DoCall(const TakeOverCall& call);
  absl::StatusOr<GroupReply> DoCall(const EvaluateCall& call);
  absl::StatusOr<GroupReply> DoCall(const ReferenceCall& call);
  absl::StatusOr<GroupReply> DoCall(const SnapshotCall& call);
  absl::StatusOr<GroupReply> DoCall(const AdditionCall& call);
  absl::StatusOr<GroupReply> DoCall(const CaptureDelta& call);
  absl::StatusOr<GroupReply> DoCall(const SaveCall& call);
  absl::StatusOr<GroupReply> DoCall(const SetStepsCall& call);
  // Makes the ids of NCCL's groups of which this worker has the first device.
  absl::StatusOr<std::vector<NcclId>> NewNcclIds();
  // Sets the devices up, together with all members' whose devices are in the plan. For `cancelled`
  // see Engine::Configure.
  absl::Status Configure(const std::vector<NcclId>& ids, const std::atomic<bool>* cancelled);
  // Reads rows of the open job from `first_row` of these ranges on, each part by `read`.
  using ReadRange = absl::FunctionRef<absl::Status(int64_t first, std::span<int32_t> rows)>;
  absl::Status ReadRanges(const std::vector<PositionRange>& ranges, int64_t first_row,
                          std::span<int32_t> tokens, const ReadRange& read);
  absl::Status TakeStep(const StepSums& step);
  void Begin(int64_t number);  // a step or an evaluation

  const GroupOptions options_;
  IslandJob island_job_;  // of the job that is open
  MemberState state_;
  ReadAhead read_ahead_;
  GroupCalls calls_;
  PeerTransport transport_;
  PeerBlocks blocks_;
  std::atomic<int64_t> last_number_ = 0;  // of the steps and evaluations begun

  std::mutex meeting_mutex_;  // the peers of the link
  // An engine that refused a plan still works with the older ones.
  std::unique_ptr<CommunicatorFactory> older_, communicators_;
  std::unique_ptr<DeviceSide> device_side_;  // of the job; null: the host can touch all memory

  std::mutex hooks_mutex_;  // held while one is called
  Hooks hooks_;             // guarded by hooks_mutex_
  OnTransfer on_transfer_;  // guarded by hooks_mutex_

  // Fields of the thread that calls Do.
  Cancelled interrupted_ = [] { return false; };  // since the epoch began
  StepOutcome newest_step_;
  int64_t traced_number_ = -1;  // of newest_step_, if it was to be traced
  LossSum newest_loss_;

  SavedTiers saved_;
  MemberLayers layers_;
  SavedStates saves_;
  OuterExchange outer_exchange_;
  WorkQueue transfers_;             // answers requests for layers
  std::unique_ptr<PeerLink> link_;  // last, after all that its thread calls
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_MEMBER_MEMBER_H_
