// An island takes on a plan.

#include <algorithm>

#include "worker/island/control/leader.h"

namespace atl::worker {
namespace {

int64_t CountMovedBytes(const std::vector<StateTransfer>& transfers) {
  int64_t bytes = 0;
  for (const StateTransfer& transfer : transfers) {
    for (const StateSource& source : transfer.sources) {
      bytes += CountBytes(source.elements.size(), source.parts);
    }
  }
  return bytes;
}

}  // namespace

absl::StatusOr<Event> IslandLeader::Do(const Reconfigure& command) {
  if (!fits_) ATOLL_RETURN_IF_ERROR(CheckMemory(&command.plan));
  fits_ = true;
  resume_save_ = command.resume;
  resume_leased_ = command.leased;
  committed_ = command.committed;
  if (hooks_.await_free) ATOLL_RETURN_IF_ERROR(hooks_.await_free());
  port_->Lead([this](const NodeId& from, const SaveDone& done) { OnSaveDone(from, done); });
  stage_links_.clear();
  memory_.clear();
  return Configure(command);
}

absl::StatusOr<Reconfigured> IslandLeader::Configure(const Reconfigure& command) {
  if (port_->island_job() == nullptr) return absl::FailedPreconditionError("no job is open");
  port_->DropKept();
  ForgetSaving();
  // The others may be at the end of the newest step, and still wait for this member.
  if (configured_) (void)Drain();
  Fail();
  staged_ = false;
  shards_ = command.shards;
  hooks_.post(Drained{command.generation, command.plan.number});
  const PeerFence fence{command.job, command.generation, command.plan.number};
  if (fence != fence_) epoch_ = 0;
  if (fence.job != fence_.job || fence.generation != fence_.generation) {
    // Another member may have led meanwhile.
    known_.known_steps = -1;
    known_.step_tried = false;
  }
  const std::shared_ptr<OuterState> kept = port_->outer();
  known_.outer = KnowsSteps() && kept != nullptr ? kept->tag() : OuterTag();
  fence_ = fence;
  alone_ = command.plan.number == 0;
  plan_ = alone_ ? MakeSingleDevicePlan() : command.plan;
  ATOLL_RETURN_IF_ERROR(port_->Join(fence, plan_));
  Holdings holdings;
  ATOLL_RETURN_IF_ERROR(SetUp(&holdings));
  std::optional<Leadership> taken_over;
  OuterTag wanted = command.outer;
  // It may have become ready since the command was given.
  if (!wanted.captured) wanted.captured = known_.outer.captured;
  if (!command.take_over_from.empty()) {
    ATOLL_ASSIGN_OR_RETURN(taken_over, TakeOverState(command.take_over_from));
    wanted = {taken_over->adopted ? taken_over->base_version : kNoVersion, taken_over->in_flight};
  }
  ATOLL_ASSIGN_OR_RETURN(Reconfigured done, TransferState(holdings));
  NoteOuterLost(wanted, &done);
  done.plan_number = command.plan.number;
  done.taken_over = std::move(taken_over);
  return done;
}

// A job's memory is taken when it is opened, and what does not fit is known then.
absl::Status IslandLeader::ConfigureAlone() {
  plan_ = MakeSingleDevicePlan();
  alone_ = true;
  fence_ = {};
  staged_ = false;
  ATOLL_RETURN_IF_ERROR(port_->Join(fence_, plan_));
  known_.outer = OuterTag();
  ATOLL_RETURN_IF_ERROR(SetUp(&holdings_));
  std::string lost;
  ATOLL_RETURN_IF_ERROR(TransferOuterState(&lost));
  ATOLL_RETURN_IF_ERROR(port_->Do({.body = DropSurplusCall()}).status());
  configured_ = true;
  failed_ = false;
  return absl::OkStatus();
}

// Everything on the first device, the job's micro-batch (or the whole batch) at once, and nothing
// recomputed.
IslandPlan IslandLeader::MakeSingleDevicePlan() const {
  const IslandJob& job = *port_->island_job();
  const InnerSpec& inner = job.spec.inner;
  const int64_t rows =
      inner.micro_batch_sequences > 0 ? inner.micro_batch_sequences : inner.batch_sequences;
  const std::string device = absl::StrCat(name(), "/0");
  IslandPlan plan;
  plan.number = 1;
  plan.members = {port_->Self()};
  PlanReplica replica;
  replica.micro_batch_sequences = rows;
  replica.micro_batches = static_cast<int32_t>((inner.batch_sequences + rows - 1) / rows);
  replica.stages = {{0, static_cast<int32_t>(job.layers.size()), {device}, {}}};
  plan.replicas = {replica};
  std::vector<PlanOp> ops;
  for (int32_t m = 0; m < replica.micro_batches; ++m) {
    ops.push_back({PlanOpKind::kForward, 0, m});
    ops.push_back({PlanOpKind::kInputGradient, 0, m});
    ops.push_back({PlanOpKind::kWeightGradient, 0, m});
  }
  plan.programs = {CompleteProgram(plan, device, ops)};
  return plan;
}

absl::StatusOr<Event> IslandLeader::Do(const Handover& command) {
  if (configured_) (void)Drain();  // what it says of the newest step is in known_.step_tried
  const std::shared_ptr<OuterState> outer = port_->outer();
  known_.leadership = command.leadership;
  known_.outer = outer == nullptr ? OuterTag() : outer->tag();
  port_->Keep(known_);
  tracer_.Answer(absl::AbortedError("another worker leads the island now"));
  return HandedOver{};
}

absl::StatusOr<Leadership> IslandLeader::TakeOverState(const NodeId& before) {
  ATOLL_ASSIGN_OR_RETURN(const CallId call, port_->Call(before, {.body = TakeOverCall()}));
  ATOLL_ASSIGN_OR_RETURN(const GroupReply reply, port_->Await(call, port_->limits().call));
  if (!reply.handover) {
    return absl::InternalError(absl::StrCat(before, " does not say what it knows"));
  }
  known_ = *reply.handover;
  if (known_.state_broken) known_.moments_since = NewStamp();
  return known_.leadership;
}

// All members' devices under the plan; what each holds then.
absl::Status IslandLeader::SetUp(Holdings* holdings) {
  const std::vector<NodeId> followers = Followers();
  if (!followers.empty()) ATOLL_RETURN_IF_ERROR(port_->Meet(followers, interrupted_));
  port_->BeginEpoch(++epoch_);
  ATOLL_ASSIGN_OR_RETURN(ConfigureCall call, AgreeOnStep());
  ATOLL_ASSIGN_OR_RETURN(const Replies replies, Broadcast(ToAll({.body = std::move(call)}),
                                                          {followers, port_->StepTimeout(),
                                                           OnFailure::kSetUpAgain, &interrupted_}));
  outer_held_.clear();
  saves_.clear();
  for (const auto& [member, reply] : replies) {
    number_ = std::max(number_, reply.last_number);
    if (reply.outer) outer_held_[member] = *reply.outer;
    if (!reply.held.empty()) (*holdings)[member] = reply.held;
    if (!reply.saves.empty()) saves_[member] = reply.saves;
  }
  return CheckHoldings(plan_, *holdings, port_->island_job()->undivided);
}

// A step that was interrupted while it was committed may have been taken by some. Then all others
// that are left take it, too: a member that has taken it knows that every gradient was final, and
// the summed commit values.
absl::StatusOr<ConfigureCall> IslandLeader::AgreeOnStep() {
  const Duration timeout = port_->StepTimeout();
  ATOLL_ASSIGN_OR_RETURN(const Replies states,
                         Broadcast(ToAll({.body = DrainCall()}), {Followers(), timeout}));
  ConfigureCall next;
  std::map<NodeId, StepSums> taken;  // by those that wait for it
  for (const auto& [member, state] : states) {
    next.nccl_ids.insert(next.nccl_ids.end(), state.nccl_ids.begin(), state.nccl_ids.end());
    const auto taker = std::find_if(states.begin(), states.end(), [&](const auto& other) {
      return IsSameStep(other.second.commit.taken, state.commit.waits);
    });
    if (taker != states.end()) taken[member] = taker->second.commit.taken;
  }
  Broadcasting takers{{}, timeout};
  takers.own_part = taken.contains(name());
  for (const auto& [member, sums] : taken) {
    if (member != name()) takers.followers.push_back(member);
  }
  const auto take = [&](const NodeId& member) {
    return GroupFrame{.body = DrainCall{taken.at(member)}};
  };
  ATOLL_RETURN_IF_ERROR(Broadcast(take, takers).status());
  return next;
}

// Every member gets what it lacks of the plan's state.
absl::Status IslandLeader::FetchAll(StateTransferPlan& transfers, int64_t save,
                                    const StateName& state) {
  int64_t bytes = port_->island_job()->frozen_bytes;  // with those that move to all
  for (const auto& [member, moves] : transfers.transfers) bytes += CountMovedBytes(moves);
  // Each member times out by itself when nothing comes any more.
  const absl::Status status =
      Broadcast(
          [&](const NodeId& member) {
            return GroupFrame{
                .body = FetchCall{transfers.transfers[member], state.optimizer_step, save},
                .parameters_since = state.parameters_since,
                .moments_since = state.moments_since};
          },
          {Followers(), port_->limits().move + GetStateTransferLimit(bytes)})
          .status();
  // It is damaged somewhere: there may be another.
  if (save != 0 && absl::IsDataLoss(status)) bad_saves_.insert(save);
  return status;
}

// By what is there now: an attempt before this one may have found the loss, and failed later. An
// adoption that failed at its end may have left a newer base, and nothing of the push, which has
// been decided then.
void IslandLeader::NoteOuterLost(const OuterTag& wanted, Reconfigured* taken) const {
  const OuterTag has = port_->outer()->tag();
  const bool adopted_since = wanted.captured && has.base > wanted.captured->base_version;
  taken->push_lost = wanted.captured && has.captured != wanted.captured && !adopted_since;
  taken->base_lost = taken->kept && has.base < wanted.base && !taken->push_lost;
  if (!taken->push_lost && has.base >= wanted.base) return;
  taken->kept = taken->base_lost;
  taken->step_taken = taken->step_taken && taken->kept;
}

absl::StatusOr<Reconfigured> IslandLeader::TransferState(const Holdings& holdings) {
  StateTransferPlan transfers = PlanTransferOrRestore(holdings);
  const int64_t save = transfers.kept && replay_ ? replay_->save : 0;
  StateName state = transfers.state;
  state.optimizer_step = transfers.optimizer_step;
  // Lost state must not look like what was before, nor what is half way back, nor what a leader
  // that was cut off makes of the same step.
  const bool is_new = !transfers.kept || save != 0 || beyond_;
  if (is_new) state.moments_since = NewStamp();
  if (is_new || state.any_parameters) state.parameters_since = NewStamp();
  ATOLL_RETURN_IF_ERROR(FetchAll(transfers, save, state));
  std::string outer_lost;
  ATOLL_RETURN_IF_ERROR(TransferOuterState(&outer_lost));

  Reconfigured taken;
  taken.kept = transfers.kept;
  if (beyond_) {
    taken.resumed = true;
    taken.beyond = *std::exchange(beyond_, std::nullopt);
  }
  taken.step_taken =
      transfers.kept && known_.step_tried && transfers.optimizer_step == known_.known_steps + 1;
  taken.reason = transfers.reason;
  ATOLL_RETURN_IF_ERROR(
      Broadcast(ToAll({.body = DropSurplusCall()}), {Followers(), port_->limits().call}).status());
  holdings_ = holdings;
  for (auto& [worker, held] : holdings_) {
    std::erase_if(held, [](const HeldLayer& layer) { return layer.surplus; });
  }
  configured_ = true;
  failed_ = false;
  if (save != 0) {
    const int64_t saved = transfers.optimizer_step;
    known_.parameters_since = state.parameters_since;
    ATOLL_ASSIGN_OR_RETURN(const Replayed replayed, ReplayChanges(saved));
    taken.steps_replayed = replayed.optimizer_step - saved;
    taken.resumed = taken.resumed || save == resume_save_;
    taken.kept = replayed.all;
    transfers.optimizer_step = replayed.optimizer_step;
    state.parameters_since = known_.parameters_since;
    absl::StrAppend(&taken.reason, ", from copies of step ", saved,
                    "; replayed steps: ", taken.steps_replayed);
  }
  if (std::exchange(known_.state_broken, false)) ATOLL_RETURN_IF_ERROR(FetchTables());
  if (!outer_lost.empty()) {
    taken.reason = absl::StrCat(outer_lost, taken.reason.empty() ? "" : "; ", taken.reason);
  }
  // Not before: a retry has to find the same, and report it.
  steps_ = transfers.optimizer_step;
  known_.known_steps = steps_;
  known_.parameters_since = state.parameters_since;
  known_.moments_since = state.moments_since;
  known_.step_tried = replacing_ = false;
  change_failed_ = false;
  replay_.reset();
  resume_save_ = 0;
  resume_leased_.clear();
  NoteWholeSaves(holdings);
  return taken;
}

}  // namespace atl::worker
