#include "worker/island/member/outer_exchange.h"

#include <algorithm>

#include "common/check.h"
#include "common/logging.h"
#include "common/model/optimizer_state.h"
#include "common/model/ownership.h"
#include "common/model/tensor_layout.h"
#include "common/protocol/tensor_groups.h"

namespace atl::worker {
namespace {

// How long the end of work is awaited before its waits are ended again.
constexpr Duration kEndSlice = std::chrono::milliseconds(20);

// Workers by rank that hold the layer in a replica of which `worker` is one; else in the first.
std::vector<NodeId> ListLayerWorkers(const IslandPlan& plan, int32_t layer, const NodeId& worker) {
  std::vector<NodeId> first;
  for (const PlanReplica& replica : plan.replicas) {
    for (const PlanStage& stage : replica.stages) {
      if (layer < stage.first_layer || layer >= stage.first_layer + stage.layers) continue;
      std::vector<NodeId> ranks;
      for (const std::string& device : stage.devices) ranks.push_back(WorkerFromDevice(device));
      if (std::count(ranks.begin(), ranks.end(), worker) > 0) return ranks;
      if (first.empty()) first = std::move(ranks);
    }
  }
  return first;
}

// Lists who owns which moments of a shard, `worker` where it is one of those that own the same.
std::vector<std::pair<Range, NodeId>> ListMomentOwners(const IslandPlan& plan,
                                                       const LayerShard& shard,
                                                       const LayerLayout& layout,
                                                       InnerOptimizer optimizer,
                                                       const NodeId& worker) {
  const Ownership ownership = OwnershipFromPlan(plan);
  const std::vector<Range> undivided = UndividedRanges(optimizer, layout);
  std::vector<std::pair<Range, NodeId>> owners;
  for (int r = 0; r < std::ssize(plan.replicas); ++r) {
    for (const PlanStage& stage : plan.replicas[static_cast<size_t>(r)].stages) {
      if (shard.layer < stage.first_layer || shard.layer >= stage.first_layer + stage.layers) {
        continue;
      }
      const NodeId device = WorkerFromDevice(stage.devices[static_cast<size_t>(shard.rank)]);
      if (ownership.Leads(r)) {
        owners.emplace_back(ownership.Owned(r, layout.size, undivided), device);
      } else if (device == worker) {
        owners.back().second = device;
      }
    }
  }
  return owners;
}

// Selects the shards in the plan, once each, by layer. A table and what it is a copy of are written
// together.
std::vector<HeldLayer> SelectOuterShards(const std::vector<HeldLayer>& all) {
  std::vector<HeldLayer> shards;
  for (const HeldLayer& held : all) {
    if (held.surplus) continue;
    const auto same = std::find_if(shards.begin(), shards.end(), [&](const HeldLayer& other) {
      return other.shard == held.shard;
    });
    if (same == shards.end()) {
      shards.push_back(held);
    } else if (same->table_only) {
      *same = held;
    }
  }
  std::sort(shards.begin(), shards.end(),
            [](const HeldLayer& a, const HeldLayer& b) { return a.shard.layer < b.shard.layer; });
  return shards;
}

}  // namespace

std::shared_ptr<OuterState> OuterExchange::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

absl::StatusOr<std::shared_ptr<OuterState>> OuterExchange::OpenState() const {
  std::shared_ptr<OuterState> outer = state();
  if (outer == nullptr) return absl::FailedPreconditionError("the plan is not set up");
  return outer;
}

void OuterExchange::Clear() {
  const std::lock_guard lock(mutex_);
  state_.reset();
  next_.reset();
  put_aside_.clear();
}

// ------------------------------------------------------------------------------------- calls ----

absl::Status OuterExchange::Do(const CaptureCall& call) {
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<OuterState> outer, OpenState());
  ATOLL_RETURN_IF_ERROR(ReadForDelta(*outer, call.shards, /*of_snapshot=*/false, nullptr));
  if (!call.moments) return absl::OkStatus();
  return outer->ReadAllMoments(call.shards, [&](int32_t layer, ElementRange range,
                                                std::span<float> first, std::span<float> second) {
    return ReadMoments(layer, range, first, second);
  });
}

