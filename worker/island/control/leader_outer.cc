// The exchange of an island with the parameter servers: every member keeps, pushes and pulls what
// it owns, and a version reaches all devices from its owners.

#include <algorithm>
#include <set>

#include "common/check.h"
#include "worker/island/control/leader.h"

namespace atl::worker {
namespace {

// Covers these elements by what of `held` has them, in order; what is left is appended to
// `missing`.
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

// By shard and begin.
template <class Replies>
std::vector<PartDigest> JoinDigests(const Replies& replies) {
  std::vector<PartDigest> digests;
  for (const auto& [member, reply] : replies) {
    digests.insert(digests.end(), reply.digests.begin(), reply.digests.end());
  }
  std::sort(digests.begin(), digests.end(), [](const PartDigest& a, const PartDigest& b) {
    return std::pair(a.shard, a.begin) < std::pair(b.shard, b.begin);
  });
  return digests;
}

}  // namespace

// Bytes of the largest thing that is waited for: whole layers, between members.
int64_t IslandLeader::ModelBytes() const {
  int64_t elements = 0;
  for (const LayerSize& layer : port_->island_job()->layers) elements += layer.elements;
  return 4 * elements;
}

Duration IslandLeader::TransferLimit() const {
  return port_->limits().move + GetStateTransferLimit(ModelBytes());
}

absl::Status IslandLeader::AllDo(const GroupFrame& frame) {
  return AllDo(frame, TransferLimit()).status();
}

absl::StatusOr<IslandLeader::Replies> IslandLeader::AllDo(const GroupFrame& frame,
                                                          Duration timeout) {
  ATOLL_RETURN_IF_ERROR(Ready());
  ATOLL_RETURN_IF_ERROR(Drain());
  return Broadcast(ToAll(frame), {Followers(), timeout});
}

bool IslandLeader::HaveAll(const std::set<NodeId>& taken) const {
  return std::all_of(holdings_.begin(), holdings_.end(), [&](const auto& entry) {
    const bool holds = std::any_of(entry.second.begin(), entry.second.end(),
                                   [](const HeldLayer& held) { return !held.surplus; });
    return !holds || taken.contains(entry.first);
  });
}

// ---------------------------------------------------------------------------- initial weights ----

absl::StatusOr<Event> IslandLeader::Do(const MakeInitialWeights&) {
  change_failed_ = true;  // unless all of it succeeds
  ATOLL_RETURN_IF_ERROR(ChangeAll({.body = InitialWeightsCall()}));
  change_failed_ = false;
  return InitialWeightsMade{};
}

// ------------------------------------------------------------------------------------ pushes ----

// Members whose devices have room for it snapshot what they hold, and read it while steps go on; if
// one has none, all read it at once.
absl::Status IslandLeader::Do(const CaptureDelta& command) {
  ATOLL_RETURN_IF_ERROR(Ready());
  ATOLL_RETURN_IF_ERROR(port_->outer()->CheckShards(command));
  ATOLL_ASSIGN_OR_RETURN(const std::set<NodeId> taken, TakeCopies({.body = SnapshotCall()}));
  // A snapshot has no moments.
  const bool moments = HasMoments(command.encoding);
  const bool of_snapshot = HaveAll(taken) && !moments;
  if (!of_snapshot) ATOLL_RETURN_IF_ERROR(AllDo({.body = CaptureCall{command.shards, moments}}));
  CaptureDelta call = command;
  call.of_snapshot = of_snapshot;
  stepped_ = false;
  hooks_.post(DeltaCaptured{command.contribution});
  capture_.going = true;
  // Nothing of the leader's own is touched there but what stays as long as the plan.
  capture_.lane->Add([this, make = GroupFrame{.body = call}, contribution = command.contribution,
                      followers = Followers()] {
    const absl::Status interrupted = absl::AbortedError("interrupted");
    absl::Status made = interrupted;
    std::vector<PartDigest> digests;
    if (!capture_.cancelled) {
      const absl::StatusOr<Replies> replies =
          Broadcast(ToAll(make), {followers, TransferLimit(), OnFailure::kReport});
      made = replies.status();
      if (made.ok()) digests = JoinDigests(*replies);
      if (made.ok() && capture_.cancelled) made = interrupted;
      if (!made.ok()) port_->outer()->DropDelta();
    }
    capture_.going = false;
    hooks_.post(DeltaReady{contribution, made.ok(), std::string(made.message()), digests});
  });
  return absl::OkStatus();
}

// ------------------------------------------------------------------------------------- pulls ----

void IslandLeader::CancelStaging() {
  const std::lock_guard lock(mutex_);
  ++stagings_cancelled_;
  stage_.cancelled = true;
}

void IslandLeader::StagePulled(const Staging& staging) {
  AwaitBeside();
  const auto wanted = [this, ticket = staging.ticket] {
    const std::lock_guard lock(mutex_);
    return ticket == stagings_cancelled_;
  };
  // Without steps there is nothing to carry over, and adopting will replace the parameters.
  const std::shared_ptr<OuterState> outer = port_->outer();
  if (outer != nullptr && outer->tag().base != kNoVersion && stepped_) {
    const absl::StatusOr<std::function<void()>> bring = PrepareStaging();
    // Otherwise the adoption goes the other way, and has the trouble if it lasts.
    if (bring.ok() && *bring != nullptr) {
      if (!wanted()) return;
      stage_.going = true;
      return stage_.lane->Add([this, pulled = staging.pulled, wanted, bring = *bring] {
        bring();
        stage_.going = false;
        hooks_.post(wanted() ? Event(pulled) : Event(Tick{}));
      });
    }
  }
  if (wanted()) hooks_.post(staging.pulled);
}

// Where the devices of all members have room for it.
absl::StatusOr<std::function<void()>> IslandLeader::PrepareStaging() {
  const OuterSpec& outer = port_->island_job()->spec.outer;
  // A staged version is of all layers, and whole.
  if (outer.fragments * outer.expert_fragments > 1 || outer.fragment_blend < 1) return nullptr;
  ATOLL_ASSIGN_OR_RETURN(const std::set<NodeId> taken, TakeCopies({.body = AdditionCall()}));
  if (!HaveAll(taken)) return nullptr;
  return [this, followers = Followers()] {
    if (stage_.cancelled) return;
    const ApplyCall apply{OuterKind::kAddition, OuterTarget::kAddition, /*during_steps=*/true};
    const absl::Status brought =
        Broadcast(ToAll({.body = apply}), {followers, TransferLimit(), OnFailure::kReport})
            .status();
    if (brought.ok() && !stage_.cancelled) staged_ = true;
  };
}

// Some may have changed theirs, and others not: until all have, what is of this change is no state.
absl::Status IslandLeader::ChangeAll(GroupFrame frame) {
  const StateStamp changed = NewStamp();
  frame.parameters_since = changed;
  ATOLL_RETURN_IF_ERROR(AllDo(frame));
  known_.parameters_since = changed;
  return absl::OkStatus();
}

absl::Status IslandLeader::ApplyAll(OuterKind kind, OuterTarget target,
                                    const std::vector<ShardPlacement>& shards) {
  GroupFrame frame{.body = ApplyCall{kind, target, /*during_steps=*/false, shards}};
  return target == OuterTarget::kNothing ? AllDo(frame) : ChangeAll(std::move(frame));
}

absl::Status IslandLeader::Carry(const std::vector<ShardPlacement>& shards) {
  ATOLL_ASSIGN_OR_RETURN(const bool added, AddStaged());
  if (added) return absl::OkStatus();
  ATOLL_RETURN_IF_ERROR(ApplyAll(OuterKind::kAddition, OuterTarget::kAdded, shards));
  return FetchTables();
}

absl::Status IslandLeader::FetchTables() { return AllDo({.body = FetchTablesCall()}); }

// The moments are left alone, unless they are to be reset or replaced by the average.
absl::StatusOr<Event> IslandLeader::Do(const AdoptPulled& command) {
  int64_t masked = 0;
  if (command.mode == AdoptMode::kKeep) {
    ATOLL_ASSIGN_OR_RETURN(masked, port_->CountMasked(command.trained));
  }
  ATOLL_RETURN_IF_ERROR(Adopt(command));
  // Averaged moments are as old as the others': the optimizer corrects the bias of young ones.
  const int64_t least = command.moments ? command.optimizer_steps : 0;
  if (command.reset_moments || steps_ < least) ATOLL_RETURN_IF_ERROR(SetOptimizerSteps(least));
  stepped_ = false;
  return Adopted{command.version, masked};
}

absl::Status IslandLeader::ApplyMoments(StateStamp changed) {
  for (const auto& [kind, target] :
       {std::pair(OuterKind::kPulledFirst, OuterTarget::kFirstMoment),
        std::pair(OuterKind::kPulledSecond, OuterTarget::kSecondMoment)}) {
    ATOLL_RETURN_IF_ERROR(AllDo(
        {.body = ApplyCall{kind, target, /*during_steps=*/false, {}}, .moments_since = changed}));
  }
  return absl::OkStatus();
}

absl::Status IslandLeader::Adopt(const AdoptPulled& command) {
  change_failed_ = true;  // unless all of it succeeds
  const bool replaces = command.mode == AdoptMode::kReplace;
  replacing_ = replaces;
  const StateStamp changed = NewStamp();
  if (command.moments) ATOLL_RETURN_IF_ERROR(ApplyMoments(changed));
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
  if (command.moments) known_.moments_since = changed;
  // The others' parameters are not theta_base.
  if (replaces && command.shards.empty() && !command.moments)
    port_->Log([](ReplayLog& log) { log.Explained(); });
  return absl::OkStatus();
}

// -------------------------------------------------------------------------------- validation ----

// The parameters come back, also if it fails; after a failure of a member Reconfigure does that.
absl::Status IslandLeader::EvaluateWith(const PutBaseInCall& put_in,
                                        const std::function<absl::Status()>& evaluate) {
  known_.state_broken = true;
  ATOLL_RETURN_IF_ERROR(AllDo({.body = put_in}));
  const absl::Status status = evaluate();
  if (failed_) return status;
  ATOLL_RETURN_IF_ERROR(AllDo({.body = PutBackCall()}));
  ATOLL_RETURN_IF_ERROR(FetchTables());
  known_.state_broken = false;
  return status;
}

// ---------------------------------------------------------------------------- copies, steps ----

absl::Status IslandLeader::SetOptimizerSteps(int64_t steps) {
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

absl::StatusOr<std::set<NodeId>> IslandLeader::TakeCopies(const GroupFrame& frame) {
  staged_ = false;  // all copies share one block of memory
  ATOLL_ASSIGN_OR_RETURN(const Replies replies, AllDo(frame, port_->limits().call));
  std::set<NodeId> taken;
  for (const auto& [member, reply] : replies) {
    if (reply.copies_taken) taken.insert(member);
  }
  return taken;
}

absl::StatusOr<bool> IslandLeader::AddStaged() {
  if (!staged_.exchange(false)) return false;
  ATOLL_RETURN_IF_ERROR(ChangeAll({.body = AdditionCall{/*add=*/true}}));
  return true;
}

// ---------------------------------------------------------------------------------- the plan ----

// Plans what each member of the plan is to keep, and from where it gets what is held; `lost` names
// what no member holds.
std::map<NodeId, OuterLayoutCall> IslandLeader::PlanOuter(std::string* lost) const {
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

absl::Status IslandLeader::TransferOuterState(std::string* lost) {
  const std::map<NodeId, OuterLayoutCall> orders = PlanOuter(lost);
  return Broadcast([&](const NodeId& member) { return GroupFrame{.body = orders.at(member)}; },
                   {Followers(), port_->limits().move + GetStateTransferLimit(4 * ModelBytes())})
      .status();
}

}  // namespace atl::worker
