// Islands of several workers: the leader's plan, and following.

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/core/impl.h"

namespace atl::worker {
namespace {

std::string Describe(const IslandPlan& plan) {
  return absl::StrCat("plan ", plan.number, " of ", plan.members.size(), " workers");
}

}  // namespace

// ---------------------------------------------------------------------------------- leading ----

// What the devices do together is not wanted any more.
void WorkerCore::Impl::Interrupt(const std::string& reason) {
  if (!order_ || order_->plan.number == 0) return;
  if (command_ == Command::kPrepare || (command_ == Command::kNone && !writing_)) return;
  Emit(InterruptStep{reason});
  interrupted_ = command_ != Command::kNone;
}

bool WorkerCore::Impl::StartReconfigure() {
  if (SetUp()) return false;
  const IslandPlan& plan = order_->plan;
  const absl::Status status = atl::Validate(plan, static_cast<int32_t>(order_->layers.size()),
                                            spec().inner.batch_sequences);
  if (!status.ok()) {
    doing_ = absl::StrCat(Describe(plan), " cannot be run: ", status.message());
    return true;
  }
  doing_ = absl::StrCat("setting up ", Describe(plan));
  configuring_ = {order_->generation, plan.number};
  Start(Command::kReconfigure, Reconfigure{order_->job, order_->island, order_->generation, plan});
  return true;
}

void WorkerCore::Impl::On(const Reconfigured& event) {
  if (command_ != Command::kReconfigure || event.plan_number != configuring_.number) return;
  configured_ = configuring_;  // also when the order has changed meanwhile
  boundaries_ = BoundariesSeen();
  memory_.clear();
  heartbeat_at_ = now_;
  if (Finish() == Command::kNone) return;
  if (!event.kept) return StateLost(event.reason);
  Log(absl::StrCat("plan ", event.plan_number, " is set up", event.reason.empty() ? "" : ": ",
                   event.reason));
  if (!std::exchange(step_failed_, false)) return;
  if (event.step_taken) {
    return CountStep(Sequences(stepping_) * spec().data.sequence_length, loss_.Get());
  }
  leases_.PutBack(stepping_);
  stepping_.clear();
}

// Some parameters or moments are nowhere any more. The base is in this worker's memory and what is
// in flight, too; what was trained since is made again.
void WorkerCore::Impl::StateLost(const std::string& reason) {
  step_failed_ = false;
  initial_made_ = initial_made_ && in_flight_.has_value();
  if (!adopted_) return;
  const bool resume = saved_ && saved_->about.base_version == base_version_ && !in_flight_ &&
                      last_pushed_ != NextContribution();
  Log(absl::StrCat(
      "the state of ", local_.steps, " steps since version ", base_version_, " is lost (", reason,
      "): ",
      resume ? absl::StrCat("back to the local checkpoint of ", saved_->work.steps, " steps")
             : "back to the committed version"));
  if (!resume) return DropLocalProgress();
  leases_.PutBack(stepping_);
  stepping_.clear();
  leases_.PutBack(Without(local_.consumed, saved_->about.consumed));
  local_ = saved_->work;
  resume_saved_ = true;
}

bool WorkerCore::Impl::ResumeSaved() {
  if (!resume_saved_) return false;
  doing_ = "going back to the local checkpoint";
  adopting_ = AdoptMode::kResumeCheckpoint;
  Start(Command::kAdopt, AdoptPulled{base_version_, adopting_, false});
  return true;
}

void WorkerCore::Impl::On(const BoundariesSeen& event) {
  if (!order_ || event.plan_number != order_->plan.number) return;
  if (event.plan_wanted != boundaries_.plan_wanted) heartbeat_at_ = now_;
  boundaries_ = event;
}

// -------------------------------------------------------------------------------- following ----

void WorkerCore::Impl::OnMessage(const MemberOrder& order) {
  if (!IsNews(order)) return;
  if (order.run == RunState::kStop) {
    if (!order_ || order_->job == order.job) EndJob(order.job);
    return;
  }
  if (order_) {
    ForgetIsland();
    order_.reset();
  }
  const bool same = follow_ && follow_->job == order.job &&
                    follow_->generation == order.generation &&
                    follow_->plan.number == order.plan.number;
  if (!same) following_ = false;
  follow_ = order;
  asked_.reset();
  heartbeat_at_ = now_;
}

void WorkerCore::Impl::On(const FollowerState& event) {
  if (!follow_ || event.plan_number > follow_->plan.number) return;
  if (event.plan_number != follower_.plan_number) heartbeat_at_ = now_;
  follower_ = event;
}

void WorkerCore::Impl::StopFollowing(const std::string& reason) {
  Emit(Unfollow{reason});
  follow_.reset();
  following_ = false;
  follower_ = FollowerState();
}

void WorkerCore::Impl::PlanFollow() {
  if (!follow_ || !prepared_ || prepared_->job != follow_->job) return;
  const IslandPlan& plan = follow_->plan;
  if (following_) {
    doing_ =
        follower_.doing.empty() ? absl::StrCat("following in ", Describe(plan)) : follower_.doing;
    return;
  }
  if (command_ != Command::kNone) {  // of the island that it led; it has been interrupted
    doing_ = "ending what it led";
    return;
  }
  const absl::Status status =
      atl::Validate(plan, static_cast<int32_t>(prepared_->facts.layers.size()),
                    follow_->spec.inner.batch_sequences);
  if (!status.ok()) {
    doing_ = absl::StrCat(Describe(plan), " cannot be run: ", status.message());
    return;
  }
  Emit(Follow{*follow_});
  following_ = true;
  configured_ = PlanName();  // the devices serve somebody else
  doing_ = absl::StrCat("following in ", Describe(plan));
}

// What this worker holds of the island has to move before it may go: the coordinator plans without
// it, and then tells it to stop.
void WorkerCore::Impl::PlanLeaving() {
  if (leave_by_ != kNever) return;
  Emit(Send{Leaving{stop_reason_}});
  leave_by_ = now_ + kLeaveLimit;
}

}  // namespace atl::worker
