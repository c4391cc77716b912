// SimMember: saved states. Copies in memory are in the product's store; a disk is a map.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/member.h"
#include "tests/sim/nodes.h"

namespace atl::sim {

using std::chrono::milliseconds;
using worker::OwnedParts;
using worker::ShardParts;
using worker::StoredUnit;

namespace {

std::shared_ptr<const OwnedParts> CopyParts(const ShardParts& from) {
  const auto copy = std::make_shared<OwnedParts>(std::ssize(from.parameters), worker::kAllParts);
  const worker::PartMap parts = worker::ToPartMap(from);
  for (const auto& [part, to] : worker::ToPartMap(copy->parts())) {
    std::copy(parts.at(part).begin(), parts.at(part).end(), to.begin());
  }
  return copy;
}

}  // namespace

absl::Status SimMember::Save(worker::SaveTask task) {
  if (task.tier == Tier::kMemory) {
    for (const HeldSave& held : units_.Held()) {
      if (held.save != task.keep) units_.Drop(held.save);
    }
    units_.Begin(task.save, task.optimizer_step);
  }
  for (const Unit& unit : task.order.own) {
    const auto found = held_.find(unit.shard.layer);
    if (found == held_.end() || found->second.Moments(unit.elements) == nullptr) {
      return absl::NotFoundError("no such unit");
    }
    ToyLayer& toy = found->second;
    const auto slice = [&](std::vector<float>& values) {
      return std::span(values).subspan(static_cast<size_t>(unit.elements.begin),
                                       static_cast<size_t>(unit.elements.size()));
    };
    StoredUnit stored{unit, std::ssize(toy.theta),
                      CopyParts({slice(toy.theta), slice(toy.moment), slice(toy.moment)})};
    if (task.tier == Tier::kMemory) {
      ATOLL_RETURN_IF_ERROR(units_.Put(task.save, stored));
    } else {
      task.units.push_back(std::move(stored));
    }
  }
  for (SaveFetch& fetch : task.order.fetch) {
    fetch.elements = ToyLayers()[static_cast<size_t>(fetch.unit.shard.layer)].elements;
  }
  log_.Saved(task.save, task.optimizer_step, /*lasting=*/task.tier != Tier::kMemory);
  prepared_saves_[task.tier] = std::move(task);
  return absl::OkStatus();
}

void SimMember::GoOnSave(int64_t save) {
  for (const Tier tier : {Tier::kMemory, Tier::kDisk}) {
    const auto found = prepared_saves_.find(tier);
    if (found == prepared_saves_.end() || found->second.save != save) continue;
    worker::SaveTask task = std::move(prepared_saves_.extract(found).mapped());
    Fiber::Start([self = shared_from_this(), task, number = save_epoch_] {
      self->Pause(milliseconds(5) +
                  self->world_.UpTo(milliseconds(task.tier == Tier::kMemory ? 60 : 300)));
      if (self->dead_ || number != self->save_epoch_ || self->plan_.members.empty()) return;
      absl::Status status;
      if (task.tier == Tier::kMemory) {
        status = self->KeepCopies(task, number);
      } else {
        std::erase_if(self->disk_, [&](const auto& kept) { return kept.first != task.keep; });
        self->disk_[task.save] = {self->fence_.job, task.optimizer_step, task.units};
      }
      if (self->dead_ || number != self->save_epoch_ || self->plan_.members.empty()) return;
      self->Notify(
          self->plan_.members.front().worker,
          {.body = SaveDone{task.save, status.ok(), std::string(status.message()), task.tier}});
    });
  }
}

absl::Status SimMember::KeepCopies(const worker::SaveTask& task, int64_t number) {
  for (const SaveFetch& wanted : task.order.fetch) {
    if (number != save_epoch_) return absl::AbortedError("the save is cancelled");
    const Unit& unit = wanted.unit;
    const auto parts = std::make_shared<OwnedParts>(unit.elements.size(), worker::kAllParts);
    ATOLL_RETURN_IF_ERROR(
        GetSaved(wanted.from, task.save, unit.shard, unit.elements, parts->parts()));
    ATOLL_RETURN_IF_ERROR(units_.Put(task.save, {unit, wanted.elements, parts}));
  }
  return absl::OkStatus();
}

absl::Status SimMember::ReadSaved(int64_t save, const LayerShard& shard, Range elements,
                                  const ShardParts& out) const {
  const auto copy = [&](const StoredUnit& stored) {
    const Range within{elements.begin - stored.unit.elements.begin,
                       elements.end - stored.unit.elements.begin};
    const worker::PartMap from =
        worker::ToPartMap(worker::SliceParts(stored.parts->parts(), worker::kAllParts, within));
    for (const auto& [part, to] : worker::ToPartMap(out)) {
      std::copy(from.at(part).begin(), from.at(part).end(), to.begin());
    }
    return absl::OkStatus();
  };
  if (const absl::StatusOr<StoredUnit> stored = units_.Find(save, shard, elements); stored.ok()) {
    return copy(*stored);
  }
  const auto disk = disk_.find(save);
  for (const StoredUnit& stored :
       disk == disk_.end() ? std::vector<StoredUnit>() : disk->second.units) {
    if (stored.unit.shard == shard && stored.unit.elements.begin <= elements.begin &&
        stored.unit.elements.end >= elements.end) {
      return copy(stored);
    }
  }
  return absl::NotFoundError(
      absl::StrCat("no copy of layer ", shard.layer, " from save ", save, " is at ", self_.worker));
}

absl::Status SimMember::GetSaved(const NodeId& from, int64_t save, const LayerShard& shard,
                                 Range elements, const ShardParts& out) {
  if (from == self_.worker) return ReadSaved(save, shard, elements, out);
  ATOLL_RETURN_IF_ERROR(Takes(milliseconds(30)));
  std::string why;
  const std::shared_ptr<SimMember> other = Partner(from, &why);
  if (other == nullptr) return absl::UnavailableError(why);
  return other->ReadSaved(save, shard, elements, out);
}

absl::StatusOr<std::vector<HeldSave>> SimMember::SavesIn(Tier tier) {
  std::vector<HeldSave> saves;
  if (tier != Tier::kDisk) return saves;
  for (const auto& [save, part] : disk_) {
    if (part.job != fence_.job) continue;
    HeldSave& held = saves.emplace_back();
    held.save = save;
    held.optimizer_step = part.optimizer_step;
    for (const StoredUnit& unit : part.units) {
      held.units.push_back({unit.unit, unit.elements, Tier::kDisk});
    }
  }
  return saves;
}

void SimMember::DropCopies() { units_.Clear(); }

}  // namespace atl::sim
