#include "worker/island/shared_link_scheduler.h"

#include <utility>

#include "common/check.h"
#include "common/event_loop.h"

namespace atl::worker {
namespace {

// How much longer a message waits for its grant than the order waits for one to have left.
constexpr int kGrantPatience = 6;

PlanMessage ToPlanMessage(const MessageTag& tag) {
  return {tag.replica, tag.stage + (tag.gradient ? 1 : -1), tag.micro_batch, tag.gradient};
}

void Do(std::vector<std::function<void()>>& actions) {
  for (const auto& action : actions) action();
}

}  // namespace

SharedLinkScheduler::SharedLinkScheduler(NodeId worker, SendCall send_call, Duration patience)
    : worker_(std::move(worker)), send_call_(std::move(send_call)), patience_(patience) {}

SharedLinkScheduler::~SharedLinkScheduler() { Stop(); }

void SharedLinkScheduler::Stop() {
  std::thread watch;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    watch.swap(watch_);
  }
  changed_.notify_all();
  if (watch.joinable()) watch.join();
}

void SharedLinkScheduler::SetPlan(const IslandPlan& plan) {
  const std::lock_guard lock(mutex_);
  ++round_;
  waiting_.clear();
  links_.clear();
  positions_.clear();
  for (size_t l = 0; l < plan.link_orders.size(); ++l) {
    SharedLink& link = links_.emplace_back(patience_);
    for (const PlanMessage& message : plan.link_orders[l].messages) {
      positions_[message] = {static_cast<int32_t>(l), static_cast<int32_t>(link.senders.size())};
      link.senders.push_back(WorkerFromDevice(GetSenders(plan, message)[0]));
    }
    link.scheduler_worker = link.senders[0];
  }
  if (!links_.empty() && !watch_.joinable() && !stopping_)
    watch_ = std::thread([this] { Watch(); });
}

void SharedLinkScheduler::Forget() {
  const std::lock_guard lock(mutex_);
  ++round_;
  waiting_.clear();
  for (SharedLink& link : links_) link.order = SendOrder(patience_);
}

bool SharedLinkScheduler::Has(const MessageTag& tag) const {
  const std::lock_guard lock(mutex_);
  return positions_.contains(ToPlanMessage(tag));
}

int64_t SharedLinkScheduler::grants_used() const {
  const std::lock_guard lock(mutex_);
  return grants_used_;
}

absl::Status SharedLinkScheduler::Send(const MessageTag& tag, Go go) {
  Actions actions;
  {
    const std::lock_guard lock(mutex_);
    const auto found = positions_.find(ToPlanMessage(tag));
    if (found == positions_.end()) return absl::AbortedError("the message is another plan's");
    const auto [link, position] = found->second;
    if (links_[link].senders[position] != worker_) {
      return absl::AbortedError("the message is another plan's: its sender is another worker now");
    }
    if (waiting_.size() >= kWaitingMax) {
      return absl::ResourceExhaustedError(
          absl::StrCat(waiting_.size(), " messages are waiting for a shared link"));
    }
    const Key key{link, {tag.step, position, tag.rank, tag.chunk}};
    waiting_[key] = {std::move(go), SteadyNow() + kGrantPatience * patience_};
    SendCallLocked(links_[link].scheduler_worker, {SharedLinkEvent::kReady, link, key.second},
                   &actions);
  }
  changed_.notify_all();
  Do(actions);
  return absl::OkStatus();
}

void SharedLinkScheduler::OnCall(const NodeId& from, const SharedLinkCall& call) {
  Actions actions;
  {
    const std::lock_guard lock(mutex_);
    ReceiveLocked(from, call, &actions);
  }
  changed_.notify_all();
  Do(actions);
}

// A call to this worker itself is handled at once.
void SharedLinkScheduler::SendCallLocked(const NodeId& to, const SharedLinkCall& call,
                                         Actions* actions) {
  if (to == worker_) return ReceiveLocked(worker_, call, actions);
  actions->push_back([this, to, call] { send_call_(to, call); });
}

void SharedLinkScheduler::ReceiveLocked(const NodeId& from, const SharedLinkCall& call,
                                        Actions* actions) {
  if (call.link < 0 || call.link >= static_cast<int64_t>(links_.size())) return;
  SharedLink& link = links_[call.link];
  const SendPart& part = call.part;
  if (part.position < 0 || part.position >= static_cast<int64_t>(link.senders.size())) return;
  const bool for_sender = call.what == SharedLinkEvent::kGo;
  if (for_sender ? from != link.scheduler_worker || link.senders[part.position] != worker_
                 : link.scheduler_worker != worker_ || link.senders[part.position] != from) {
    return;
  }
  if (for_sender) {
    grants_used_ += waiting_.contains({call.link, part}) ? 1 : 0;
    return StartLocked({call.link, part}, actions);
  }
  if (call.what == SharedLinkEvent::kReady) {
    link.order.Ready(from, part);
  } else {
    link.order.Left(from, part);
  }
  GrantLocked(call.link, actions);
}

void SharedLinkScheduler::GrantLocked(int32_t link, Actions* actions) {
  if (const auto grant = links_[link].order.Next(SteadyNow())) {
    SendCallLocked(grant->worker, {SharedLinkEvent::kGo, link, grant->part}, actions);
  }
}

// It is granted, or it has waited for too long.
void SharedLinkScheduler::StartLocked(const Key& key, Actions* actions) {
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) {
    // Sent already: the order goes on.
    const SharedLinkCall left{SharedLinkEvent::kLeft, key.first, key.second};
    return SendCallLocked(links_[key.first].scheduler_worker, left, actions);
  }
  actions->push_back([this, go = std::move(found->second.go), round = round_, key] {
    go([this, round, key] { OnLeft(round, key); });
  });
  waiting_.erase(found);
}

void SharedLinkScheduler::OnLeft(int64_t round, const Key& key) {
  Actions actions;
  {
    const std::lock_guard lock(mutex_);
    if (round != round_) return;
    const SharedLinkCall left{SharedLinkEvent::kLeft, key.first, key.second};
    SendCallLocked(links_[key.first].scheduler_worker, left, &actions);
  }
  changed_.notify_all();
  Do(actions);
}

void SharedLinkScheduler::Watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const Instant now = SteadyNow();
    Instant next = now + patience_;
    Actions actions;
    for (size_t l = 0; l < links_.size(); ++l) {
      const auto deadline = links_[l].order.deadline();
      if (deadline && *deadline <= now) GrantLocked(static_cast<int32_t>(l), &actions);
      if (deadline && *deadline > now) next = std::min(next, *deadline);
    }
    std::vector<Key> late;
    for (const auto& [key, waiting] : waiting_) {
      if (waiting.until <= now) late.push_back(key);
      if (waiting.until > now) next = std::min(next, waiting.until);
    }
    for (const Key& key : late) {
      // The order goes on without it.
      const SharedLinkCall left{SharedLinkEvent::kLeft, key.first, key.second};
      SendCallLocked(links_[key.first].scheduler_worker, left, &actions);
      if (waiting_.contains(key)) StartLocked(key, &actions);
    }
    if (!actions.empty()) {
      lock.unlock();
      Do(actions);
      lock.lock();
      continue;
    }
    changed_.wait_until(lock, ToSteady(next));
  }
}

}  // namespace atl::worker
