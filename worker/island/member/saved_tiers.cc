#include "worker/island/member/saved_tiers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/logging.h"
#include "common/status.h"
#include "worker/island/messages/wire.h"

namespace atl::worker {
namespace {

constexpr int kSavesMax = 4;  // of a tier, that are looked at

}  // namespace

void SavedTiers::SetRemote(const std::string& url) {
  const std::lock_guard lock(mutex_);
  remote_url_ = url;
  for (std::shared_ptr<TierStore>& store : stores_) store.reset();
}

absl::StatusOr<std::shared_ptr<TierStore>> SavedTiers::OpenStore(Tier tier) {
  const JobId job = state_->fence().job;
  const std::lock_guard lock(mutex_);
  std::shared_ptr<TierStore>& store = stores_[static_cast<size_t>(tier)];
  const std::string& url = tier == Tier::kDisk ? disk_folder_ : remote_url_;
  if (store != nullptr || tier == Tier::kMemory || url.empty() || job.empty()) return store;
  ATOLL_ASSIGN_OR_RETURN(std::unique_ptr<ObjectStore> objects, OpenObjectStore(url));
  store = std::make_shared<TierStore>(std::move(objects), job, tier);
  return store;
}

absl::StatusOr<std::vector<HeldSave>> SavedTiers::In(Tier tier) {
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<TierStore> store, OpenStore(tier));
  if (store == nullptr) return std::vector<HeldSave>();
  std::vector<std::string> problems;
  auto saves = store->List(kSavesMax, &problems, state_->UntilInterrupted());
  for (const std::string& problem : problems) LogWarning("checkpoint", "ignored: ", problem);
  return saves;
}

std::vector<HeldSave> SavedTiers::Here() {
  std::vector<HeldSave> saves = memory_.Held();
  absl::StatusOr<std::vector<HeldSave>> disk = In(Tier::kDisk);
  if (!disk.ok()) {
    LogWarning("checkpoint", "this worker's disk: ", disk.status().message());
    return saves;
  }
  saves.insert(saves.end(), disk->begin(), disk->end());
  return saves;
}

absl::StatusOr<bool> SavedTiers::IsHere(int64_t save, const LayerShard& shard, Range elements) {
  if (memory_.Find(save, shard, elements).ok()) return true;
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<TierStore> disk, OpenStore(Tier::kDisk));
  return disk != nullptr && disk->Has(save, shard, elements);
}

absl::Status SavedTiers::Read(int64_t save, const LayerShard& shard, Range elements,
                              const ShardParts& out) {
  const Cancelled cancelled = state_->UntilInterrupted();
  if (const auto stored = memory_.Find(save, shard, elements); stored.ok()) {
    const Range within{elements.begin - stored->unit.elements.begin,
                       elements.end - stored->unit.elements.begin};
    const PartMap from = ToPartMap(SliceParts(stored->parts->parts(), kAllParts, within));
    for (const auto& [part, to] : ToPartMap(out)) {
      const std::span<float> values = from.at(part);
      std::copy(values.begin(), values.end(), to.begin());
    }
    return absl::OkStatus();
  }
  for (const Tier tier : {Tier::kDisk, Tier::kRemote}) {
    ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<TierStore> store, OpenStore(tier));
    if (store == nullptr) continue;
    if (!store->Has(save, shard, elements)) {
      if (tier == Tier::kDisk) continue;
      ATOLL_RETURN_IF_ERROR(In(tier).status());  // the leader alone has listed it
    }
    const absl::Status read = store->Read(save, shard, elements, out, cancelled);
    if (!absl::IsNotFound(read)) return read;
  }
  return absl::NotFoundError(
      absl::StrCat("no copy of ", ToString(shard), " from save ", save, " is here"));
}

absl::Status SavedTiers::ReadResidual(int64_t save, int32_t layer, ElementRange range, bool remote,
                                      std::span<float> out, ElementRanges* found) {
  const Cancelled cancelled = state_->UntilInterrupted();
  memory_.ReadResidual(save, layer, range, out, found);
  absl::Status first;
  for (const Tier tier : {Tier::kDisk, Tier::kRemote}) {
    if (found->Covers(range) || (tier == Tier::kRemote && !remote)) break;
    const absl::StatusOr<std::shared_ptr<TierStore>> store = OpenStore(tier);
    first.Update(store.status());
    if (!store.ok() || *store == nullptr) continue;
    const absl::Status read = (*store)->ReadResidual(save, layer, range, out, found, cancelled);
    if (absl::IsAborted(read)) return read;
    first.Update(read);
  }
  return found->Covers(range) ? absl::OkStatus() : first;
}

absl::Status SavedTiers::Write(const SaveTask& task, const Cancelled& cancelled) {
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<TierStore> store, OpenStore(task.tier));
  if (store == nullptr) return absl::FailedPreconditionError("this worker has no such tier");
  // The rest of a save that was broken off is deleted too: it would fill the tier.
  ATOLL_RETURN_IF_ERROR(store->RemoveAllBut(state_->name(), task.keep, cancelled));
  return store->Write(state_->name(), task.save, task.optimizer_step, task.units, task.residuals,
                      cancelled);
}

}  // namespace atl::worker