absl::Status OuterExchange::DoDuringSteps(const CaptureDelta& call, const Cancelled& cancelled) {
  if (cancelled()) return absl::AbortedError("interrupted");
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<OuterState> outer, OpenState());
  if (call.of_snapshot) {
    ATOLL_RETURN_IF_ERROR(ReadForDelta(*outer, call.shards, /*of_snapshot=*/true, cancelled));
  }
  return outer->MakeDelta(call, cancelled);
}

Cancelled OuterExchange::UntilEnded() const {
  return [this, ended = ended_.load(), interrupted = member_->UntilInterrupted()] {
    return ended_ != ended || interrupted();
  };
}

void OuterExchange::EndWork() {
  ++ended_;
  while (!work_.AwaitIdle(kEndSlice)) {
    // Ends what it waits for, and what it may have begun to wait for since.
    calls_->Fail(absl::AbortedError("interrupted"));
  }
}

// -------------------------------------------------------------------------- holders of parts ----

OuterHoldings OuterExchange::Held() const {
  const std::shared_ptr<OuterState> outer = state();
  if (outer == nullptr) return {};
  return {outer->tag(), *outer->parts(), outer->delta()->encoding, outer->shards()};
}

std::vector<PartDigest> OuterExchange::digests() const {
  const std::shared_ptr<OuterState> outer = state();
  return outer == nullptr ? std::vector<PartDigest>() : outer->digests();
}

absl::Status OuterExchange::Do(const OuterLayoutCall& order) {
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<const GroupJob> job, member_->OpenJob());
  const std::shared_ptr<OuterState> before = state();
  const OuterSpec& spec = job->spec.outer;
  const bool same = before != nullptr && before->layout() == order.layout &&
                    before->spec() == spec && before->tag() == order.tag;
  std::shared_ptr<OuterState> next = before;
  if (!same) {
    next = std::make_shared<OuterState>(member_->name(), order.layout, spec);
    next->ExpectDelta(order.encoding, order.shards);
    next->set_tag(order.tag);
    for (const OuterRange& source : order.sources) {
      ATOLL_RETURN_IF_ERROR(Fetch(source, before, *next));
    }
    // A restored state has the residual of its save, and pulls its base.
    const std::optional<int64_t> save = member_->log().PresentSave();
    if (IsQuantized(spec.push_encoding) && save && order.tag == OuterTag()) {
      const absl::Status restored = saves_->ReadResiduals(*save, *next);
      if (absl::IsAborted(restored)) return restored;
      if (!restored.ok()) {
        LogWarning("checkpoint",
                   "some of what quantised pushes owe begins at zero: ", restored.message());
      }
    }
  }
  std::vector<HeldLayer> held = SelectOuterShards(layers_->Held());
  const std::lock_guard lock(mutex_);
  next_ = std::move(next);
  held_shards_ = std::move(held);
  return absl::OkStatus();
}

absl::Status OuterExchange::Fetch(const OuterRange& source,
                                  const std::shared_ptr<OuterState>& before, OuterState& next) {
  const NodeId& from = source.holders.front();
  for (const OuterKind kind : next.ListHeldKinds()) {
    const int64_t size = kind == OuterKind::kEncoded
                             ? next.EncodedFloats(source.layer, source.range)
                             : source.range.size();
    std::vector<float> values(static_cast<size_t>(size));
    if (from == member_->name()) {
      ATOLL_CHECK(before != nullptr);
      ATOLL_RETURN_IF_ERROR(before->Read(kind, source.layer, source.range, values));
    } else {
      ATOLL_RETURN_IF_ERROR(FetchFrom(from, kind, source.layer, source.range, values));
    }
    ATOLL_RETURN_IF_ERROR(next.Write(kind, source.layer, source.range, values));
  }
  return absl::OkStatus();
}

void OuterExchange::CommitLayout() {
  const std::lock_guard lock(mutex_);
  if (next_ != nullptr) state_ = std::move(next_);
  next_.reset();
}

// ---------------------------------------------------------------------------------- elements ----

absl::Status OuterExchange::FetchFrom(const NodeId& from, OuterKind kind, int32_t layer,
                                      ElementRange range, std::span<float> out) {
  if (out.empty()) return absl::OkStatus();
  ShardParts parts;
  parts.outer = out;
  parts.outer_part = GetOuterPart(kind);
  return calls_->FetchLayer(from, LayerShard{layer, 0, {1}}, range, {}, parts);
}

