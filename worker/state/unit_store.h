// The units of saved states that a worker keeps in its memory: its own and others'. Thread-safe.

#ifndef ATOLL_WORKER_STATE_UNIT_STORE_H_
#define ATOLL_WORKER_STATE_UNIT_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "common/status.h"
#include "worker/island/parts.h"
#include "worker/state/save_plan.h"

namespace atl::worker {

struct StoredUnit {
  Unit unit;
  int64_t elements = 0;                     // of the whole shard
  std::shared_ptr<const OwnedParts> parts;  // all three, of unit.elements
};

class UnitStore {
 public:
  void Begin(int64_t save, int64_t optimizer_step);
  // NOT_FOUND: the save is not kept any more.
  absl::Status Put(int64_t save, StoredUnit unit);
  // The one that has all these elements of a shard. NOT_FOUND: none has.
  absl::StatusOr<StoredUnit> Find(int64_t save, const LayerShard& shard, Range elements) const;

  std::vector<HeldSave> Held() const;
  int64_t bytes() const;
  void DropBefore(int64_t save);
  void Drop(int64_t save);
  void Clear();

 private:
  struct Save {
    int64_t optimizer_step = 0;
    std::vector<StoredUnit> units;
  };
  mutable std::mutex mutex_;
  std::map<int64_t, Save> saves_;  // guarded by mutex_
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_STATE_UNIT_STORE_H_
