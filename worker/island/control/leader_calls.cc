// The calls of an island's leader to its members.

#include <algorithm>

#include "worker/island/control/leader.h"
#include "worker/island/messages/wire.h"

namespace atl::worker {

std::vector<NodeId> IslandLeader::Followers() const {
  std::vector<NodeId> followers;
  for (const IslandMember& member : plan_.members) {
    if (member.worker != name()) followers.push_back(member.worker);
  }
  return followers;
}

// -------------------------------------------------------------------------- calls to others ----

absl::StatusOr<IslandLeader::Calls> IslandLeader::CallAll(const GroupFrame& frame) {
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

absl::Status IslandLeader::AwaitAll(const Calls& calls, Duration timeout) {
  absl::Status first;
  for (const auto& [follower, call] : calls) {
    const auto reply = port_->Await(call, timeout);
    if (reply.ok()) {
      NoteReply(follower, *reply);
      continue;
    }
    if (first.ok() || absl::IsAborted(first)) first = reply.status();
    timeout = std::min(timeout, kEndTimeout);
  }
  return first;
}

// The others end soon once one has failed: they wait for it. One that was merely interrupted does
// not know the cause.
absl::StatusOr<IslandLeader::Replies> IslandLeader::Broadcast(const FrameFor& frame_for,
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

absl::Status IslandLeader::Ready() const {
  if (configured_) return absl::OkStatus();
  return absl::FailedPreconditionError("the island is not set up");
}

void IslandLeader::Fail() {
  if (failed_) return;
  failed_ = true;
  configured_ = false;
  InterruptAll();
}

void IslandLeader::InterruptAll() {
  constexpr char kReason[] = "the island is set up again";
  port_->InterruptWork(kReason);
  for (const NodeId& follower : Followers()) {
    port_->Notify(follower, {.body = Interruption{kReason}});
  }
}

absl::Status IslandLeader::Drain() {
  const absl::Status status = AwaitAll(std::exchange(pending_, {}), port_->StepTimeout());
  if (!status.ok()) Fail();
  return status;
}

// ------------------------------------------------------------------------------------ work ----

// The step before must have succeeded everywhere, which is checked while this one goes on: no
// follower's answer is waited for at the end of a step.
absl::StatusOr<GroupReply> IslandLeader::Together(const GroupFrame& frame) {
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

}  // namespace atl::worker
