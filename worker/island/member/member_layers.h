// The layers of an island: those on this worker's devices, which it reads, writes, fetches and
// sends, and those of other members, which it reads.
//
// Threads: GetShard and Send are for any thread, while steps go on; so is Held. But for snapshots
// and saves they wait for the engine. What changes layers is for the member's caller, one at a
// time. Waits for other members end with GroupCalls::Fail.
//
// Errors: FAILED_PRECONDITION: no job is open. NOT_FOUND: the elements are not where they should
// be. UNAVAILABLE, ABORTED and DEADLINE_EXCEEDED as in GroupCalls.

#ifndef ATOLL_WORKER_ISLAND_MEMBER_MEMBER_LAYERS_H_
#define ATOLL_WORKER_ISLAND_MEMBER_MEMBER_LAYERS_H_

#include <mutex>
#include <span>
#include <vector>

#include "worker/island/member/group_calls.h"
#include "worker/island/member/member_state.h"
#include "worker/island/member/saved_tiers.h"
#include "worker/island/member/stamps.h"
#include "worker/state/state_transfer.h"

namespace atl::worker {

class MemberLayers {
 public:
  // All outlive it.
  MemberLayers(MemberState* state, GroupCalls* calls, SavedTiers* saved)
      : state_(state), calls_(calls), saved_(saved) {}

  // ---- What is on these devices. ----
  std::vector<HeldLayer> Held();
  void DropSurplus();
  // Gets shards from the sources of the transfers; afterwards all layers in the plan have this
  // step, and are those of `save`, if that is not 0. What has come whole stays, at that step: a
  // fetch that is broken off goes on where it was. Frozen tensors that are not here come from the
  // model's folder.
  absl::Status Fetch(const std::vector<StateTransfer>& transfers, int64_t optimizer_step,
                     int64_t save = 0, const StampTable::Stamps& stamps = {});
  void Stamp(const StampTable::Stamps& stamps);  // the plan's layers
  void ForgetStamps();
  absl::Status SetOptimizerSteps(int64_t steps);

  // ---- Elements of some parts, each in as many floats: of these devices, or (`from`) of another
  // member's. ----
  // `of`: as they are, or of the newest snapshot, or of a save, from the nearest tier that has it.
  absl::Status GetShard(const NodeId& from, const LayerShard& shard, Range elements,
                        const ShardParts& out, const GetLayerCall& of = {});
  absl::Status SetShard(const LayerShard& shard, const ShardParts& values);

  // Answers a request for what devices have, or their newest snapshot.
  absl::Status Send(const LayerRequest& request);

 private:
  // Reads from the model's folder what the plan's layers lack of frozen tensors.
  absl::Status ReadFrozen();
  absl::Status FetchOne(const StateTransfer& move, int64_t optimizer_step);
  absl::Status SetState(const LayerShard& shard, int64_t optimizer_step, const ShardParts& values);
  // Returns how many elements there are of what is requested. NOT_FOUND: it is not here.
  absl::StatusOr<int64_t> CountHere(const GetLayerCall& request);

  MemberState* const state_;
  GroupCalls* const calls_;
  SavedTiers* const saved_;
  std::mutex mutex_;
  StampTable stamps_;  // guarded by mutex_
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_MEMBER_MEMBER_LAYERS_H_