absl::Status OuterExchange::Send(const LayerRequest& request) {
  const std::shared_ptr<OuterState> outer = state();
  if (outer == nullptr) return absl::NotFoundError("it keeps nothing for the servers");
  const ElementRange range = request.what.elements;
  const int32_t layer = request.what.shard.layer;
  // Checks that it is here before memory is taken.
  if (FindElements(*outer->base(), *outer->parts(), layer, range).empty()) {
    return absl::NotFoundError(absl::StrCat("elements ", range.begin, " to ", range.end,
                                            " of layer ", layer, " are not kept here"));
  }
  const OuterKind kind = OuterKindFromPartMask(request.what.parts);
  const int64_t size =
      kind == OuterKind::kEncoded ? outer->EncodedFloats(layer, range) : range.size();
  const auto parts = std::make_shared<const OwnedParts>(size, request.what.parts);
  ATOLL_RETURN_IF_ERROR(outer->Read(kind, layer, range, parts->parts().outer));
  return calls_->SendParts(request, parts);
}

absl::Status OuterExchange::ReadLayer(OuterKind kind, int32_t layer, std::span<float> out) {
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<OuterState> outer, OpenState());
  for (const OuterRange& part : outer->layout()) {
    if (part.layer != layer) continue;
    const auto to =
        out.subspan(static_cast<size_t>(part.range.begin), static_cast<size_t>(part.range.size()));
    const auto holders = IsOfMoments(kind) ? part.holders.begin() + 1 : part.holders.end();
    if (std::count(part.holders.begin(), holders, member_->name()) > 0) {
      ATOLL_RETURN_IF_ERROR(outer->Read(kind, layer, part.range, to));
    } else {
      ATOLL_RETURN_IF_ERROR(FetchFrom(part.holders.front(), kind, layer, part.range, to));
    }
  }
  return absl::OkStatus();
}

// ------------------------------------------------------------------------------------ pushes ----

// Elements of a whole layer, of these devices, of another worker's if they do not hold it, or,
// where it is cut, of all its ranks'.
absl::Status OuterExchange::ReadParameters(int32_t layer, ElementRange range, bool of_snapshot,
                                           std::span<float> out) {
  const auto get = [&](const NodeId& from, const LayerShard& shard, Range elements,
                       std::span<float> to) {
    return layers_->GetShard(from, shard, elements, {to, {}, {}}, {.of_snapshot = of_snapshot});
  };
  const std::shared_ptr<const IslandPlan> plan = member_->plan();
  const std::vector<int32_t> ratios = GetTensorSplitRatios(*plan, layer);
  const std::vector<NodeId> ranks = ListLayerWorkers(*plan, layer, member_->name());
  if (ranks.size() == 1) return get(ranks.front(), {layer, 0, ratios}, range, out);
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<const GroupJob> job, member_->OpenJob());
  const LayerLayout& whole = job->layouts[static_cast<size_t>(layer)];
  std::vector<float> joined(static_cast<size_t>(whole.size));
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const LayerShard shard{layer, static_cast<int32_t>(rank), ratios};
    ATOLL_ASSIGN_OR_RETURN(const LayerLayout cut, job->GetLayerLayout(shard));
    std::vector<float> values(static_cast<size_t>(cut.size));
    ATOLL_RETURN_IF_ERROR(get(ranks[rank], shard, {0, cut.size}, values));
    JoinLayer(whole, cut, values, joined);
  }
  std::copy_n(joined.begin() + range.begin, out.size(), out.begin());
  return absl::OkStatus();
}

