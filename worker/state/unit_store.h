// The units of saved states that a worker keeps in its memory: its own and others'. Thread-safe.

#ifndef ATOLL_WORKER_STATE_UNIT_STORE_H_
#define ATOLL_WORKER_STATE_UNIT_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "common/element_ranges.h"
#include "common/status.h"
#include "worker/state/parts.h"
#include "worker/state/save_plan.h"

namespace atl::worker {

struct StoredUnit {
  Unit unit;
  int64_t elements = 0;                     // of the whole shard
  std::shared_ptr<const OwnedParts> parts;  // all three, of unit.elements
};

// The residual of these elements of a whole layer (outer/outer_state.h): it belongs to a save, and
// not to a unit, since owners cut it otherwise.
struct StoredResidual {
  int32_t layer = 0;
  ElementRange range;
  std::shared_ptr<const std::vector<float>> values;
};

// Copies what `from` has of these elements to `out`, and adds it to `found`.
void CopyResidual(const StoredResidual& from, int32_t layer, ElementRange range,
                  std::span<float> out, ElementRanges* found);

class UnitStore {
 public:
  void Begin(int64_t save, int64_t optimizer_step);
  // NOT_FOUND: the save is not kept any more.
  absl::Status Put(int64_t save, StoredUnit unit);
  // The one that has all these elements of a shard. NOT_FOUND: none has.
  absl::StatusOr<StoredUnit> Find(int64_t save, const LayerShard& shard, Range elements) const;

  absl::Status PutResidual(int64_t save, StoredResidual residual);
  // Copies what is here of these elements' residual to its position in `out`, and adds its range to
  // `found`.
  void ReadResidual(int64_t save, int32_t layer, ElementRange range, std::span<float> out,
                    ElementRanges* found) const;

  std::vector<HeldSave> Held() const;
  void DropBefore(int64_t save);
  void Drop(int64_t save);
  void Clear();

 private:
  struct Save {
    int64_t optimizer_step = 0;
    std::vector<StoredUnit> units;
    std::vector<StoredResidual> residuals = {};
  };
  mutable std::mutex mutex_;
  std::map<int64_t, Save> saves_;  // guarded by mutex_
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_STATE_UNIT_STORE_H_
