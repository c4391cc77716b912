// GroupMember: saved states of the island.

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes_text.h"
#include "worker/island/member/member.h"

namespace atl::worker {
namespace {

// While the newer save is made the older one is kept. `residuals`: what quantised pushes owe.
int64_t BytesOf(const SaveOrder& order, int64_t residuals) {
  int64_t elements = 0;
  for (const Unit& unit : order.own) elements += unit.elements.size();
  for (const SaveOrder::Fetch& fetch : order.fetch) elements += fetch.unit.elements.size();
  return 2 * (std::popcount(static_cast<uint32_t>(kAllParts)) * elements + residuals) *
         static_cast<int64_t>(sizeof(float));
}

}  // namespace

// ------------------------------------------------------------------------------------ saving ----

absl::Status GroupMember::Save(KeeperTask task, Keeper::Done done) {
  const std::shared_ptr<Engine> engine = this->engine();
  if (engine == nullptr) return absl::FailedPreconditionError("no job is open");
  const bool in_memory = task.tier == Tier::kMemory;
  Keeper& keeper = *keepers_[static_cast<size_t>(task.tier)];
  keeper.Cancel();
  if (in_memory) {
    for (const HeldSave& held : saved_.memory().Held()) {
      if (held.save != task.keep) saved_.memory().Drop(held.save);
    }
    if (const int64_t bytes = BytesOf(task.order, KeptResiduals());
        options_.saves_bytes_max > 0 && bytes > options_.saves_bytes_max) {
      done(task.save, absl::ResourceExhaustedError(absl::StrCat(
                          "saved states would take ", BytesText(bytes), " of ", name(),
                          "'s memory, and may take ", BytesText(options_.saves_bytes_max),
                          "; set checkpoint.peer_copies = 0, or use workers with more memory")));
      return absl::OkStatus();
    }
    saved_.memory().Begin(task.save, task.optimizer_step);
  }
  for (const Unit& unit : task.order.own) {
    ATOLL_ASSIGN_OR_RETURN(const LayerLayout layout, job_->LayoutOf(unit.shard));
    if (unit.elements.end > layout.size) {
      return absl::InvalidArgumentError(absl::StrCat("elements up to ", unit.elements.end, " of ",
                                                     ToString(unit.shard), ", which has ",
                                                     layout.size));
    }
    const auto parts = std::make_shared<OwnedParts>(unit.elements.size(), kAllParts);
    ATOLL_RETURN_IF_ERROR(GetShard(name(), unit.shard, unit.elements, parts->parts()));
    if (in_memory) {
      ATOLL_RETURN_IF_ERROR(saved_.memory().Put(task.save, {unit, layout.size, parts}));
    } else {
      task.units.push_back({unit, layout.size, parts});
    }
  }
  const bool saves = !task.order.own.empty() || !task.order.fetch.empty();
  if (saves) ATOLL_RETURN_IF_ERROR(SaveResiduals(&task));
  for (SaveOrder::Fetch& fetch : task.order.fetch) {
    ATOLL_ASSIGN_OR_RETURN(const LayerLayout layout, job_->LayoutOf(fetch.unit.shard));
    fetch.elements = layout.size;
    if (fetch.unit.elements.end > layout.size) return absl::InvalidArgumentError("no such unit");
  }
  log_.Change(
      [&](ReplayLog& log) { log.Saved(task.save, task.optimizer_step, /*lasting=*/!in_memory); });
  keeper.Prepare(std::move(task), std::move(done));
  return absl::OkStatus();
}

// Elements whose residual is here.
int64_t GroupMember::KeptResiduals() const {
  const std::shared_ptr<OuterState> outer = this->outer();
  int64_t elements = 0;
  if (outer == nullptr || !outer->quantized()) return elements;
  for (const KeptPart& part : outer->layout()) {
    if (std::count(part.holders.begin(), part.holders.end(), name()) > 0) {
      elements += part.range.size();
    }
  }
  return elements;
}

// What quantised pushes owe. In memory all who keep it save it, so that the death of its owner
// loses none of it; elsewhere the owners do.
absl::Status GroupMember::SaveResiduals(KeeperTask* task) {
  const std::shared_ptr<OuterState> outer = this->outer();
  if (outer == nullptr || !outer->quantized()) return absl::OkStatus();
  const bool in_memory = task->tier == Tier::kMemory;
  for (const KeptPart& part : outer->layout()) {
    const bool kept = std::count(part.holders.begin(), part.holders.end(), name()) > 0;
    if (in_memory ? !kept : part.holders.front() != name()) continue;
    const auto values = std::make_shared<std::vector<float>>(part.range.size());
    ATOLL_RETURN_IF_ERROR(outer->Read(OuterKind::kResidual, part.layer, part.range, *values));
    StoredResidual residual{part.layer, part.range, values};
    if (in_memory) {
      ATOLL_RETURN_IF_ERROR(saved_.memory().PutResidual(task->save, std::move(residual)));
    } else {
      task->residuals.push_back(std::move(residual));
    }
  }
  return absl::OkStatus();
}

void GroupMember::GoOnSaving(int64_t save) {
  for (const std::unique_ptr<Keeper>& keeper : keepers_) keeper->GoOn(save);
}

// Elsewhere what is older goes when the next save is written.
void GroupMember::ForgetSaves(int64_t save, Tier tier) {
  if (tier == Tier::kMemory) saved_.memory().DropBefore(save);
}

absl::Status GroupMember::KeepCopies(const KeeperTask& task, const Cancelled& cancelled) {
  for (const SaveOrder::Fetch& wanted : task.order.fetch) {
    if (cancelled()) return absl::AbortedError("the save is cancelled");
    const Unit& unit = wanted.unit;
    const auto parts = std::make_shared<OwnedParts>(unit.elements.size(), kAllParts);
    ATOLL_RETURN_IF_ERROR(
        GetSaved(wanted.from, task.save, unit.shard, unit.elements, parts->parts()));
    ATOLL_RETURN_IF_ERROR(saved_.memory().Put(task.save, {unit, wanted.elements, parts}));
  }
  return absl::OkStatus();
}

void GroupMember::StopSaving() {
  for (const std::unique_ptr<Keeper>& keeper : keepers_) keeper->Cancel();
  calls_.Fail(absl::AbortedError("nothing is saved any more"));
  inbox_.Fail(absl::AbortedError("nothing is saved any more"));
  for (const std::unique_ptr<Keeper>& keeper : keepers_) keeper->Stop();
}

void GroupMember::DropCopies() {
  keepers_[static_cast<size_t>(Tier::kMemory)]->Cancel();
  saved_.memory().Clear();
}

// ------------------------------------------------------------------------------------- tiers ----

absl::StatusOr<std::vector<HeldSave>> GroupMember::SavesIn(Tier tier) {
  return saved_.In(JobOfFence(), tier, UntilInterrupted());
}

std::vector<HeldSave> GroupMember::Saves() { return saved_.Here(JobOfFence(), UntilInterrupted()); }

Cancelled GroupMember::UntilInterrupted() const {
  return [this, before = interrupts_.load()] { return interrupts_ != before; };
}

JobId GroupMember::JobOfFence() const {
  const std::lock_guard lock(state_mutex_);
  return fence_.job;
}

absl::Status GroupMember::GetSaved(const NodeId& from, int64_t save, const LayerShard& shard,
                                   Range elements, const ShardParts& out) {
  if (from != name()) {
    v1::LayerCall of;
    of.set_of_save(save);
    return FetchFrom(from, shard, elements, std::move(of), out);
  }
  return saved_.Read(JobOfFence(), save, shard, elements, out, UntilInterrupted());
}

// What `next` keeps is what the save has of it, here or with other members; what is nowhere begins
// at zero.
absl::Status GroupMember::RestoreResiduals(int64_t save, OuterState& next) {
  const IslandPlan plan = this->plan();
  for (const OwnedPart& part : *next.parts()) {
    std::vector<float> values(static_cast<size_t>(part.range.size()));
    ElementRanges found;
    ATOLL_RETURN_IF_ERROR(saved_.ReadResidual(JobOfFence(), save, part.layer, part.range,
                                              /*remote=*/true, values, &found, UntilInterrupted()));
    for (const IslandMember& member : plan.members) {
      if (member.worker == name()) continue;
      for (const ElementRange& missing : found.Missing(part.range)) {
        ATOLL_RETURN_IF_ERROR(FetchResidualFrom(
            member.worker, save, part.layer, missing,
            std::span(values).subspan(static_cast<size_t>(missing.begin - part.range.begin),
                                      static_cast<size_t>(missing.size()))));
      }
    }
    ATOLL_RETURN_IF_ERROR(next.Write(OuterKind::kResidual, part.layer, part.range, values));
  }
  return absl::OkStatus();
}

// What another member has of these elements; the others stay.
absl::Status GroupMember::FetchResidualFrom(const NodeId& from, int64_t save, int32_t layer,
                                            ElementRange range, std::span<float> out) {
  std::vector<float> sent(out.size());
  ShardParts parts;
  parts.outer = sent;
  parts.outer_part = PartOf(OuterKind::kResidual);
  v1::LayerCall of;
  of.set_of_save(save);
  const absl::Status status =
      FetchFrom(from, LayerShard{layer, 0, {1}}, {range.begin, range.end}, std::move(of), parts);
  if (absl::IsNotFound(status)) return absl::OkStatus();
  ATOLL_RETURN_IF_ERROR(status);
  for (size_t i = 0; i < sent.size(); ++i) {
    if (sent[i] != 0) out[i] = sent[i];  // zero, or not there: then another one may have it
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> GroupMember::SendSavedResidual(const OutgoingTransfer& outgoing) {
  const ElementRange range{outgoing.what.begin(), outgoing.what.end()};
  const int32_t layer = outgoing.what.shard().layer();
  if (job_ == nullptr || layer < 0 || layer >= std::ssize(job_->layouts) ||
      range.end > job_->layouts[static_cast<size_t>(layer)].size) {
    return false;  // before memory is taken
  }
  const auto parts = std::make_shared<const OwnedParts>(range.size(), outgoing.what.parts());
  ElementRanges found;
  ATOLL_RETURN_IF_ERROR(saved_.ReadResidual(JobOfFence(), outgoing.what.of_save(), layer, range,
                                            /*remote=*/false, parts->parts().outer, &found,
                                            UntilInterrupted()));
  if (found.empty()) return false;
  ATOLL_RETURN_IF_ERROR(SendParts(outgoing.to, outgoing.call, parts));
  return true;
}

// False: it is not here.
absl::StatusOr<bool> GroupMember::SendSaved(const OutgoingTransfer& outgoing) {
  if ((outgoing.what.parts() & kOuterParts) != 0) return SendSavedResidual(outgoing);
  const LayerShard shard = FromWire(outgoing.what.shard());
  const Range elements{outgoing.what.begin(), outgoing.what.end()};
  // Before memory is taken for it.
  ATOLL_ASSIGN_OR_RETURN(const bool here,
                         saved_.IsHere(JobOfFence(), outgoing.what.of_save(), shard, elements));
  if (!here) return false;
  const auto parts = std::make_shared<const OwnedParts>(elements.size(), outgoing.what.parts());
  ATOLL_RETURN_IF_ERROR(GetSaved(name(), outgoing.what.of_save(), shard, elements, parts->parts()));
  ATOLL_RETURN_IF_ERROR(SendParts(outgoing.to, outgoing.call, parts));
  return true;
}

}  // namespace atl::worker
