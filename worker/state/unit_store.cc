#include "worker/state/unit_store.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace atl::worker {

void CopyResidual(const StoredResidual& from, int32_t layer, ElementRange range,
                  std::span<float> out, ElementRanges* found) {
  const ElementRange both{std::max(range.begin, from.range.begin),
                          std::min(range.end, from.range.end)};
  if (from.layer != layer || both.size() <= 0) return;
  std::copy_n(from.values->begin() + (both.begin - from.range.begin), both.size(),
              out.begin() + (both.begin - range.begin));
  found->Add(both);
}

void UnitStore::Begin(int64_t save, int64_t optimizer_step) {
  const std::lock_guard lock(mutex_);
  saves_[save] = {optimizer_step, {}};
}

absl::Status UnitStore::Put(int64_t save, StoredUnit unit) {
  const std::lock_guard lock(mutex_);
  const auto found = saves_.find(save);
  if (found == saves_.end()) return absl::NotFoundError("the save is not kept any more");
  found->second.units.push_back(std::move(unit));
  return absl::OkStatus();
}

absl::StatusOr<StoredUnit> UnitStore::Find(int64_t save, const LayerShard& shard,
                                           Range elements) const {
  const std::lock_guard lock(mutex_);
  if (const auto found = saves_.find(save); found != saves_.end()) {
    for (const StoredUnit& stored : found->second.units) {
      const Range& has = stored.unit.elements;
      if (!(stored.unit.shard == shard)) continue;
      if (has.begin <= elements.begin && elements.end <= has.end) return stored;
    }
  }
  return absl::NotFoundError(
      absl::StrCat("no copy of ", ToString(shard), " from save ", save, " is here"));
}

absl::Status UnitStore::PutResidual(int64_t save, StoredResidual residual) {
  const std::lock_guard lock(mutex_);
  const auto found = saves_.find(save);
  if (found == saves_.end()) return absl::NotFoundError("the save is not kept any more");
  found->second.residuals.push_back(std::move(residual));
  return absl::OkStatus();
}

void UnitStore::ReadResidual(int64_t save, int32_t layer, ElementRange range, std::span<float> out,
                             ElementRanges* found) const {
  const std::lock_guard lock(mutex_);
  const auto saved = saves_.find(save);
  if (saved == saves_.end()) return;
  for (const StoredResidual& residual : saved->second.residuals) {
    CopyResidual(residual, layer, range, out, found);
  }
}

std::vector<HeldSave> UnitStore::Held() const {
  const std::lock_guard lock(mutex_);
  std::vector<HeldSave> all;
  for (const auto& [number, save] : saves_) {
    HeldSave& held = all.emplace_back(HeldSave{number, save.optimizer_step, {}});
    for (const StoredUnit& unit : save.units) {
      held.units.push_back({unit.unit, unit.elements, Tier::kMemory});
    }
  }
  return all;
}

void UnitStore::DropBefore(int64_t save) {
  const std::lock_guard lock(mutex_);
  saves_.erase(saves_.begin(), saves_.lower_bound(save));
}

void UnitStore::Drop(int64_t save) {
  const std::lock_guard lock(mutex_);
  saves_.erase(save);
}

void UnitStore::Clear() {
  const std::lock_guard lock(mutex_);
  saves_.clear();
}

}  // namespace atl::worker
