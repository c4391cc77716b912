// An island takes on a plan.

#include <algorithm>

#include "worker/island/control/control.h"

namespace atl::worker {
namespace {

// `bytes` grows by what moves.
GroupFrame FetchFrame(const std::vector<StateTransfer>& transfers, const StateName& state,
                      int64_t save, int64_t* bytes) {
  for (const StateTransfer& transfer : transfers) {
    for (const StateSource& source : transfer.sources) {
      *bytes += CountBytes(source.elements.size(), source.parts);
    }
  }
  return {.body = FetchCall{transfers, state.optimizer_step, save},
          .parameters_since = state.parameters_since,
          .moments_since = state.moments_since};
}

}  // namespace

absl::StatusOr<PlanTaken> IslandControl::Configure(const JobId& job, Generation generation,
                                                   const IslandPlan& plan,
                                                   const std::vector<ShardPlacement>& shards,
                                                   const NodeId& before, Leadership* known) {
  if (port_->island_job() == nullptr) return absl::FailedPreconditionError("no job is open");
  port_->DropKept();
  ForgetSaving();
  // The others may be at the end of the newest step, and still wait for this member.
  if (configured_) (void)Drain();
  Fail();
  staged_ = false;
  shards_ = shards;
  if (hooks_.drained != nullptr) hooks_.drained({generation, plan.number});
  const PeerFence fence{job, generation, plan.number};
  if (fence != fence_) epoch_ = 0;
  if (fence.job != fence_.job || fence.generation != fence_.generation) {
    // Another member may have led meanwhile.
    known_steps_.reset();
    step_tried_ = false;
  }
  const bool led = known_steps_.has_value();
  const std::shared_ptr<OuterState> kept = port_->outer();
  outer_expected_ = led && kept != nullptr ? kept->tag() : OuterTag();
  fence_ = fence;
  alone_ = plan.number == 0;
  plan_ = alone_ ? MakeSingleDevicePlan() : plan;
  ATOLL_RETURN_IF_ERROR(port_->Join(fence, plan_));
  Holdings holdings;
  ATOLL_RETURN_IF_ERROR(SetUp(&holdings));
  if (!before.empty()) ATOLL_RETURN_IF_ERROR(TakeOverState(before, known));
  return TransferState(holdings);
}

void IslandControl::Keep(Leadership known) {
  if (configured_) (void)Drain();  // what it says of the newest step is in step_tried_
  const std::shared_ptr<OuterState> outer = port_->outer();
  port_->Keep({std::move(known), known_steps_.value_or(-1), step_tried_, base_is_in_,
               outer == nullptr ? OuterTag() : outer->tag(), parameters_since_, moments_since_});
}

absl::Status IslandControl::TakeOverState(const NodeId& before, Leadership* taken_over) {
  ATOLL_ASSIGN_OR_RETURN(const CallId call, port_->Call(before, {.body = TakeOverCall()}));
  ATOLL_ASSIGN_OR_RETURN(const GroupReply reply, port_->Await(call, port_->limits().call));
  if (!reply.handover) {
    return absl::InternalError(absl::StrCat(before, " does not say what it knows"));
  }
  const IslandHandover& known = *reply.handover;
  *taken_over = known.leadership;
  outer_expected_ = known.outer;
  known_steps_.reset();
  if (known.known_steps >= 0) known_steps_ = known.known_steps;
  step_tried_ = known.step_tried;
  parameters_since_ = known.parameters_since;
  moments_since_ = known.moments_since;
  if (known.state_broken) moments_since_ = NewStamp();
  return absl::OkStatus();
}

// All members' devices under the plan; what each holds then.
absl::Status IslandControl::SetUp(Holdings* holdings) {
  const std::vector<NodeId> followers = Followers();
  if (!followers.empty()) ATOLL_RETURN_IF_ERROR(port_->Meet(followers, interrupted_));
  port_->BeginEpoch(++epoch_);
  ATOLL_RETURN_IF_ERROR(AgreeOnStep());
  const GroupFrame frame{.body = ConfigureCall()};
  ATOLL_ASSIGN_OR_RETURN(const Calls calls, CallAll(frame));
  outer_held_.clear();
  saves_.clear();
  const auto note = [&](const NodeId& member, const GroupReply& reply) {
    number_ = std::max(number_, reply.last_number);
    if (reply.outer) outer_held_[member] = *reply.outer;
    if (!reply.held.empty()) (*holdings)[member] = reply.held;
    if (!reply.saves.empty()) saves_[member] = reply.saves;
  };
  const absl::StatusOr<GroupReply> own = port_->Do(frame, &interrupted_);
  if (!own.ok()) InterruptAll();  // the others must not wait for us
  number_ = std::max(number_, port_->last_number());
  if (own.ok()) note(name(), *own);
  absl::Status status = own.status();
  for (const auto& [follower, call] : calls) {
    const auto reply = port_->Await(call, port_->StepTimeout());
    if (reply.ok()) {
      note(follower, *reply);
      continue;
    }
    if (status.ok()) InterruptAll();
    if (status.ok() || absl::IsAborted(status)) status = reply.status();
  }
  ATOLL_RETURN_IF_ERROR(status);
  return CheckHoldings(plan_, *holdings, port_->island_job()->undivided);
}

// A step that was interrupted while it was committed may have been taken by some. Then all others
// that are left take it, too: a member that has taken it knows that every gradient was final, and
// the summed commit values.
absl::Status IslandControl::AgreeOnStep() {
  const GroupFrame query{.body = DrainCall()};
  ATOLL_ASSIGN_OR_RETURN(const Calls queried, CallAll(query));
  std::map<NodeId, CommitState> states;
  absl::Status status;
  const auto note = [&](const NodeId& member, const absl::StatusOr<GroupReply>& reply) {
    if (reply.ok()) states[member] = reply->commit;
    if (status.ok()) status = reply.status();
  };
  note(name(), port_->Do(query));
  for (const auto& [follower, call] : queried) {
    note(follower, port_->Await(call, port_->StepTimeout()));
  }
  ATOLL_RETURN_IF_ERROR(status);
  Calls notified;
  for (const auto& entry : states) {
    const auto taker = std::find_if(states.begin(), states.end(), [&](const auto& other) {
      return IsSameStep(other.second.taken, entry.second.waits);
    });
    if (taker == states.end()) continue;
    const GroupFrame frame{.body = DrainCall{taker->second.taken}};
    if (entry.first == name()) {
      ATOLL_RETURN_IF_ERROR(DoHere(frame));
      continue;
    }
    ATOLL_ASSIGN_OR_RETURN(const CallId call, port_->Call(entry.first, frame));
    notified.emplace_back(entry.first, call);
  }
  return AwaitAll(notified, port_->StepTimeout());
}

// Every member gets what it lacks of the plan's state.
absl::Status IslandControl::FetchAll(StateTransferPlan& transfers, int64_t save,
                                     const StateName& state) {
  Calls calls;
  int64_t bytes = 0;  // that move to all
  for (const NodeId& follower : Followers()) {
    const GroupFrame frame = FetchFrame(transfers.transfers[follower], state, save, &bytes);
    ATOLL_ASSIGN_OR_RETURN(const CallId call, port_->Call(follower, frame));
    calls.emplace_back(follower, call);
  }
  const absl::Status status = DoHere(FetchFrame(transfers.transfers[name()], state, save, &bytes));
  // Each member times out by itself when nothing comes any more.
  const absl::Status others = AwaitAll(calls, port_->limits().move + GetStateTransferLimit(bytes));
  // It is damaged somewhere: there may be another.
  if (save != 0 && (absl::IsDataLoss(status) || absl::IsDataLoss(others))) bad_saves_.insert(save);
  ATOLL_RETURN_IF_ERROR(status.ok() || absl::IsAborted(status) ? others : status);
  return status;
}

absl::StatusOr<PlanTaken> IslandControl::TransferState(const Holdings& holdings) {
  StateTransferPlan transfers = PlanTransferOrRestore(holdings);
  const int64_t save = transfers.kept && replay_ ? replay_->save : 0;
  StateName state = transfers.state;
  state.optimizer_step = transfers.optimizer_step;
  // What is lost must not look like what was before, nor what is half way back, nor what a leader
  // that was cut off makes of the same step.
  const bool is_new = !transfers.kept || save != 0 || beyond_;
  if (is_new) state.moments_since = NewStamp();
  if (is_new || state.any_parameters) state.parameters_since = NewStamp();
  ATOLL_RETURN_IF_ERROR(FetchAll(transfers, save, state));
  std::string outer_lost;
  ATOLL_RETURN_IF_ERROR(TransferOuterState(&outer_lost));

  PlanTaken taken;
  taken.kept = transfers.kept;
  if (beyond_) {
    taken.resumed = true;
    taken.beyond = *std::exchange(beyond_, std::nullopt);
  }
  taken.step_taken = transfers.kept && step_tried_ && transfers.optimizer_step == *known_steps_ + 1;
  taken.reason = transfers.reason;
  const GroupFrame drop{.body = DropSurplusCall()};
  ATOLL_ASSIGN_OR_RETURN(const Calls drops, CallAll(drop));
  ATOLL_RETURN_IF_ERROR(DoHere(drop));
  ATOLL_RETURN_IF_ERROR(AwaitAll(drops, port_->limits().call));
  holdings_ = holdings;
  for (auto& [worker, held] : holdings_) {
    std::erase_if(held, [](const HeldLayer& layer) { return layer.surplus; });
  }
  configured_ = true;
  failed_ = false;
  if (save != 0) {
    const int64_t saved = transfers.optimizer_step;
    parameters_since_ = state.parameters_since;
    ATOLL_ASSIGN_OR_RETURN(const Replayed replayed, ReplayChanges(saved, !outer_lost.empty()));
    taken.replayed = replayed.optimizer_step - saved;
    taken.resumed = save == resume_save_;
    taken.kept = replayed.all;
    transfers.optimizer_step = replayed.optimizer_step;
    state.parameters_since = parameters_since_;
    absl::StrAppend(&taken.reason, ", from copies of step ", saved,
                    "; replayed steps: ", taken.replayed);
  }
  if (std::exchange(base_is_in_, false)) ATOLL_RETURN_IF_ERROR(FetchTables());
  if (!outer_lost.empty()) {
    taken.push_lost = outer_expected_.captured.has_value();
    taken.base_lost = taken.kept && !taken.push_lost;
    taken.kept = taken.base_lost;
    taken.step_taken = taken.step_taken && taken.kept;
    taken.reason = absl::StrCat(outer_lost, taken.reason.empty() ? "" : "; ", taken.reason);
  }
  // Not before: a retry has to find the same, and report it.
  steps_ = transfers.optimizer_step;
  known_steps_ = steps_;
  parameters_since_ = state.parameters_since;
  moments_since_ = state.moments_since;
  step_tried_ = replacing_ = false;
  change_failed_ = false;
  replay_.reset();
  resume_save_ = 0;
  resume_leased_.clear();
  NoteWholeSaves(holdings);
  return taken;
}

}  // namespace atl::worker
