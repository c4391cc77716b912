// Islands of several workers: the leader's plan, and following.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/core/impl.h"

namespace atl::worker {
namespace {

std::string Describe(const IslandPlan& plan) {
  if (plan.number == 0) return "this worker's device";
  return absl::StrCat("plan ", plan.number, " of ", plan.members.size(), " workers");
}

}  // namespace

// ---------------------------------------------------------------------------------- leading ----

// Interrupts what the devices do together.
void WorkerCore::Impl::Interrupt(const std::string& reason) {
  if (command_ == Command::kInitialWeights) Emit(InterruptStep{reason});  // it reads files
  if (!order_ || command_ == Command::kInitialWeights) return;
  const bool idle = command_ == Command::kNone && !Capturing();
  if (command_ == Command::kPrepare || idle) return;
  Emit(InterruptStep{reason});
  interrupted_ = command_ != Command::kNone;
}

bool WorkerCore::Impl::StartReconfigure() {
  if (SetUp()) return false;
  const IslandPlan& plan = order_->plan;
  if (AwaitsDelta()) {
    activity_ = absl::StrCat("making a pseudo-gradient, before ", Describe(plan), " is set up");
    return true;
  }
  absl::Status status;
  if (plan.number != 0) {
    status = ValidateFor(identity_.name, plan, static_cast<int32_t>(order_->layers.size()),
                         spec().inner.batch_sequences);
  }
  if (!status.ok()) {
    activity_ = absl::StrCat(Describe(plan), " cannot be run: ", status.message());
    return true;
  }
  activity_ = absl::StrCat("setting up ", Describe(plan));
  configuring_ = {order_->generation, plan.number};
  Reconfigure command{order_->job, order_->island, order_->generation, plan};
  command.resume = ResumeSave();
  if (command.resume != 0) command.leased = order_->resume->leased;
  command.shards = order_->shards;
  if (!order_->pull_order.empty()) command.committed = order_->committed_version;
  if (TakingOver()) command.take_over_from = order_->takes_over_from;
  if (adopted_) command.outer.base = base_version_;
  if (in_flight_ && in_flight_->captured) command.outer.captured = in_flight_->id;
  // The parts on their way belong to owners of the plan before.
  if (pull_.pulling() || pull_.pulled() || (in_flight_ && !in_flight_->pushes.empty())) {
    RestartTransfers();
  }
  pull_.state = Pull::State::kNone;
  Start(Command::kReconfigure, std::move(command));
  return true;
}

// The ordered plan's number, once no member works under the old plan any more. Other members may be
// at the end of a step that this worker has taken: they get the new plan only after that.
int64_t WorkerCore::Impl::SettingUp() const {
  if (SetUp()) return 0;
  const PlanName ordered{order_->generation, order_->plan.number};
  return drained_ == ordered ? ordered.number : 0;
}

void WorkerCore::Impl::On(const Drained& event) {
  drained_ = {event.generation, event.plan_number};
  LeaveLater();
  session_.heartbeat_at = now_;  // the others wait for it
  if (command_ == Command::kReconfigure && order_ && order_->plan.number > configuring_.number) {
    Interrupt("a newer plan is there");
  }
}

void WorkerCore::Impl::On(const Reconfigured& event) {
  if (command_ != Command::kReconfigure || event.plan_number != configuring_.number) return;
  // The time of a step under another plan, or before a failure, says nothing of this one.
  if (configured_.number != configuring_.number) {
    counters_.idle_link_seconds = counters_.overlap_seconds = RecentMean();
    saving_.cost = SaveCost();
  }
  configured_ = configuring_;  // also when the order has changed meanwhile
  LeaveLater();
  stage_links_ = StageLinksSeen();
  memory_.clear();
  session_.heartbeat_at = now_;
  saving_.under_way.clear();
  saving_.cost.Drop();
  saving_.due = true;
  if (Finish() == Command::kNone) return;
  Resumed(event);
  counters_.steps_redone += event.steps_replayed;
  if (event.taken_over) TakeOver(*event.taken_over);
  if (event.push_lost) PushLost(event.reason);
  if (!event.kept) return StateLost(event.reason);
  if (event.plan_number != 0 || !event.reason.empty()) {
    LogOnce(absl::StrCat(
        event.plan_number == 0 ? "the device" : absl::StrCat("plan ", event.plan_number),
        " is set up", event.reason.empty() ? "" : ": ", event.reason));
  }
  if (std::exchange(step_failed_, false)) FailedStepEnded(event.step_taken);
  if (event.base_lost) BaseLost();
}

// Completes a step that failed under the plan before.
void WorkerCore::Impl::FailedStepEnded(bool taken) {
  if (taken) {
    // Its loss and masked tokens are not known: they are counted as those of the steps before.
    StepDone step{Sequences(stepping_) * spec().data.sequence_length, counters_.loss.Get()};
    if (local_.tokens > 0) {
      step.masked_tokens = static_cast<int64_t>(static_cast<double>(step.tokens) *
                                                static_cast<double>(local_.masked_tokens) /
                                                static_cast<double>(local_.tokens));
      step.expert_tokens = local_.expert_tokens;
      ScaleTokens(local_.tokens, step.tokens, &step.expert_tokens);
    }
    return CountStep(step);
  }
  ++counters_.steps_interrupted;
  leased_.ranges.PutBack(stepping_);
  stepping_.clear();
}

// Parameters and moments are whole: their base is pulled again, as after going on from a save.
void WorkerCore::Impl::BaseLost() {
  if (!adopted_ || in_flight_) return;
  const Work trained = std::exchange(local_, Work());
  saving_.resumed = LocalCheckpoint{order_->job, order_->island, base_version_,
                                    counters_.inner_step, trained.consumed};
  saving_.resumed->loss_times_tokens = trained.loss_times_tokens;
  saving_.resumed->skipped = trained.skipped;
  saving_.resumed->expert_tokens = trained.expert_tokens;
  adopted_ = false;
}

// Handles the loss of what is not staged of the contribution in flight: the initial weights are
// made anew, any other contribution is withdrawn, unless it is complete.
void WorkerCore::Impl::PushLost(const std::string& reason) {
  if (!in_flight_) return;
  Log(absl::StrCat("some of what is being pushed is lost: ", reason));
  if (in_flight_->id.base_version == kNoVersion) {
    in_flight_.reset();
    last_pushed_.reset();
    initial_made_ = false;
    return;
  }
  in_flight_->withdrawn = true;
  in_flight_->pushes.clear();
  in_flight_->request_at = now_;
}

// Some parameters, moments or theta_base are nowhere any more: what was trained since is made
// again.
void WorkerCore::Impl::StateLost(const std::string& reason) {
  if (std::exchange(step_failed_, false)) ++counters_.steps_interrupted;
  initial_made_ = initial_made_ && in_flight_.has_value();
  if (saving_.resumed) {
    leased_.ranges.PutBack(std::exchange(saving_.resumed, std::nullopt)->consumed);
  }
  if (!adopted_) return;
  Log(absl::StrCat("the state of ", local_.steps, " steps since version ", base_version_,
                   " is lost (", reason, "): back to the committed version"));
  DropLocalProgress();
}

void WorkerCore::Impl::On(const StageLinksSeen& event) {
  if (!order_ || event.plan_number != order_->plan.number) return;
  if (event.plan_wanted != stage_links_.plan_wanted) session_.heartbeat_at = now_;
  for (const std::string& line : stage_link_log_.LinesDue(now_, event.stage_links)) Log(line);
  stage_links_ = event;
}

// -------------------------------------------------------------------------- another leader ----

// This worker led the island until now, and goes on as the order says when what is under way has
// ended.
void WorkerCore::Impl::HandoverTo(const MemberOrder& order) {
  const NodeId& successor = order.plan.members.front().worker;
  if (!order.at_step_end) Interrupt(absl::StrCat(successor, " is to lead"));
  handover_ = order;
  LeaveLater();
}

Leadership WorkerCore::Impl::Known() const {
  Leadership known;
  known.island = order_->island;
  known.generation = order_->generation;
  known.adopted = adopted_;
  known.base_version = base_version_;
  known.tokens_at_base = tokens_at_base_;
  known.initial_made = initial_made_;
  known.reset_moments = reset_moments_;
  known.diverged = diverged_;
  known.local = local_;
  known.carried_steps = carried_steps_;
  if (in_flight_) {
    known.in_flight = in_flight_->id;
    known.in_flight_work = in_flight_->work;
    known.in_flight_moments = in_flight_->moments;
  }
  known.last_pushed = last_pushed_;
  known.stepping = stepping_;
  known.step_failed = step_failed_;
  known.leased = leased_.ranges.ranges();
  known.exhausted = leased_.exhausted;
  known.lease_request = leased_.request;
  known.inner_step = counters_.inner_step;
  known.tokens = counters_.tokens;
  known.pushed_bytes = counters_.pushed_bytes;
  known.pulled_bytes = counters_.pulled_bytes;
  known.loss = counters_.loss.Get();
  return known;
}

void WorkerCore::Impl::PlanHandover() {
  const NodeId& successor = handover_->plan.members.front().worker;
  activity_ = absl::StrCat("handing the island over to ", successor);
  if (command_ != Command::kNone || Capturing()) return;
  if (!preparation_.done || preparation_.done->job != order_->job) return;
  if (saving_.resumed) {
    leased_.ranges.PutBack(std::exchange(saving_.resumed, std::nullopt)->consumed);
  }
  if (pull_.pulling() || (in_flight_ && !in_flight_->pushes.empty())) Emit(CancelTransfers{});
  Start(Command::kHandover, Handover{order_->job, Known()});
}

void WorkerCore::Impl::On(const HandedOver&) {
  if (Finish() != Command::kHandover || !handover_) return;
  const MemberOrder order = *std::exchange(handover_, std::nullopt);
  Log(absl::StrCat("hands island ", order_->island, " over to ", order.plan.members.front().worker,
                   ": ", local_.steps, " steps since version ", base_version_));
  local_ = Work();  // they are not lost
  ForgetIsland();
  order_.reset();
  following_.order = order;
  following_.begun = false;
  following_.holds_layers = true;
  session_.heartbeat_at = now_;
  LeaveLater();
}

void WorkerCore::Impl::TakeOver(const Leadership& known) {
  taken_over_ = known.generation;
  saving_.resume_tried = true;  // by the leader before, or its data is leased like any other
  adopted_ = known.adopted;
  base_version_ = known.base_version;
  tokens_at_base_ = known.tokens_at_base;
  initial_made_ = known.initial_made;
  reset_moments_ = known.reset_moments;
  diverged_ = known.diverged;
  local_ = known.local;
  carried_steps_ = known.carried_steps;
  if (known.in_flight) {
    in_flight_ = InFlight{*known.in_flight, known.in_flight_work, known.in_flight_moments};
    in_flight_->captured = true;
    in_flight_->request_at = now_;
  }
  last_pushed_ = known.last_pushed;
  stepping_ = known.stepping;
  step_failed_ = known.step_failed;
  leased_.ranges.Clear();
  leased_.ranges.Add(known.leased);
  leased_.exhausted = known.exhausted;
  leased_.request = known.lease_request;
  counters_.inner_step = known.inner_step;
  counters_.tokens = known.tokens;
  counters_.pushed_bytes = known.pushed_bytes;
  counters_.pulled_bytes = known.pulled_bytes;
  if (known.loss > 0) counters_.loss.Add(known.loss);
  Log(absl::StrCat("takes over from ", order_->takes_over_from, ": ", local_.steps,
                   " steps since version ", base_version_));
}

// -------------------------------------------------------------------------------- following ----

void WorkerCore::Impl::OnMessage(const MemberOrder& order) {
  if (!IsNewer(order)) return;
  if (order.run == RunState::kStop) {
    if (!order_ || order_->job == order.job) EndJob(order.job);
    return;
  }
  if (order_ && order_->job == order.job && order_->island == order.island &&
      order_->generation == order.generation && order_->plan.number != 0) {
    return HandoverTo(order);
  }
  if (order_) {
    ForgetIsland();
    order_.reset();
  }
  const bool same_island = following_.order && following_.order->job == order.job &&
                           following_.order->island == order.island &&
                           following_.order->generation == order.generation;
  if (!same_island) following_.holds_layers = false;
  const bool same = following_.order && following_.order->job == order.job &&
                    following_.order->generation == order.generation &&
                    following_.order->plan.number == order.plan.number;
  if (!same) following_.begun = false;
  following_.order = order;
  if (order.spec.schedule.checkpoint_every_steps > 0) held_.insert(order.job);
  if (!same) LeaveLater();
  preparation_.requested.reset();
  session_.heartbeat_at = now_;
}

void WorkerCore::Impl::On(const FollowerState& event) {
  if (!following_.order || event.plan_number > following_.order->plan.number) return;
  if (event.plan_number != following_.state.plan_number) session_.heartbeat_at = now_;
  following_.holds_layers = following_.holds_layers || event.plan_number > 0;
  following_.state = event;
  LeaveLater();
}

void WorkerCore::Impl::StopFollowing(const std::string& reason) {
  Emit(Unfollow{reason});
  following_.order.reset();
  following_.begun = following_.holds_layers = false;
  following_.state = FollowerState();
}

void WorkerCore::Impl::PlanFollow() {
  if (!following_.order || !preparation_.done || preparation_.done->job != following_.order->job) {
    return;
  }
  const IslandPlan& plan = following_.order->plan;
  if (following_.begun) {
    activity_ = following_.state.activity.empty() ? absl::StrCat("following in ", Describe(plan))
                                                  : following_.state.activity;
    return;
  }
  if (command_ != Command::kNone) {  // of the island that it led; it has been interrupted
    activity_ = "ending what it led";
    return;
  }
  const absl::Status status = ValidateFor(
      identity_.name, plan, static_cast<int32_t>(preparation_.done->facts.layers.size()),
      following_.order->spec.inner.batch_sequences);
  if (!status.ok()) {
    activity_ = absl::StrCat(Describe(plan), " cannot be run: ", status.message());
    return;
  }
  Emit(Follow{*following_.order});
  following_.begun = true;
  configured_ = PlanName();  // the devices serve another leader
  activity_ = absl::StrCat("following in ", Describe(plan));
}

bool WorkerCore::Impl::SharesIsland() const {
  return following_.order || (order_ && order_->shared);
}

// Moves what this worker holds of the island before it may end: the coordinator plans without it,
// and then sends it an order to stop.
void WorkerCore::Impl::PlanLeaving() {
  if (following_.leave_by != kNever) return;
  Emit(Send{Leaving{shutdown_.reason}});
  following_.leave_by = now_;
  following_.leave_last = std::min(now_ + kLeaveLimitMax, following_.ends_at);
  LeaveLater();
}

// Delays leaving: what this worker holds is on its way to others, or will be.
void WorkerCore::Impl::LeaveLater() {
  if (following_.leave_by == kNever) return;
  Duration patience = kLeaveLimit;
  if (following_.order || order_) {
    const IslandPlan& plan = following_.order ? following_.order->plan : order_->plan;
    patience += 2 * std::min(Duration(plan.step_ns), kLeaveLimitMax);
  }
  const Instant by =
      std::min(std::max(following_.leave_by, now_ + patience), following_.leave_last);
  shutdown_.by += by - following_.leave_by;
  following_.leave_by = by;
}

}  // namespace atl::worker
