// The exchange of an island with the parameter servers, as one member takes part in it: what it
// owns of theta_base, pseudo-gradients and pulled versions (worker/outer/outer_state.h), how it
// gets elements from other owners, and how a version reaches its devices.
//
// Threads: state, Held and Send are for any thread. DoLater is for the link's thread; what it takes
// on is done on a thread of its own, in order, while steps go on, and EndWork ends it. So does
// everything that the member's caller does but steps: nothing of an earlier attempt at setting the
// plan up, or of an order that the leader has abandoned, changes what a later one keeps. Everything
// else is for the member's caller, one at a time. Waits for other owners end with GroupCalls::Fail.
//
// Errors: FAILED_PRECONDITION: no plan was set up; NOT_FOUND: what an owner should have is not
// there; and those of calls and devices (MemberLayers).

#ifndef ATOLL_WORKER_ISLAND_MEMBER_OUTER_EXCHANGE_H_
#define ATOLL_WORKER_ISLAND_MEMBER_OUTER_EXCHANGE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "worker/island/member/group_calls.h"
#include "worker/island/member/member_layers.h"
#include "worker/island/member/member_state.h"
#include "worker/island/member/saved_states.h"
#include "worker/island/messages/wire.h"
#include "worker/model/weights.h"
#include "worker/outer/outer_state.h"
#include "worker/work_queue.h"

namespace atl::worker {

class OuterExchange {
 public:
  // All outlive it.
  OuterExchange(MemberState* state, GroupCalls* calls, MemberLayers* layers, SavedStates* saves)
      : member_(state), calls_(calls), layers_(layers), saves_(saves) {}

  std::shared_ptr<OuterState> state() const;  // null: no plan was set up for this job
  OuterHoldings Held() const;
  std::vector<PartDigest> digests() const;  // as OuterState has them

  // Carry out calls of the leader.
  absl::Status Do(const OuterLayoutCall& call);  // gets what it says, for CommitLayout
  absl::Status Do(const CaptureCall& call);
  absl::Status Do(const CaptureDelta& call) { return DoDuringSteps(call, UntilEnded()); }
  absl::Status Do(const ApplyCall& call) { return DoDuringSteps(call, UntilEnded()); }
  absl::Status Do(const FinishCall& call);
  // theta_base, or the reference of pairs, becomes the parameters of these devices, until they are
  // put back.
  absl::Status Do(const PutBaseInCall& call);
  absl::Status Do(const PutBackCall& call);
  absl::Status Do(const FetchTablesCall& call);
  // Makes initial weights by the seed or from the job's files.
  absl::Status Do(const InitialWeightsCall& call);
  // The same of calls during steps, later; `done` gets the outcome, on the thread that did it.
  // ABORTED: this worker was interrupted before it began. False: there is too much already.
  template <class Call>
  bool DoLater(const Call& call, std::function<void(const absl::Status&)> done) {
    return work_.Add([this, call, done = std::move(done), cancelled = UntilEnded()] {
      done(DoDuringSteps(call, cancelled));
    });
  }
  // Makes the newest layout that was ordered the one in use, with the data that the order has
  // brought.
  void CommitLayout();
  // Reads a whole layer from its owners.
  absl::Status ReadLayer(OuterKind kind, int32_t layer, std::span<float> out);
  // Answers a request for what this worker owns.
  absl::Status Send(const LayerRequest& request);

  // Ends the work that DoLater has taken on and waits for its end: it reports ABORTED unless it was
  // done.
  void EndWork();
  void Clear();                  // the job is closed
  void Stop() { work_.Stop(); }  // waits for what has begun; drops the others, and new ones

 private:
  // FAILED_PRECONDITION: no plan was set up for this job.
  absl::StatusOr<std::shared_ptr<OuterState>> OpenState() const;
  using ReadWhole = std::function<absl::Status(int32_t layer, std::span<float> out)>;

  // Reads the layers that these devices hold from a folder, for a later SetHeld.
  absl::StatusOr<ReadWhole> ReadHeld(const GroupJob& job, const std::string& folder,
                                     decltype(&ReadWeights) read) const;

  absl::Status DoDuringSteps(const CaptureDelta& call, const Cancelled& cancelled);
  // Elements of all layers that this worker's devices hold, from their owners. Afterwards it has
  // the pulled version of what it keeps copies of. kAdded leaves out copies of a table that cannot
  // be read here: FetchTablesCall, when all members have done so.
  absl::Status DoDuringSteps(const ApplyCall& call, const Cancelled& cancelled);
  Cancelled UntilEnded() const;  // an interrupt, or EndWork
  absl::Status Fetch(const OuterRange& source, const std::shared_ptr<OuterState>& before,
                     OuterState& next);
  absl::Status FetchFrom(const NodeId& from, OuterKind kind, int32_t layer, ElementRange range,
                         std::span<float> out);
  absl::Status ReadParameters(int32_t layer, ElementRange range, bool of_snapshot,
                              std::span<float> out);
  // Elements of a whole layer, from the owners of each.
  absl::Status ReadMoments(int32_t layer, ElementRange range, std::span<float> first,
                           std::span<float> second);
  // The parameters of what this worker owns, for a pseudo-gradient. `shards`, here and below:
  // layers that they do not concern (Concern) are left alone.
  absl::Status ReadForDelta(OuterState& outer, const std::vector<ShardPlacement>& shards,
                            bool of_snapshot, const Cancelled& cancelled);
  using UseHeld = std::function<absl::Status(const HeldLayer& held, std::span<float> values)>;
  // Calls `use` for what these devices hold of the plan's layers (`tables`: copies of tables too),
  // with its values, of whole layers as they are read.
  absl::Status ForHeld(bool tables, const std::vector<ShardPlacement>& shards,
                       const ReadWhole& read_layer, const UseHeld& use);
  absl::Status LeaveUnpulled(const ApplyCall& call, int32_t layer, std::span<float> out);
  absl::Status SetHeld(OuterTarget target, const std::vector<ShardPlacement>& shards,
                       const ReadWhole& read_layer);
  absl::Status SetDevices(const HeldLayer& held, OuterTarget target, std::span<const float> values);
  std::vector<HeldLayer> HeldShards() const;  // those of the plan

  MemberState* const member_;
  GroupCalls* const calls_;
  MemberLayers* const layers_;
  SavedStates* const saves_;
  std::vector<std::pair<LayerShard, std::vector<float>>> put_aside_;  // by PutBaseIn

  mutable std::mutex mutex_;                  // guards the next three
  std::shared_ptr<OuterState> state_, next_;  // next_: until CommitLayout
  std::vector<HeldLayer> held_shards_;        // once each, by layer

  std::atomic<int64_t> ended_ = 0;  // calls of EndWork so far
  WorkQueue work_;                  // last: it uses the others
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_MEMBER_OUTER_EXCHANGE_H_
