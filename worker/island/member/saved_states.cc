#include "worker/island/member/saved_states.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes_text.h"

namespace atl::worker {
namespace {

// While the newer save is made the older one is kept. `residuals`: what quantised pushes owe.
int64_t CountBytes(const SaveOrder& order, int64_t residuals) {
  int64_t elements = 0;
  for (const Unit& unit : order.own) elements += unit.elements.size();
  for (const SaveFetch& fetch : order.fetch) elements += fetch.unit.elements.size();
  return 2 * (std::popcount(static_cast<uint32_t>(kAllParts)) * elements + residuals) *
         static_cast<int64_t>(sizeof(float));
}

}  // namespace

SavedStates::SavedStates(MemberState* state, GroupCalls* calls, MemberLayers* layers,
                         SavedTiers* saved, int64_t bytes_max)
    : state_(state), calls_(calls), layers_(layers), saved_(saved), bytes_max_(bytes_max) {
  for (std::unique_ptr<StateSaver>& saver : savers_) {
    saver = std::make_unique<StateSaver>([this](const SaveTask& task, const Cancelled& cancelled) {
      return task.tier == Tier::kMemory ? KeepCopies(task, cancelled)
                                        : saved_->Write(task, cancelled);
    });
  }
}

// ------------------------------------------------------------------------------------ saving ----

absl::Status SavedStates::Save(SaveTask task, const std::shared_ptr<OuterState>& outer,
                               StateSaver::Done done) {
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<const GroupJob> job, state_->OpenJob());
  const bool in_memory = task.tier == Tier::kMemory;
  StateSaver& saver = *savers_[static_cast<size_t>(task.tier)];
  saver.Cancel();
  if (in_memory) {
    for (const HeldSave& held : saved_->memory().Held()) {
      if (held.save != task.keep) saved_->memory().Drop(held.save);
    }
    if (const int64_t bytes = CountBytes(task.order, outer == nullptr ? 0 : KeptResiduals(*outer));
        bytes_max_ > 0 && bytes > bytes_max_) {
      done(task.save, absl::ResourceExhaustedError(absl::StrCat(
                          "saved states would take ", BytesText(bytes), " of ", state_->name(),
                          "'s memory, and may take ", BytesText(bytes_max_),
                          "; set checkpoint.peer_copies = 0, or use workers with more memory")));
      return absl::OkStatus();
    }
    saved_->memory().Begin(task.save, task.optimizer_step);
  }
  for (const Unit& unit : task.order.own) {
    ATOLL_ASSIGN_OR_RETURN(const LayerLayout layout, job->GetLayerLayout(unit.shard));
    if (unit.elements.end > layout.size) {
      return absl::InvalidArgumentError(absl::StrCat("elements up to ", unit.elements.end, " of ",
                                                     ToString(unit.shard), ", which has ",
                                                     layout.size));
    }
    const auto parts = std::make_shared<OwnedParts>(unit.elements.size(), kAllParts);
    ATOLL_RETURN_IF_ERROR(
        layers_->GetShard(state_->name(), unit.shard, unit.elements, parts->parts()));
    if (in_memory) {
      ATOLL_RETURN_IF_ERROR(saved_->memory().Put(task.save, {unit, layout.size, parts}));
    } else {
      task.units.push_back({unit, layout.size, parts});
    }
  }
  const bool saves = !task.order.own.empty() || !task.order.fetch.empty();
  if (saves && outer != nullptr) ATOLL_RETURN_IF_ERROR(SaveResiduals(*outer, &task));
  for (SaveFetch& fetch : task.order.fetch) {
    ATOLL_ASSIGN_OR_RETURN(const LayerLayout layout, job->GetLayerLayout(fetch.unit.shard));
    fetch.elements = layout.size;
    if (fetch.unit.elements.end > layout.size) return absl::InvalidArgumentError("no such unit");
  }
  state_->log().Change(
      [&](ReplayLog& log) { log.Saved(task.save, task.optimizer_step, /*lasting=*/!in_memory); });
  saver.Prepare(std::move(task), std::move(done));
  return absl::OkStatus();
}

int64_t SavedStates::KeptResiduals(const OuterState& outer) const {
  int64_t elements = 0;
  if (!outer.quantized()) return elements;
  for (const OuterRange& part : outer.layout()) {
    if (std::count(part.holders.begin(), part.holders.end(), state_->name()) > 0) {
      elements += part.range.size();
    }
  }
  return elements;
}

// Saves the residuals of quantised pushes. In memory all who keep it save it, so that the death of
// its owner loses none of it; elsewhere the owners do.
absl::Status SavedStates::SaveResiduals(const OuterState& outer, SaveTask* task) {
  if (!outer.quantized()) return absl::OkStatus();
  const bool in_memory = task->tier == Tier::kMemory;
  for (const OuterRange& part : outer.layout()) {
    const bool kept = std::count(part.holders.begin(), part.holders.end(), state_->name()) > 0;
    if (in_memory ? !kept : part.holders.front() != state_->name()) continue;
    const auto values = std::make_shared<std::vector<float>>(part.range.size());
    ATOLL_RETURN_IF_ERROR(outer.Read(OuterKind::kResidual, part.layer, part.range, *values));
    StoredResidual residual{part.layer, part.range, values};
    if (in_memory) {
      ATOLL_RETURN_IF_ERROR(saved_->memory().PutResidual(task->save, std::move(residual)));
    } else {
      task->residuals.push_back(std::move(residual));
    }
  }
  return absl::OkStatus();
}

