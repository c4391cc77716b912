// The saved states that one worker can read by itself: its memory, its disk and the job's remote
// tier (worker/state). Thread-safe. Reads end soon after an interrupt (MemberState).

#ifndef ATOLL_WORKER_ISLAND_MEMBER_SAVED_TIERS_H_
#define ATOLL_WORKER_ISLAND_MEMBER_SAVED_TIERS_H_

#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "worker/island/member/member_state.h"
#include "worker/state/state_saver.h"
#include "worker/state/tier_store.h"
#include "worker/state/unit_store.h"

namespace atl::worker {

class SavedTiers {
 public:
  // `state` outlives it. `disk_folder`: empty: there is no tier on the disk.
  SavedTiers(MemberState* state, std::string disk_folder)
      : state_(state), disk_folder_(std::move(disk_folder)) {}

  // Another job begins, whose remote tier is there; empty: it has none.
  void SetRemote(const std::string& url);

  UnitStore& memory() { return memory_; }

  // Lists the saves in one tier; those in the remote tier may be of any worker. Empty: there is no
  // such tier.
  absl::StatusOr<std::vector<HeldSave>> In(Tier tier);
  // Lists the saves in memory and on the disk.
  std::vector<HeldSave> Here();
  // Returns whether the elements are in memory or on the disk.
  absl::StatusOr<bool> IsHere(int64_t save, const LayerShard& shard, Range elements);

  // Reads elements from the nearest tier that has them. NOT_FOUND: none has.
  absl::Status Read(int64_t save, const LayerShard& shard, Range elements, const ShardParts& out);
  // Reads the residual of these elements, as far as it is there, to its position in `out`, and adds
  // its range to `found`. ABORTED: cancelled. Another error: not all that is there could be read.
  absl::Status ReadResidual(int64_t save, int32_t layer, ElementRange range, bool remote,
                            std::span<float> out, ElementRanges* found);

  // Units and residuals of the task to its tier, which is not memory; this worker's older saves go,
  // but for task.keep.
  absl::Status Write(const SaveTask& task, const Cancelled& cancelled);

 private:
  // Null: there is none.
  absl::StatusOr<std::shared_ptr<TierStore>> OpenStore(Tier tier);

  MemberState* const state_;
  const std::string disk_folder_;
  UnitStore memory_;
  std::mutex mutex_;
  std::string remote_url_;                                 // guarded by mutex_
  std::array<std::shared_ptr<TierStore>, kTiers> stores_;  // guarded by mutex_; once opened
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_MEMBER_SAVED_TIERS_H_
