#include "worker/island/line_turns.h"

#include <utility>

#include "common/check.h"
#include "common/event_loop.h"

namespace atl::worker {
namespace {

// How much longer a message waits for its turn than the order waits for one to have left.
constexpr int kTurnsPatience = 6;

PlanMessage MessageOf(const MessageTag& tag) {
  return {tag.replica, tag.stage + (tag.gradient ? 1 : -1), tag.micro_batch, tag.gradient};
}

void Do(std::vector<std::function<void()>>& actions) {
  for (const auto& action : actions) action();
}

}  // namespace

LineTurns::LineTurns(NodeId worker, Tell tell, Duration patience)
    : worker_(std::move(worker)), tell_(std::move(tell)), patience_(patience) {}

LineTurns::~LineTurns() { Stop(); }

void LineTurns::Stop() {
  std::thread watch;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    watch.swap(watch_);
  }
  changed_.notify_all();
  if (watch.joinable()) watch.join();
}

void LineTurns::SetPlan(const IslandPlan& plan) {
  const std::lock_guard lock(mutex_);
  ++round_;
  waiting_.clear();
  lines_.clear();
  places_.clear();
  for (size_t l = 0; l < plan.link_orders.size(); ++l) {
    Line& line = lines_.emplace_back(patience_);
    for (const PlanMessage& message : plan.link_orders[l].messages) {
      places_[message] = {static_cast<int32_t>(l), static_cast<int32_t>(line.senders.size())};
      line.senders.push_back(WorkerOfDevice(SendersOf(plan, message)[0]));
    }
    line.keeper = line.senders[0];
  }
  if (!lines_.empty() && !watch_.joinable() && !stopping_)
    watch_ = std::thread([this] { Watch(); });
}

void LineTurns::Forget() {
  const std::lock_guard lock(mutex_);
  ++round_;
  waiting_.clear();
  for (Line& line : lines_) line.order = LineOrder(patience_);
}

bool LineTurns::Has(const MessageTag& tag) const {
  const std::lock_guard lock(mutex_);
  return places_.contains(MessageOf(tag));
}

int64_t LineTurns::taken() const {
  const std::lock_guard lock(mutex_);
  return taken_;
}

absl::Status LineTurns::Send(const MessageTag& tag, Go go) {
  Actions actions;
  {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(MessageOf(tag));
    if (found == places_.end()) return absl::AbortedError("the message is another plan's");
    const auto [line, place] = found->second;
    if (lines_[line].senders[place] != worker_) {
      return absl::AbortedError("the message is another plan's: its sender is another worker now");
    }
    if (waiting_.size() >= kWaitingMax) {
      return absl::ResourceExhaustedError(
          absl::StrCat(waiting_.size(), " messages wait for their turn on a shared line"));
    }
    const Key key{line, {tag.step, place, tag.rank, tag.chunk}};
    waiting_[key] = {std::move(go), SteadyNow() + kTurnsPatience * patience_};
    SayLocked(lines_[line].keeper, {LineCall::What::kReady, line, key.second}, &actions);
  }
  changed_.notify_all();
  Do(actions);
  return absl::OkStatus();
}

void LineTurns::OnCall(const NodeId& from, const LineCall& call) {
  Actions actions;
  {
    const std::lock_guard lock(mutex_);
    ReceiveLocked(from, call, &actions);
  }
  changed_.notify_all();
  Do(actions);
}

// A call to this worker itself is handled at once.
void LineTurns::SayLocked(const NodeId& to, const LineCall& call, Actions* actions) {
  if (to == worker_) return ReceiveLocked(worker_, call, actions);
  actions->push_back([this, to, call] { tell_(to, call); });
}

void LineTurns::ReceiveLocked(const NodeId& from, const LineCall& call, Actions* actions) {
  if (call.line < 0 || call.line >= static_cast<int64_t>(lines_.size())) return;
  Line& line = lines_[call.line];
  const LinePart& part = call.part;
  if (part.place < 0 || part.place >= static_cast<int64_t>(line.senders.size())) return;
  const bool for_sender = call.what == LineCall::What::kGo;
  if (for_sender ? from != line.keeper || line.senders[part.place] != worker_
                 : line.keeper != worker_ || line.senders[part.place] != from) {
    return;
  }
  if (for_sender) {
    taken_ += waiting_.contains({call.line, part}) ? 1 : 0;
    return StartLocked({call.line, part}, actions);
  }
  if (call.what == LineCall::What::kReady) {
    line.order.Ready(from, part);
  } else {
    line.order.Left(from, part);
  }
  TurnLocked(call.line, actions);
}

void LineTurns::TurnLocked(int32_t line, Actions* actions) {
  if (const auto turn = lines_[line].order.Next(SteadyNow())) {
    SayLocked(turn->worker, {LineCall::What::kGo, line, turn->part}, actions);
  }
}

// It is its turn, or it has waited for too long.
void LineTurns::StartLocked(const Key& key, Actions* actions) {
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) {
    // Sent already: the order goes on.
    const LineCall left{LineCall::What::kLeft, key.first, key.second};
    return SayLocked(lines_[key.first].keeper, left, actions);
  }
  actions->push_back([this, go = std::move(found->second.go), round = round_, key] {
    go([this, round, key] { OnLeft(round, key); });
  });
  waiting_.erase(found);
}

void LineTurns::OnLeft(int64_t round, const Key& key) {
  Actions actions;
  {
    const std::lock_guard lock(mutex_);
    if (round != round_) return;
    const LineCall left{LineCall::What::kLeft, key.first, key.second};
    SayLocked(lines_[key.first].keeper, left, &actions);
  }
  changed_.notify_all();
  Do(actions);
}

void LineTurns::Watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const Instant now = SteadyNow();
    Instant next = now + patience_;
    Actions actions;
    for (size_t l = 0; l < lines_.size(); ++l) {
      const auto deadline = lines_[l].order.deadline();
      if (deadline && *deadline <= now) TurnLocked(static_cast<int32_t>(l), &actions);
      if (deadline && *deadline > now) next = std::min(next, *deadline);
    }
    std::vector<Key> late;
    for (const auto& [key, waiting] : waiting_) {
      if (waiting.until <= now) late.push_back(key);
      if (waiting.until > now) next = std::min(next, waiting.until);
    }
    for (const Key& key : late) {
      // The order goes on without it.
      const LineCall left{LineCall::What::kLeft, key.first, key.second};
      SayLocked(lines_[key.first].keeper, left, &actions);
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