void SavedStates::GoOn(int64_t save) {
  for (const std::unique_ptr<StateSaver>& saver : savers_) saver->GoOn(save);
}

// Elsewhere what is older goes when the next save is written.
void SavedStates::Forget(int64_t save, Tier tier) {
  if (tier == Tier::kMemory) saved_->memory().DropBefore(save);
}

absl::Status SavedStates::KeepCopies(const SaveTask& task, const Cancelled& cancelled) {
  for (const SaveFetch& wanted : task.order.fetch) {
    if (cancelled()) return absl::AbortedError("the save is cancelled");
    const Unit& unit = wanted.unit;
    const auto parts = std::make_shared<OwnedParts>(unit.elements.size(), kAllParts);
    ATOLL_RETURN_IF_ERROR(layers_->GetShard(wanted.from, unit.shard, unit.elements, parts->parts(),
                                            {.of_save = task.save}));
    ATOLL_RETURN_IF_ERROR(saved_->memory().Put(task.save, {unit, wanted.elements, parts}));
  }
  return absl::OkStatus();
}

void SavedStates::Cancel() {
  for (const std::unique_ptr<StateSaver>& saver : savers_) saver->Cancel();
}

void SavedStates::Stop() {
  for (const std::unique_ptr<StateSaver>& saver : savers_) saver->Stop();
}

void SavedStates::StopSaving() {
  Cancel();
  calls_->Fail(absl::AbortedError("nothing is saved any more"));
  Stop();
}

void SavedStates::DropCopies() {
  savers_[static_cast<size_t>(Tier::kMemory)]->Cancel();
  saved_->memory().Clear();
}

// ------------------------------------------------------------------------------------- tiers ----

absl::Status SavedStates::ReadResiduals(int64_t save, OuterState& next) {
  absl::Status missing;
  for (const OuterRange& part : *next.parts()) {
    std::vector<float> values(static_cast<size_t>(part.range.size()));
    const absl::Status read = ReadResidual(save, part, values);
    if (absl::IsAborted(read)) return read;
    missing.Update(read);
    ATOLL_RETURN_IF_ERROR(next.Write(OuterKind::kResidual, part.layer, part.range, values));
  }
  return missing;
}

// Reads the residual as far as this worker and the other members have it; returns the first error
// of members that could not answer.
absl::Status SavedStates::ReadResidual(int64_t save, const OuterRange& part,
                                       std::span<float> values) {
  ElementRanges found;
  absl::Status first =
      saved_->ReadResidual(save, part.layer, part.range, /*remote=*/true, values, &found);
  const std::shared_ptr<const IslandPlan> plan = state_->plan();
  for (const IslandMember& member : plan->members) {
    if (member.worker == state_->name()) continue;
    for (const ElementRange& missing : found.Missing(part.range)) {
      if (absl::IsAborted(first)) return first;
      first.Update(
          FetchResidual(member.worker, save, part.layer, missing,
                        values.subspan(static_cast<size_t>(missing.begin - part.range.begin),
                                       static_cast<size_t>(missing.size()))));
    }
  }
  return first;
}

// Fetches what another member has of these elements; the others stay.
absl::Status SavedStates::FetchResidual(const NodeId& from, int64_t save, int32_t layer,
                                        ElementRange range, std::span<float> out) {
  std::vector<float> sent(out.size());
  ShardParts parts;
  parts.outer = sent;
  parts.outer_part = GetOuterPart(OuterKind::kResidual);
  const absl::Status status =
      calls_->FetchLayer(from, LayerShard{layer, 0, {1}}, range, {.of_save = save}, parts);
  if (absl::IsNotFound(status)) return absl::OkStatus();
  ATOLL_RETURN_IF_ERROR(status);
  for (size_t i = 0; i < sent.size(); ++i) {
    if (sent[i] != 0) out[i] = sent[i];  // zero, or not there: then another one may have it
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> SavedStates::SendResidual(const LayerRequest& request) {
  const ElementRange range = request.what.elements;
  const int32_t layer = request.what.shard.layer;
  const std::shared_ptr<const GroupJob> job = state_->job();
  if (job == nullptr || layer < 0 || layer >= std::ssize(job->layouts) ||
      range.end > job->layouts[static_cast<size_t>(layer)].size) {
    return false;  // before memory is taken
  }
  const auto parts = std::make_shared<const OwnedParts>(range.size(), request.what.parts);
  ElementRanges found;
  const absl::Status read = saved_->ReadResidual(request.what.of_save, layer, range,
                                                 /*remote=*/false, parts->parts().outer, &found);
  if (absl::IsAborted(read)) return read;
  if (found.empty()) return false;  // what else is here counts, whatever is damaged
  ATOLL_RETURN_IF_ERROR(calls_->SendParts(request, parts));
  return true;
}

absl::StatusOr<bool> SavedStates::Send(const LayerRequest& request) {
  if ((request.what.parts & kOuterParts) != 0) return SendResidual(request);
  const LayerShard& shard = request.what.shard;
  const Range elements = request.what.elements;
  // Before memory is taken for it.
  ATOLL_ASSIGN_OR_RETURN(const bool here, saved_->IsHere(request.what.of_save, shard, elements));
  if (!here) return false;
  const auto parts = std::make_shared<const OwnedParts>(elements.size(), request.what.parts);
  ATOLL_RETURN_IF_ERROR(
      layers_->GetShard(state_->name(), shard, elements, parts->parts(), request.what));
  ATOLL_RETURN_IF_ERROR(calls_->SendParts(request, parts));
  return true;
}

}  // namespace atl::worker
