// Saved units as objects: on a disk, in a shared folder, or in S3.
//
//   JOB/save-NUMBER/WORKER/unit-LAYER-RANK-of-SHARES-BEGIN-END
//                                parameters, first and second moment: little endian fp32
//   JOB/save-NUMBER/WORKER/residual-LAYER-BEGIN-END    what quantised pushes owed, likewise
//   JOB/save-NUMBER/WORKER/manifest    what this owner has saved, with checksums; written last
//
// A save is whole when what its owners say they saved is all of the state. Reading believes
// nothing: manifests and every chunk that is read are compared with their checksums.

#ifndef ATOLL_WORKER_STATE_TIER_STORE_H_
#define ATOLL_WORKER_STATE_TIER_STORE_H_

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/object_store/object_store.h"
#include "worker/state/unit_store.h"

namespace atl::worker {

// Thread-safe. Calls take as long as the tier does, within its limits.
class TierStore {
 public:
  // Creates the store of one job.
  TierStore(std::shared_ptr<ObjectStore> objects, JobId job, Tier tier);

  // One owner's part of a save. An error leaves nothing of it, as far as that can be removed, and
  // touches nothing older.
  absl::Status Write(const NodeId& worker, int64_t save, int64_t optimizer_step,
                     const std::vector<StoredUnit>& units,
                     const std::vector<StoredResidual>& residuals, const Cancelled& cancelled);
  // Lists what all owners have saved of the newest saves, `most` at most. Damaged manifests are
  // left out, and reported in `problems`.
  absl::StatusOr<std::vector<HeldSave>> List(int most, std::vector<std::string>* problems,
                                             const Cancelled& cancelled);
  // Returns whether a unit of a save that was written here, or listed, has all these elements.
  bool Has(int64_t save, const LayerShard& shard, Range elements);
  // NOT_FOUND: Has says no. DATA_LOSS: damaged, and where.
  absl::Status Read(int64_t save, const LayerShard& shard, Range elements, const ShardParts& out,
                    const Cancelled& cancelled);
  // Reads what a save that was written here, or listed, has of the residual of these elements of a
  // layer, to its position in `out`, and adds its range to `found`. DATA_LOSS and other errors:
  // some of it is damaged or cannot be read, and where; the rest is in `found`. ABORTED: cancelled.
  absl::Status ReadResidual(int64_t save, int32_t layer, ElementRange range, std::span<float> out,
                            ElementRanges* found, const Cancelled& cancelled);
  // This owner's part of other saves, and what is left of attempts.
  absl::Status RemoveAllBut(const NodeId& worker, int64_t save, const Cancelled& cancelled);

 private:
  struct Entry {
    Unit unit;
    int64_t elements = 0;                // of the whole shard
    std::vector<uint64_t> checksums[3];  // of each part's chunks
  };
  struct Residual {
    int32_t layer = 0;
    ElementRange range;
    std::vector<uint64_t> checksums;  // of its chunks
  };
  struct Manifest {
    int64_t optimizer_step = 0;
    std::vector<Entry> units;
    std::vector<Residual> residuals;
  };
  struct Found {
    std::string name;
    Entry entry;
  };
  std::string Folder(int64_t save) const;
  std::optional<Found> Find(int64_t save, const LayerShard& shard, Range elements);
  absl::Status WriteAll(const std::string& folder, int64_t optimizer_step,
                        const std::vector<StoredUnit>& units,
                        const std::vector<StoredResidual>& residuals, const Cancelled& cancelled);
  // Calls `each` with the save's number, the owner and the name of all objects of this job.
  absl::Status ForEach(
      const Cancelled& cancelled,
      const std::function<absl::Status(int64_t, const NodeId&, const std::string&)>& each);
  absl::StatusOr<Manifest> ReadManifest(const std::string& name, const Cancelled& cancelled);

  const std::shared_ptr<ObjectStore> objects_;
  const JobId job_;
  const Tier tier_;
  std::mutex mutex_;
  std::map<std::string, Manifest> manifests_;  // guarded by mutex_; by name, as they were read
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_STATE_TIER_STORE_H_
