// The saved states that one worker can read by itself: its memory, its disk and the job's remote
// tier (worker/state). Thread-safe. `cancelled`, wherever it is an argument, may be null.

#ifndef ATOLL_WORKER_ISLAND_MEMBER_SAVED_TIERS_H_
#define ATOLL_WORKER_ISLAND_MEMBER_SAVED_TIERS_H_

#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "worker/state/state_saver.h"
#include "worker/state/tier_store.h"
#include "worker/state/unit_store.h"

namespace atl::worker {

class SavedTiers {
 public:
  // `disk_folder`: empty: there is no tier on the disk.
  explicit SavedTiers(std::string disk_folder) : disk_folder_(std::move(disk_folder)) {}

  // Another job begins, whose remote tier is there; empty: it has none.
  void SetRemote(const std::string& url);

  UnitStore& memory() { return memory_; }

  // Lists the saves in one tier; those in the remote tier may be of any worker. Empty: there is no
  // such tier.
  absl::StatusOr<std::vector<HeldSave>> In(const JobId& job, Tier tier, const Cancelled& cancelled);
  // Lists the saves in memory and on the disk.
  std::vector<HeldSave> Here(const JobId& job, const Cancelled& cancelled);
  // Returns whether the elements are in memory or on the disk.
  absl::StatusOr<bool> IsHere(const JobId& job, int64_t save, const LayerShard& shard,
                              Range elements);

  // Reads elements from the nearest tier that has them. NOT_FOUND: none has.
  absl::Status Read(const JobId& job, int64_t save, const LayerShard& shard, Range elements,
                    const ShardParts& out, const Cancelled& cancelled);
  // Reads the residual of these elements, as far as it is there, to its position in `out`, and adds
  // its range to `found`. ABORTED: cancelled. Another error: not all that is there could be read.
  absl::Status ReadResidual(const JobId& job, int64_t save, int32_t layer, ElementRange range,
                            bool remote, std::span<float> out, ElementRanges* found,
                            const Cancelled& cancelled);

  // Units and residuals of the task to its tier, which is not memory; older saves of `worker` go,
  // but for task.keep.
  absl::Status Write(const JobId& job, const NodeId& worker, const SaveTask& task,
                     const Cancelled& cancelled);

 private:
  // Null: there is none.
  absl::StatusOr<std::shared_ptr<TierStore>> OpenStore(const JobId& job, Tier tier);

  const std::string disk_folder_;
  UnitStore memory_;
  std::mutex mutex_;
  std::string remote_url_;                                 // guarded by mutex_
  std::array<std::shared_ptr<TierStore>, kTiers> stores_;  // guarded by mutex_; once opened
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_MEMBER_SAVED_TIERS_H_
