// Saved states of an island (worker/state), as one member takes part in them: it copies the units
// that it owns, keeps copies of others', and reads and sends what it has.
//
// Threads: Save, ReadResiduals, DropCopies and StopSaving are for the member's caller,
// one at a time, between steps; GoOn, Forget, Cancel and Send are for any thread. A save goes on
// during the steps that follow, on a thread of its tier. Reads of the disk and of the remote tier
// end soon after an interrupt.

#ifndef ATOLL_WORKER_ISLAND_MEMBER_SAVED_STATES_H_
#define ATOLL_WORKER_ISLAND_MEMBER_SAVED_STATES_H_

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "worker/island/member/group_calls.h"
#include "worker/island/member/member_layers.h"
#include "worker/island/member/member_state.h"
#include "worker/island/member/saved_tiers.h"
#include "worker/outer/outer_state.h"
#include "worker/state/state_saver.h"

namespace atl::worker {

class SavedStates {
 public:
  // All outlive it. `bytes_max`: of saves in memory (GroupOptions).
  SavedStates(MemberState* state, GroupCalls* calls, MemberLayers* layers, SavedTiers* saved,
              int64_t bytes_max);

  // Copies the units that this worker owns, and what `outer` owes by quantised pushes (null: it
  // keeps nothing for the servers). After GoOn it goes on during what follows: `done` is called on
  // another thread; here and at once, with RESOURCE_EXHAUSTED, where memory may not take it.
  absl::Status Save(SaveTask task, const std::shared_ptr<OuterState>& outer, StateSaver::Done done);
  void GoOn(int64_t save);
  void Cancel();                         // what goes on ends soon, and does not call `done`
  void Forget(int64_t save, Tier tier);  // older ones
  void DropCopies();                     // those in memory
  void StopSaving();                     // for good, with all waits for other members
  void Stop();                           // as Cancel, for good, and waits for that

  // Sets the residuals of what `next` keeps to those of the save, as this worker and the other
  // members have them; a residual that is nowhere begins at zero. ABORTED: interrupted. Any other
  // error: residuals that a member has may be missing, and `next` has all others.
  absl::Status ReadResiduals(int64_t save, OuterState& next);
  // Answers a request for elements of a save. False: they are not here.
  absl::StatusOr<bool> Send(const LayerRequest& request);

 private:
  absl::Status ReadResidual(int64_t save, const OuterRange& part, std::span<float> values);
  // Elements whose residual `outer` has here.
  int64_t KeptResiduals(const OuterState& outer) const;
  absl::Status SaveResiduals(const OuterState& outer, SaveTask* task);
  absl::Status KeepCopies(const SaveTask& task, const Cancelled& cancelled);
  absl::Status FetchResidual(const NodeId& from, int64_t save, int32_t layer, ElementRange range,
                             std::span<float> out);
  absl::StatusOr<bool> SendResidual(const LayerRequest& request);

  MemberState* const state_;
  GroupCalls* const calls_;
  MemberLayers* const layers_;
  SavedTiers* const saved_;
  const int64_t bytes_max_;
  std::array<std::unique_ptr<StateSaver>, kTiers> savers_;  // last: they use the others
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_MEMBER_SAVED_STATES_H_
