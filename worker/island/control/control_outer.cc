// What an island exchanges with the parameter servers: every member keeps, pushes and pulls what it
// owns, and a version reaches all devices from its owners.

#include <algorithm>
#include <set>

#include "common/check.h"
#include "worker/island/control/control.h"

namespace atl::worker {
namespace {

// Of these elements, what of `held` covers them, in order; what is left is appended to `missing`.
void Cover(int32_t layer, ElementRange range, const NodeId& from, const LayerParts& held,
           std::vector<OuterRange>* sources, std::vector<ElementRange>* missing) {
  ElementRanges covered;
  for (const OuterRange& part : held) {
    if (part.layer != layer) continue;
    const ElementRange here{std::max(range.begin, part.range.begin),
                            std::min(range.end, part.range.end)};
    if (here.size() <= 0) continue;
    sources->push_back({layer, here, {from}});
    covered.Add(here);
  }
  const std::vector<ElementRange> left = covered.Missing(range);
  missing->insert(missing->end(), left.begin(), left.end());
}

}  // namespace

// Bytes of the largest thing that is waited for: whole layers, between members.
int64_t IslandControl::ModelBytes() const {
  int64_t elements = 0;
  for (const LayerSize& layer : port_->island_job()->layers) elements += layer.elements;
  return 4 * elements;
}

Duration IslandControl::TransferLimit() const {
  return port_->limits().move + GetStateTransferLimit(ModelBytes());
}

absl::Status IslandControl::AllDo(const GroupFrame& frame) {
  return AllDo(frame, TransferLimit()).status();
}

absl::StatusOr<IslandControl::Replies> IslandControl::AllDo(const GroupFrame& frame,
                                                            Duration timeout) {
  ATOLL_RETURN_IF_ERROR(Ready());
  ATOLL_RETURN_IF_ERROR(Drain());
  return Broadcast(ToAll(frame), {Followers(), timeout});
}

bool IslandControl::HaveAll(const std::set<NodeId>& taken) const {
  return std::all_of(holdings_.begin(), holdings_.end(), [&](const auto& entry) {
    const bool holds = std::any_of(entry.second.begin(), entry.second.end(),
                                   [](const HeldLayer& held) { return !held.surplus; });
    return !holds || taken.contains(entry.first);
  });
}

// ---------------------------------------------------------------------------- initial weights ----

absl::Status IslandControl::InitialWeights() {
  change_failed_ = true;  // unless all of it succeeds
  ATOLL_RETURN_IF_ERROR(ChangeAll({.body = InitialWeightsCall()}));
  change_failed_ = false;
  return absl::OkStatus();
}

// ------------------------------------------------------------------------------------ pushes ----

absl::StatusOr<IslandControl::Completion> IslandControl::CaptureDelta(
    const worker::CaptureDelta& command) {
  ATOLL_RETURN_IF_ERROR(Ready());
  ATOLL_RETURN_IF_ERROR(port_->outer()->CheckShards(command));
  ATOLL_ASSIGN_OR_RETURN(const std::set<NodeId> taken, TakeCopies({.body = SnapshotCall()}));
  const bool of_snapshot = HaveAll(taken);
  if (!of_snapshot) ATOLL_RETURN_IF_ERROR(AllDo({.body = CaptureCall{command.shards}}));
  const GroupFrame make{
      .body = MakeDeltaCall{command.contribution, command.encoding, command.shards, of_snapshot}};
  // Nothing of the control's own is touched here but what stays as long as the plan.
  return [this, make, followers = Followers()](const std::atomic<bool>& cancelled) -> absl::Status {
    if (cancelled) return absl::AbortedError("interrupted");
    absl::Status status =
        Broadcast(ToAll(make), {followers, TransferLimit(), OnFailure::kReport}).status();
    if (status.ok() && cancelled) status = absl::AbortedError("interrupted");
    if (!status.ok()) port_->outer()->DropDelta();
    return status;
  };
}

// ------------------------------------------------------------------------------------- pulls ----

absl::StatusOr<IslandControl::Completion> IslandControl::StageCarry() {
  const OuterSpec& outer = port_->island_job()->spec.outer;
  // What is staged is of all layers, and whole.
  if (outer.fragments > 1 || outer.fragment_blend < 1) return Completion();
  ATOLL_ASSIGN_OR_RETURN(const std::set<NodeId> taken, TakeCopies({.body = AdditionCall()}));
  if (!HaveAll(taken)) return Completion();
  return [this, followers = Followers()](const std::atomic<bool>& cancelled) -> absl::Status {
    if (cancelled) return absl::AbortedError("interrupted");
    const ApplyCall apply{OuterKind::kAddition, OuterTarget::kAddition, /*during_steps=*/true};
    ATOLL_RETURN_IF_ERROR(
        Broadcast(ToAll({.body = apply}), {followers, TransferLimit(), OnFailure::kReport})
            .status());
    if (cancelled) return absl::AbortedError("interrupted");
    staged_ = true;
    return absl::OkStatus();
  };
}

// Some may have changed theirs, and others not: until all have, what is of this change is no state.
absl::Status IslandControl::ChangeAll(GroupFrame frame) {
  const StateStamp changed = NewStamp();
  frame.parameters_since = changed;
  ATOLL_RETURN_IF_ERROR(AllDo(frame));
  known_.parameters_since = changed;
  return absl::OkStatus();
}

absl::Status IslandControl::ApplyAll(OuterKind kind, OuterTarget target,
                                     const std::vector<ShardPlacement>& shards) {
  GroupFrame frame{.body = ApplyCall{kind, target, /*during_steps=*/false, shards}};
  return target == OuterTarget::kNothing ? AllDo(frame) : ChangeAll(std::move(frame));
}

absl::Status IslandControl::Carry(const std::vector<ShardPlacement>& shards) {
  ATOLL_ASSIGN_OR_RETURN(const bool added, AddStaged());
  if (added) return absl::OkStatus();
  ATOLL_RETURN_IF_ERROR(ApplyAll(OuterKind::kAddition, OuterTarget::kAdded, shards));
  return FetchTables();
}

absl::Status IslandControl::FetchTables() { return AllDo({.body = FetchTablesCall()}); }

absl::Status IslandControl::AdoptPulled(const worker::AdoptPulled& command) {
  change_failed_ = true;  // unless all of it succeeds
  const bool replaces = command.mode == AdoptMode::kReplace;
  replacing_ = replaces;
  if (command.mode == AdoptMode::kCarry) {
    ATOLL_RETURN_IF_ERROR(Carry(command.shards));
  } else {
    ATOLL_RETURN_IF_ERROR(ApplyAll(OuterKind::kPulled,
                                   replaces ? OuterTarget::kParameters : OuterTarget::kNothing,
                                   command.shards));
  }
  staged_ = false;
  const OuterTag adopted{command.version, std::nullopt, NewStamp()};
  ATOLL_RETURN_IF_ERROR(
      AllDo({.body = FinishCall{adopted, command.keep_residual, command.shards}}));
  change_failed_ = replacing_ = false;
  // The others' parameters are not theta_base.
  if (replaces && command.shards.empty()) port_->Log([](ReplayLog& log) { log.Explained(); });
  return absl::OkStatus();
}

// -------------------------------------------------------------------------------- validation ----

absl::Status IslandControl::PutBaseIn() {
  known_.state_broken = true;
  return AllDo({.body = PutBaseInCall()});
}

absl::Status IslandControl::TakeBaseOut() {
  if (!known_.state_broken) return absl::OkStatus();
  ATOLL_RETURN_IF_ERROR(AllDo({.body = PutBackCall()}));
  ATOLL_RETURN_IF_ERROR(FetchTables());
  known_.state_broken = false;
  return absl::OkStatus();
}

// ---------------------------------------------------------------------------- copies, steps ----

absl::Status IslandControl::SetOptimizerSteps(int64_t steps) {
  ATOLL_RETURN_IF_ERROR(Ready());
  ATOLL_RETURN_IF_ERROR(Drain());
  const StateStamp changed = NewStamp();
  change_failed_ = true;  // unless all of it succeeds
  ATOLL_RETURN_IF_ERROR(
      AllDo({.body = SetStepsCall{steps}, .moments_since = changed}, port_->limits().call)
          .status());
  change_failed_ = false;
  known_.moments_since = changed;
  steps_ = steps;
  known_.known_steps = steps;
  return absl::OkStatus();
}

absl::StatusOr<std::set<NodeId>> IslandControl::TakeCopies(const GroupFrame& frame) {
  staged_ = false;  // all copies share one block of memory
  ATOLL_ASSIGN_OR_RETURN(const Replies replies, AllDo(frame, port_->limits().call));
  std::set<NodeId> taken;
  for (const auto& [member, reply] : replies) {
    if (reply.copies_taken) taken.insert(member);
  }
  return taken;
}

absl::StatusOr<bool> IslandControl::AddStaged() {
  if (!staged_.exchange(false)) return false;
  ATOLL_RETURN_IF_ERROR(ChangeAll({.body = AdditionCall{/*add=*/true}}));
  return true;
}

// ---------------------------------------------------------------------------------- the plan ----

// What each member of the plan is to keep, and from where it gets what is held; `lost` names what
// no member holds.
std::map<NodeId, OuterLayoutCall> IslandControl::PlanOuter(std::string* lost) const {
  std::vector<ShardPlacement> shards = shards_;
  for (size_t l = 0; l < port_->island_job()->layers.size() && shards_.empty(); ++l) {
    const auto layer = static_cast<int32_t>(l);
    shards.push_back({layer, layer, 0, port_->island_job()->layers[l].elements});
  }
  OuterLayoutCall common;
  const JobSpec& spec = port_->island_job()->spec;
  common.layout = alone_ ? LayoutOfOne(name(), port_->island_job()->layers)
                         : LayoutByOwners(plan_, shards, spec.checkpoint.peer_copies,
                                          PartBlock(spec.outer.push_encoding));
  common.tag = known_.outer;
  std::map<NodeId, LayerParts> held;
  for (const auto& [worker, has] : outer_held_) {
    if (has.tag.base != common.tag.base || has.tag.since != common.tag.since ||
        (common.tag.captured && has.tag.captured != common.tag.captured)) {
      continue;
    }
    held[worker] = has.parts;
    common.encoding = has.encoding;
    common.shards = has.shards;
  }
  std::map<NodeId, OuterLayoutCall> orders;
  for (const auto& [worker, unused] : outer_held_) orders[worker] = common;
  if (common.tag == OuterTag()) return orders;
  for (const OuterRange& part : common.layout) {
    for (const NodeId& worker : part.holders) {
      std::vector<OuterRange>& sources = orders[worker].sources;
      std::vector<ElementRange> missing;
      Cover(part.layer, part.range, worker, held[worker], &sources, &missing);
      for (const auto& [other, has] : held) {
        if (other == worker) continue;
        std::vector<ElementRange> left;
        for (const ElementRange& range : missing) {
          Cover(part.layer, range, other, has, &sources, &left);
        }
        missing = std::move(left);
      }
      if (!missing.empty() && lost->empty()) {
        *lost = absl::StrCat("no member holds theta_base of elements ", missing[0].begin, " to ",
                             missing[0].end, " of layer ", part.layer);
      }
    }
  }
  if (lost->empty()) return orders;
  for (auto& [worker, order] : orders) {
    order.tag = OuterTag();
    order.sources.clear();
  }
  return orders;
}

absl::Status IslandControl::TransferOuterState(std::string* lost) {
  const std::map<NodeId, OuterLayoutCall> orders = PlanOuter(lost);
  return Broadcast([&](const NodeId& member) { return GroupFrame{.body = orders.at(member)}; },
                   {Followers(), port_->limits().move + GetStateTransferLimit(4 * ModelBytes())})
      .status();
}

}  // namespace atl::worker