// A tensor-parallel rank's elements are spread over the layer, so that all of them are read.
absl::Status OuterExchange::ReadMoments(int32_t layer, ElementRange range, std::span<float> first,
                                        std::span<float> second) {
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<const GroupJob> job, member_->OpenJob());
  const std::shared_ptr<const IslandPlan> plan = member_->plan();
  const std::vector<int32_t> ratios = GetTensorSplitRatios(*plan, layer);
  const LayerLayout& whole = job->layouts[static_cast<size_t>(layer)];
  const bool cut = ratios.size() > 1;
  const OwnedParts joined(cut ? whole.size : 0, kAllParts - kParametersPart);
  for (int32_t rank = 0; rank < std::ssize(ratios); ++rank) {
    const LayerShard shard{layer, rank, ratios};
    ATOLL_ASSIGN_OR_RETURN(const LayerLayout layout, job->GetLayerLayout(shard));
    const Range wanted = cut ? Range{0, layout.size} : Range{range.begin, range.end};
    const OwnedParts parts(wanted.size(), kAllParts - kParametersPart);
    for (const auto& [owned, worker] :
         ListMomentOwners(*plan, shard, layout, job->spec.inner.optimizer, member_->name())) {
      const Range here = Intersection(owned, wanted);
      if (here.size() == 0) continue;
      ATOLL_RETURN_IF_ERROR(
          layers_->GetShard(worker, shard, here,
                            SliceParts(parts.parts(), kAllParts,
                                       {here.begin - wanted.begin, here.end - wanted.begin})));
    }
    if (!cut) {
      std::copy_n(parts.parts().first_moment.begin(), first.size(), first.begin());
      std::copy_n(parts.parts().second_moment.begin(), second.size(), second.begin());
      return absl::OkStatus();
    }
    JoinLayer(whole, layout, parts.parts().first_moment, joined.parts().first_moment);
    JoinLayer(whole, layout, parts.parts().second_moment, joined.parts().second_moment);
  }
  std::copy_n(joined.parts().first_moment.begin() + range.begin, first.size(), first.begin());
  std::copy_n(joined.parts().second_moment.begin() + range.begin, second.size(), second.begin());
  return absl::OkStatus();
}

absl::Status OuterExchange::ReadForDelta(OuterState& outer,
                                         const std::vector<ShardPlacement>& shards,
                                         bool of_snapshot, const Cancelled& cancelled) {
  return outer.ReadAll(shards, [&](int32_t layer, ElementRange range, std::span<float> out) {
    if (cancelled && cancelled()) return absl::Status(absl::AbortedError("interrupted"));
    return ReadParameters(layer, range, of_snapshot, out);
  });
}

// ------------------------------------------------------------------------------------- pulls ----

absl::Status OuterExchange::SetDevices(const HeldLayer& held, OuterTarget target,
                                       std::span<const float> values) {
  if (target == OuterTarget::kAddition) {
    ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<Engine> engine, member_->OpenEngine());
    return engine->SetAddition(held.shard, values);
  }
  if (target == OuterTarget::kNothing) return absl::OkStatus();
  // Again for each shard: a step, or a save, may have come between two of them.
  member_->log().Change([](ReplayLog& log) { log.Changed(); });
  std::span<float> set(const_cast<float*>(values.data()), values.size());
  std::vector<float> sum;
  if (target == OuterTarget::kAdded) {
    sum.resize(values.size());
    ATOLL_RETURN_IF_ERROR(
        layers_->GetShard(member_->name(), held.shard, {0, std::ssize(sum)}, {sum, {}, {}}));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
    set = sum;
  }
  if (target == OuterTarget::kFirstMoment) return layers_->SetShard(held.shard, {{}, set, {}});
  if (target == OuterTarget::kSecondMoment) return layers_->SetShard(held.shard, {{}, {}, set});
  return layers_->SetShard(held.shard, {set, {}, {}});
}

std::vector<HeldLayer> OuterExchange::HeldShards() const {
  const std::lock_guard lock(mutex_);
  return held_shards_;
}

absl::Status OuterExchange::DoDuringSteps(const ApplyCall& call, const Cancelled& cancelled) {
  if (cancelled()) return absl::AbortedError("interrupted");
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<OuterState> outer, OpenState());
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<const GroupJob> job, member_->OpenJob());
  if (IsOfPulled(call.kind)) {
    std::vector<float> values;
    for (const OuterRange& part : outer->copies()) {
      if (!Concern(call.shards, part.layer)) continue;
      values.resize(static_cast<size_t>(part.range.size()));
      ATOLL_RETURN_IF_ERROR(
          FetchFrom(part.holders.front(), OuterKind::kPulled, part.layer, part.range, values));
      ATOLL_RETURN_IF_ERROR(outer->Write(OuterKind::kPulled, part.layer, part.range, values));
    }
  }
  if (call.target == OuterTarget::kNothing) return absl::OkStatus();
  const auto blend = static_cast<float>(job->spec.outer.fragment_blend);
  return SetHeld(call.target, call.shards, [&](int32_t layer, std::span<float> out) {
    if (cancelled()) return absl::Status(absl::AbortedError("interrupted"));
    ATOLL_RETURN_IF_ERROR(ReadLayer(call.kind, layer, out));
    ATOLL_RETURN_IF_ERROR(LeaveUnpulled(call, layer, out));
    if (call.kind != OuterKind::kAddition || blend == 1) return absl::OkStatus();
    for (float& x : out) x *= blend;
    return absl::OkStatus();
  });
}

