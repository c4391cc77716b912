#include "worker/island/member/member_layers.h"

#include <map>
#include <memory>
#include <optional>

#include "common/model/tensor_layout.h"
#include "worker/model/frozen_weights.h"
#include "worker/model/weights.h"

namespace atl::worker {
namespace {

// The folder's tensors must be those that the job was opened with, and all workers have.
absl::Status CheckBase(const GroupJob& job, const Cancelled& cancelled) {
  const std::string& folder = job.spec.model.initial_weights_path;
  const auto digest = DigestWeights(folder, job.base_layouts, cancelled);
  if (!digest.ok()) return Annotate(digest.status(), "model.initial_weights_path");
  if (*digest == job.facts.base_digest) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("model.initial_weights_path: the weights in ", folder,
                   " are others than when the job was opened; put back what was there"));
}

}  // namespace

// ------------------------------------------------------------------- what is on these devices ----

std::vector<HeldLayer> MemberLayers::Held() {
  const std::shared_ptr<Engine> engine = state_->engine();
  std::vector<HeldLayer> held;
  {
    const std::lock_guard work(state_->engine_mutex());
    if (engine != nullptr) held = engine->Held();
  }
  const std::lock_guard lock(mutex_);
  stamps_.Note(&held);
  return held;
}

void MemberLayers::Stamp(const StampTable::Stamps& stamps) {
  const std::vector<HeldLayer> held = Held();
  const std::lock_guard lock(mutex_);
  stamps_.Set(held, stamps);
}

void MemberLayers::ForgetStamps() {
  const std::lock_guard lock(mutex_);
  stamps_.Clear();
}

void MemberLayers::DropSurplus() {
  const std::shared_ptr<Engine> engine = state_->engine();
  const std::lock_guard work(state_->engine_mutex());
  if (engine != nullptr) engine->DropSurplus();
}

absl::Status MemberLayers::Fetch(const std::vector<StateTransfer>& transfers,
                                 int64_t optimizer_step, int64_t save,
                                 const StampTable::Stamps& stamps) {
  ATOLL_RETURN_IF_ERROR(ReadFrozen());
  for (const StateTransfer& move : transfers) {
    ATOLL_RETURN_IF_ERROR(Annotate(FetchOne(move, optimizer_step), ToString(move.shard)));
    const std::vector<HeldLayer> held = Held();
    const std::lock_guard lock(mutex_);
    stamps_.Set(held, move.shard, stamps);
  }
  ATOLL_RETURN_IF_ERROR(SetOptimizerSteps(optimizer_step));
  Stamp(stamps);
  if (save == 0) return absl::OkStatus();
  state_->log().Change([&](ReplayLog& log) {
    log.Clear();
    log.Saved(save, optimizer_step);
  });
  return absl::OkStatus();
}

// One layer after the other: the host's memory has room for one. The engine is free meanwhile.
absl::Status MemberLayers::ReadFrozen() {
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<const GroupJob> job, state_->OpenJob());
  if (job->base_layouts.empty()) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<Engine> engine, state_->OpenEngine());
  const std::vector<LayerShard> lacking = [&] {
    const std::lock_guard work(state_->engine_mutex());
    return engine->ListLackingFrozen();
  }();
  if (lacking.empty()) return absl::OkStatus();
  const std::string& folder = job->spec.model.initial_weights_path;
  const Cancelled cancelled = state_->UntilInterrupted();
  ATOLL_RETURN_IF_ERROR(CheckBase(*job, cancelled));
  std::vector<float> values;
  std::optional<FrozenWeights> weights;
  int32_t read = -1;
  for (const LayerShard& shard : lacking) {
    const LayerLayout& base = job->base_layouts[static_cast<size_t>(shard.layer)];
    if (read != shard.layer) {
      std::vector<std::span<float>> spans(job->base_layouts.size());
      values.resize(static_cast<size_t>(base.size));
      spans[static_cast<size_t>(shard.layer)] = values;
      ATOLL_RETURN_IF_ERROR(Annotate(ReadWeights(folder, job->base_layouts, spans, cancelled),
                                     "model.initial_weights_path"));
      weights.emplace(job->layouts[static_cast<size_t>(shard.layer)], values);
      read = shard.layer;
    }
    const std::lock_guard work(state_->engine_mutex());
    ATOLL_RETURN_IF_ERROR(engine->SetFrozen(shard, *weights));
  }
  return absl::OkStatus();
}

