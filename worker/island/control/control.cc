#include "worker/island/control/control.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "worker/island/messages/wire.h"

namespace atl::worker {

void IslandControl::Release() {
  alone_ = true;
  plan_ = IslandPlan();
  holdings_.clear();
  pending_.clear();
  configured_ = failed_ = false;
  known_ = {};
  replacing_ = false;
  steps_ = 0;
  staged_ = false;
  ForgetSaving();
  saves_.clear();
  bad_saves_.clear();
  replay_.reset();
  resume_save_ = 0;
  shards_.clear();
  outer_held_.clear();
}

std::vector<NodeId> IslandControl::Followers() const {
  std::vector<NodeId> followers;
  for (const IslandMember& member : plan_.members) {
    if (member.worker != name()) followers.push_back(member.worker);
  }
  return followers;
}

// A job's memory is taken when it is opened, and what does not fit is known then.
absl::Status IslandControl::ConfigureAlone() {
  plan_ = MakeSingleDevicePlan();
  alone_ = true;
  fence_ = {};
  staged_ = false;
  ATOLL_RETURN_IF_ERROR(port_->Join(fence_, plan_));
  known_.outer = OuterTag();
  ATOLL_RETURN_IF_ERROR(SetUp(&holdings_));
  std::string lost;
  ATOLL_RETURN_IF_ERROR(TransferOuterState(&lost));
  ATOLL_RETURN_IF_ERROR(DoHere({.body = DropSurplusCall()}));
  configured_ = true;
  failed_ = false;
  return absl::OkStatus();
}

// Everything on the first device, the job's micro-batch (or the whole batch) at once, and nothing
// recomputed.
IslandPlan IslandControl::MakeSingleDevicePlan() const {
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

// -------------------------------------------------------------------------- calls to others ----

absl::StatusOr<IslandControl::Calls> IslandControl::CallAll(const GroupFrame& frame) {
  Calls calls;
  for (const NodeId& follower : Followers()) {
    const absl::StatusOr<CallId> call = port_->Call(follower, frame);
    if (!call.ok()) {
      Fail();
      InterruptAll();
      (void)AwaitAll(calls, kEndTimeout);  // the first trouble is what counts
      return call.status();
    }
    calls.emplace_back(follower, *call);
  }
  return calls;
}

absl::Status IslandControl::AwaitAll(const Calls& calls, Duration timeout) {
  absl::Status first;
  for (const auto& [follower, call] : calls) {
    const auto reply = port_->Await(call, timeout);
    if (reply.ok()) {
      if (hooks_.on_reply) hooks_.on_reply(follower, *reply);
      continue;
    }
    if (first.ok() || absl::IsAborted(first)) first = reply.status();
    timeout = std::min(timeout, kEndTimeout);
  }
  return first;
}

// The others end soon once one has failed: they wait for it. One that was merely interrupted does
// not know the cause.
absl::StatusOr<IslandControl::Replies> IslandControl::Broadcast(const FrameFor& frame_for,
                                                                const Broadcasting& how) {
  Calls calls;
  absl::Status status;
  const auto note = [&](const absl::Status& got) {
    if (got.ok()) return;
    if (status.ok() && how.on_failure == OnFailure::kSetUpAgain) {
      Fail();
      InterruptAll();
    }
    if (status.ok() || (absl::IsAborted(status) && !absl::IsAborted(got))) status = got;
  };
  for (const NodeId& follower : how.followers) {
    const absl::StatusOr<CallId> call = port_->Call(follower, frame_for(follower));
    note(call.status());
    if (!call.ok()) break;
    calls.emplace_back(follower, *call);
  }
  Replies replies;
  const auto take = [&](const NodeId& member, absl::StatusOr<GroupReply> reply) {
    note(reply.status());
    if (reply.ok()) replies[member] = *std::move(reply);
  };
  if (status.ok() && how.own_part) {
    take(name(), port_->Do(frame_for(name()), how.interrupted));
  }
  for (const auto& [follower, call] : calls) {
    take(follower,
         port_->Await(call, status.ok() ? how.timeout : std::min(how.timeout, kEndTimeout)));
  }
  ATOLL_RETURN_IF_ERROR(status);
  return replies;
}

absl::Status IslandControl::Ready() const {
  if (configured_) return absl::OkStatus();
  return absl::FailedPreconditionError("the island is not set up");
}

void IslandControl::Fail() {
  if (failed_) return;
  failed_ = true;
  configured_ = false;
  InterruptAll();
}

void IslandControl::InterruptAll() {
  constexpr char kReason[] = "the island is set up again";
  port_->InterruptWork(kReason);
  for (const NodeId& follower : Followers()) {
    port_->Notify(follower, {.body = Interruption{kReason}});
  }
}

absl::Status IslandControl::Drain() {
  const absl::Status status = AwaitAll(std::exchange(pending_, {}), port_->StepTimeout());
  if (!status.ok()) Fail();
  return status;
}

// ------------------------------------------------------------------------------------ work ----

// The step before must have succeeded everywhere, which is checked while this one goes on: no
// follower's answer is waited for at the end of a step.
absl::StatusOr<GroupReply> IslandControl::Together(const GroupFrame& frame) {
  ATOLL_RETURN_IF_ERROR(Ready());
  ATOLL_ASSIGN_OR_RETURN(Calls calls, CallAll(frame));
  absl::StatusOr<GroupReply> done = port_->Do(frame);
  if (!done.ok()) Fail();
  const absl::Status before = Drain();
  if (done.ok() && before.ok()) {
    pending_ = std::move(calls);
    return done;
  }
  const absl::Status others = AwaitAll(calls, kEndTimeout);
  if (!before.ok()) return before;
  // Who was merely interrupted does not know the cause.
  return absl::IsAborted(done.status()) && !others.ok() && !absl::IsAborted(others) ? others
                                                                                    : done.status();
}

absl::Status IslandControl::Step(const std::vector<PositionRange>& ranges, double learning_rate,
                                 bool trace) {
  known_.known_steps = steps_;
  known_.step_tried = true;
  ATOLL_ASSIGN_OR_RETURN(const GroupReply made,
                         Together({.body = StepCall{++number_, ranges, learning_rate, trace}}));
  known_.step_tried = false;
  known_.known_steps = ++steps_;
  if (hooks_.on_reply) hooks_.on_reply(name(), made);
  return absl::OkStatus();
}

absl::Status IslandControl::Evaluate(int64_t first, int64_t count) {
  return Together({.body = EvaluateCall{++number_, first, count}}).status();
}

}  // namespace atl::worker