// Elements of the layer that were not pulled do not change.
absl::Status OuterExchange::LeaveUnpulled(const ApplyCall& call, int32_t layer,
                                          std::span<float> out) {
  for (const ElementRange& range : ListUnconcerned(call.shards, layer, {0, std::ssize(out)})) {
    const auto here =
        out.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
    if (call.kind == OuterKind::kAddition) {
      std::fill(here.begin(), here.end(), 0.0f);
    } else if (call.target == OuterTarget::kParameters) {
      ATOLL_RETURN_IF_ERROR(ReadParameters(layer, range, /*of_snapshot=*/false, here));
    }
  }
  return absl::OkStatus();
}

absl::Status OuterExchange::SetHeld(OuterTarget target, const std::vector<ShardPlacement>& shards,
                                    const ReadWhole& read_layer) {
  // The island's state changes, also where no layer of the fragment is held here.
  if (target != OuterTarget::kAddition) {
    member_->log().Change([](ReplayLog& log) { log.Changed(); });
  }
  // A part that is not readable comes from its holder, later.
  return ForHeld(/*tables=*/target != OuterTarget::kAdded, shards, read_layer,
                 [&](const HeldLayer& held, std::span<float> values) {
                   return SetDevices(held, target, values);
                 });
}

absl::Status OuterExchange::ForHeld(bool tables, const std::vector<ShardPlacement>& shards,
                                    const ReadWhole& read_layer, const UseHeld& use) {
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<const GroupJob> job, member_->OpenJob());
  int32_t read = -1;  // layer that `values` are
  std::vector<float> values, cut;
  for (const HeldLayer& held : HeldShards()) {
    if ((!tables && held.table_only) || !Concern(shards, held.shard.layer)) continue;
    const LayerLayout& whole = job->layouts[static_cast<size_t>(held.shard.layer)];
    if (whole.size == 0) continue;
    if (read != held.shard.layer) {
      values.resize(static_cast<size_t>(whole.size));
      ATOLL_RETURN_IF_ERROR(read_layer(held.shard.layer, values));
      read = held.shard.layer;
    }
    if (held.shard.tensor_split_ratios.size() == 1) {
      ATOLL_RETURN_IF_ERROR(use(held, values));
      continue;
    }
    ATOLL_ASSIGN_OR_RETURN(const LayerLayout part, job->GetLayerLayout(held.shard));
    cut.resize(static_cast<size_t>(part.size));
    CutLayer(whole, part, values, cut);
    ATOLL_RETURN_IF_ERROR(use(held, cut));
  }
  return absl::OkStatus();
}

absl::Status OuterExchange::Do(const FinishCall& call) {
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<OuterState> outer, OpenState());
  member_->log().Change([](ReplayLog& log) { log.ForgetBase(); });
  outer->Finish(call.tag.base, call.tag.since, call.keep_residual, call.shards);
  return absl::OkStatus();
}

absl::Status OuterExchange::Do(const FetchTablesCall&) {
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<const GroupJob> job, member_->OpenJob());
  const std::shared_ptr<const IslandPlan> plan = member_->plan();
  for (const HeldLayer& held : HeldShards()) {
    if (!held.table_only || held.elements == 0) continue;
    const std::vector<NodeId> ranks = ListLayerWorkers(*plan, held.shard.layer, member_->name());
    const auto rank = static_cast<size_t>(held.shard.rank);
    if (rank >= ranks.size()) return absl::InternalError("the plan has no such rank");
    ATOLL_ASSIGN_OR_RETURN(const LayerLayout layout, job->GetLayerLayout(held.shard));
    const OwnedParts parts(layout.size, kParametersPart);
    ATOLL_RETURN_IF_ERROR(
        layers_->GetShard(ranks[rank], held.shard, {0, layout.size}, parts.parts()));
    ATOLL_RETURN_IF_ERROR(layers_->SetShard(held.shard, parts.parts()));
  }
  return absl::OkStatus();
}

}  // namespace atl::worker
