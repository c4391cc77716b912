#include "worker/island/control/follower_control.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace atl::worker {

// --------------------------------------------------------------------------------- what comes ----

int64_t FollowerControl::Follow(const PeerFence& fence, const IslandPlan& plan, bool at_step_end) {
  const int64_t order = ++orders_;
  if (!at_step_end) {
    tasks_.clear();
    oldest_ = order;
  }
  tasks_.push_back(Order{fence, plan});
  following_ = true;
  return order;
}

bool FollowerControl::Unfollow() {
  if (!std::exchange(following_, false)) return false;
  oldest_ = ++orders_;
  tasks_.clear();
  tasks_.push_back(Leave{});
  return true;
}

// Returns whether this call begins a new attempt, so that what is under way belongs to an abandoned
// one.
bool FollowerControl::BeginsAnew(const GroupFrame& frame) {
  const DrainCall* drain = BodyIf<DrainCall>(frame);
  return BodyIf<ConfigureCall>(frame) != nullptr || (drain != nullptr && !drain->take);
}

void FollowerControl::OnCall(const NodeId& from, GroupFrame frame, int64_t order) {
  Add(Called{from, std::move(frame), order});
}

void FollowerControl::OnPeerLost() { Add(Meet{}); }

void FollowerControl::Add(Task task) {
  // A leader waits for its calls: only one that breaks the rules gets here.
  if (tasks_.size() >= kTasksMax) return;
  tasks_.push_back(std::move(task));
}

std::optional<FollowerControl::Next> FollowerControl::Take() {
  if (tasks_.empty()) return std::nullopt;
  Next next{std::move(tasks_.front())};
  tasks_.pop_front();
  const Called* called = std::get_if<Called>(&next.task);
  next.replaced = called != nullptr && called->order < oldest_;
  return next;
}

// ---------------------------------------------------------------------- what is to be done ----

void FollowerControl::Do(Next next) {
  if (Order* order = std::get_if<Order>(&next.task)) return DoOrder(std::move(*order));
  if (const Called* called = std::get_if<Called>(&next.task)) {
    return DoCall(*called, next.replaced);
  }
  if (std::holds_alternative<Meet>(next.task)) {
    // Only what is lost is met again; see PeerLink::SetPeers.
    if (!order_.plan.members.empty()) (void)port_->Join(order_.fence, order_.plan);
    return;
  }
  port_->Leave();
  order_ = Order();
  plan_number_ = 0;
}

void FollowerControl::DoOrder(Order order) {
  order_ = std::move(order);
  plan_number_ = 0;
  const absl::Status joined = port_->Join(order_.fence, order_.plan);
  const NodeId& leader = order_.plan.members.front().worker;
  Say(joined.ok() ? absl::StrCat("waiting for ", leader, " to set up plan ", order_.plan.number)
                  : absl::StrCat("cannot join plan ", order_.plan.number, ": ", joined.message()));
}

void FollowerControl::DoCall(const Called& called, bool replaced) {
  if (replaced) {  // without a reply the leader would wait for as long as a step may take
    GroupReply reply;
    SetStatus(absl::AbortedError("its order has been replaced"), &reply);
    port_->Reply(called.from, called.frame.call, std::move(reply));
    return;
  }
  if (called.frame.epoch < port_->epoch()) return;  // its caller has abandoned it
  port_->Reply(called.from, called.frame.call, Serve(called.from, called.frame));
}

GroupReply FollowerControl::Serve(const NodeId& from, const GroupFrame& frame) {
  GroupReply reply;
  absl::Status status;
  const bool configures = BodyIf<ConfigureCall>(frame) != nullptr;
  const bool begins = configures || BodyIf<DrainCall>(frame) != nullptr;
  if (order_.plan.members.empty() || from != order_.plan.members.front().worker) {
    status = absl::PermissionDeniedError(absl::StrCat(from, " does not lead this island"));
  } else if (!begins && frame.epoch != port_->epoch()) {
    status = absl::FailedPreconditionError("the plan is not set up");
  } else {
    if (begins) port_->BeginEpoch(frame.epoch);
    if (configures) Say(absl::StrCat("setting up plan ", order_.plan.number));
    absl::StatusOr<GroupReply> done = port_->Do(frame);
    status = done.status();
    if (done.ok()) reply = *std::move(done);
    if (configures) ReportSetUp(from, status);
  }
  SetStatus(status, &reply);
  return reply;
}

void FollowerControl::ReportSetUp(const NodeId& leader, const absl::Status& status) {
  const int64_t plan = order_.plan.number;
  plan_number_ = status.ok() ? plan : 0;
  Say(status.ok() ? absl::StrCat("following ", leader, " in plan ", plan)
                  : absl::StrCat("cannot set up plan ", plan, ": ", status.message()));
}

void FollowerControl::Say(const std::string& activity) {
  if (activity == activity_) return;
  activity_ = activity;
  on_state_(plan_number_, activity_);
}

}  // namespace atl::worker
