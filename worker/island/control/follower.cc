#include "worker/island/control/follower.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace atl::worker {

Follower::Follower(GroupMember* member, OnState on_state)
    : member_(member), control_(member, std::move(on_state)), thread_([this] { Run(); }) {}

Follower::~Follower() {
  Unfollow("the worker ends");
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Follower::Follow(const PeerFence& fence, const IslandPlan& plan, bool at_step_end) {
  int64_t order;
  {
    const std::lock_guard lock(mutex_);
    order = control_.Follow(fence, plan, at_step_end);
    changed_.notify_all();
  }
  GroupMember::Hooks hooks;
  hooks.serve = [this, order](const NodeId& from, GroupFrame frame) {
    if (FollowerControl::BeginsAnew(frame)) member_->Interrupt("the island is set up again");
    const std::lock_guard lock(mutex_);
    control_.OnCall(from, std::move(frame), order);
    changed_.notify_all();
  };
  hooks.peer_lost = [this](const NodeId&, const std::string&) {
    const std::lock_guard lock(mutex_);
    control_.OnPeerLost();
    changed_.notify_all();
  };
  member_->SetHooks(std::move(hooks));
  if (!at_step_end) member_->Interrupt(absl::StrCat("plan ", plan.number, " is there"));
}

void Follower::Unfollow(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!control_.Unfollow()) return;
    changed_.notify_all();
  }
  member_->SetHooks({});
  member_->Interrupt(reason);
}

absl::Status Follower::AwaitFree(Duration timeout) {
  std::unique_lock lock(mutex_);
  const bool free = changed_.wait_for(
      lock, timeout, [this] { return control_.following() || (idle_ && !control_.waiting()); });
  if (free) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(
      "its devices still work for a leader that it has left, after ", Seconds(timeout), " s"));
}

void Follower::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    idle_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return control_.waiting() || stopping_; });
    idle_ = false;
    std::optional<FollowerControl::Next> next = control_.Take();
    if (!next) return;
    lock.unlock();
    control_.Do(*std::move(next));
    lock.lock();
  }
}

}  // namespace atl::worker