absl::Status MemberLayers::FetchOne(const StateTransfer& move, int64_t optimizer_step) {
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<const GroupJob> job, state_->OpenJob());
  // The parts of each shard that is a source: one, or all ranks of another cut.
  std::map<int32_t, std::unique_ptr<OwnedParts>> shards;
  for (const StateSource& source : move.sources) {
    std::unique_ptr<OwnedParts>& parts = shards[source.shard.rank];
    if (parts == nullptr) {
      ATOLL_ASSIGN_OR_RETURN(const LayerLayout layout, job->GetLayerLayout(source.shard));
      parts = std::make_unique<OwnedParts>(layout.size, kAllParts);
    }
    const int64_t size = std::ssize(parts->parts().parameters);
    if (source.elements.end > size) {
      return absl::InvalidArgumentError(
          absl::StrCat("elements up to ", source.elements.end, " of a shard that has ", size));
    }
    const ShardParts to = SliceParts(parts->parts(), source.parts, source.elements);
    ATOLL_RETURN_IF_ERROR(
        GetShard(source.from, source.shard, source.elements, to, {.of_save = source.save}));
  }
  if (move.sources[0].shard == move.shard) {
    return SetState(move.shard, optimizer_step, shards.begin()->second->parts());
  }
  // Another cut: through the whole layer.
  ATOLL_ASSIGN_OR_RETURN(const LayerLayout own, job->GetLayerLayout(move.shard));
  const LayerLayout& whole = job->layouts[static_cast<size_t>(move.shard.layer)];
  const OwnedParts joined(whole.size, kAllParts);
  const PartMap all = ToPartMap(joined.parts());
  for (const auto& [rank, parts] : shards) {
    LayerShard shard = move.sources[0].shard;
    shard.rank = rank;
    ATOLL_ASSIGN_OR_RETURN(const LayerLayout layout, job->GetLayerLayout(shard));
    for (const auto& [part, values] : ToPartMap(parts->parts())) {
      JoinLayer(whole, layout, values, all.at(part));
    }
  }
  const OwnedParts cut(own.size, kAllParts);
  for (const auto& [part, values] : ToPartMap(cut.parts())) {
    CutLayer(whole, own, all.at(part), values);
  }
  return SetState(move.shard, optimizer_step, cut.parts());
}

// -------------------------------------------------------------------------------- elements ----

absl::Status MemberLayers::GetShard(const NodeId& from, const LayerShard& shard, Range elements,
                                    const ShardParts& out, const GetLayerCall& of) {
  if (from != state_->name()) return calls_->FetchLayer(from, shard, elements, of, out);
  if (of.of_save != 0) {
    return saved_->Read(of.of_save, shard, elements, out);
  }
  if (of.of_snapshot) {  // not behind a step
    ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<Engine> engine, state_->OpenEngine());
    return engine->GetSnapshot(shard, elements, out.parameters);
  }
  return state_->OnEngine([&](Engine& engine) -> absl::Status {
    for (const auto& [part, span] : ToPartMap(out)) {
      ATOLL_RETURN_IF_ERROR(engine.GetLayer(shard, static_cast<LayerPart>(part), elements, span));
    }
    return absl::OkStatus();
  });
}

absl::Status MemberLayers::SetShard(const LayerShard& shard, const ShardParts& values) {
  return state_->OnEngine([&](Engine& engine) -> absl::Status {
    for (const auto& [part, span] : ToPartMap(values)) {
      ATOLL_RETURN_IF_ERROR(engine.SetLayer(shard, static_cast<LayerPart>(part), span));
    }
    return absl::OkStatus();
  });
}

absl::Status MemberLayers::SetState(const LayerShard& shard, int64_t optimizer_step,
                                    const ShardParts& values) {
  std::map<LayerPart, std::span<const float>> parts;
  for (const auto& [part, span] : ToPartMap(values)) parts[static_cast<LayerPart>(part)] = span;
  return state_->OnEngine(
      [&](Engine& engine) { return engine.SetState(shard, optimizer_step, parts); });
}

absl::Status MemberLayers::SetOptimizerSteps(int64_t steps) {
  if (steps == 0) state_->log().Change([](ReplayLog& log) { log.Changed(); });
  return state_->OnEngine([&](Engine& engine) { return engine.SetOptimizerSteps(steps); });
}

// ---------------------------------------------------------------------------------- answers ----

absl::StatusOr<int64_t> MemberLayers::CountHere(const GetLayerCall& request) {
  if (request.of_snapshot) {
    ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<Engine> engine, state_->OpenEngine());
    return engine->SnapshotElements(request.shard);
  }
  for (const HeldLayer& layer : Held()) {
    if (layer.shard == request.shard && layer.written && !layer.table_only) return layer.elements;
  }
  return absl::NotFoundError(absl::StrCat(ToString(request.shard), " is not here"));
}

absl::Status MemberLayers::Send(const LayerRequest& request) {
  const LayerShard& shard = request.what.shard;
  const Range elements = request.what.elements;
  // Before memory is taken.
  ATOLL_ASSIGN_OR_RETURN(const int64_t all, CountHere(request.what));
  if (elements.end > all) {
    return absl::InvalidArgumentError(absl::StrCat("elements ", elements.begin, " to ",
                                                   elements.end, " of ", ToString(shard),
                                                   ", which has ", all));
  }
  const auto parts = std::make_shared<const OwnedParts>(elements.size(), request.what.parts);
  ATOLL_RETURN_IF_ERROR(GetShard(state_->name(), shard, elements, parts->parts(), request.what));
  return calls_->SendParts(request, parts);
}

}  // namespace atl::worker
