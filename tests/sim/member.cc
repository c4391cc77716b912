// SimMember: waiting, and what members say to each other.

#include "tests/sim/member.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/nodes.h"

namespace atl::sim {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using worker::CallId;

namespace {

constexpr Duration kLook = std::chrono::milliseconds(100);  // for members that are lost

absl::Status Aborted(const std::string& why) { return absl::AbortedError(why); }

// A thread, as fibers: one while there is work.
class FiberLane final : public worker::WorkLane {
 public:
  explicit FiberLane(std::shared_ptr<SimMember> member) : member_(std::move(member)) {}
  ~FiberLane() override { work_->queue.clear(); }

  void Add(std::function<void()> work) override {
    work_->queue.push_back(std::move(work));
    if (std::exchange(work_->busy, true)) return;
    Fiber::Start([member = member_, work = work_] {
      while (!member->dead() && !work->queue.empty()) {
        const std::function<void()> next = std::move(work->queue.front());
        work->queue.pop_front();
        next();
      }
      work->busy = false;
      member->Wake();
    });
  }
  void AwaitIdle() override {
    (void)member_->WaitUntil(seconds(600), [this] { return !work_->busy; });
  }

 private:
  struct Work {
    std::deque<std::function<void()>> queue;
    bool busy = false;
  };
  const std::shared_ptr<SimMember> member_;
  const std::shared_ptr<Work> work_ = std::make_shared<Work>();
};

}  // namespace

std::unique_ptr<worker::WorkLane> SimMember::NewLane() {
  return std::make_unique<FiberLane>(shared_from_this());
}

// ----------------------------------------------------------------------------------- waiting ----

void SimMember::Die() {
  dead_ = true;
  hooks_ = {};
  Wake();
}

void SimMember::Block(Duration at_most) {
  if (dead_) return;
  const auto waiter = std::make_shared<Waiter>(Waiter{Fiber::Current()});
  ATOLL_CHECK(waiter->fiber != nullptr);
  waiters_.push_back(waiter);
  world_.timeline.After(at_most, [waiter] {
    if (!std::exchange(waiter->resumed, true)) waiter->fiber->Resume();
  });
  Fiber::Wait();
  waiter->fiber.reset();
  std::erase(waiters_, waiter);
}

void SimMember::Wake() {
  const std::list<std::shared_ptr<Waiter>> waiters = waiters_;
  for (const std::shared_ptr<Waiter>& waiter : waiters) {
    if (dead_) {
      if (!std::exchange(waiter->resumed, true)) std::shared_ptr(waiter->fiber)->Resume();
      continue;
    }
    world_.timeline.After(Duration(0), [waiter] {
      if (!std::exchange(waiter->resumed, true)) waiter->fiber->Resume();
    });
  }
}

void SimMember::Pause(Duration duration) { Block(duration); }

absl::Status SimMember::WaitUntil(Duration limit, const std::function<bool()>& done) {
  const Instant deadline = world_.timeline.now() + limit;
  for (;;) {
    if (dead_) return Aborted("the process has ended");
    if (done()) return absl::OkStatus();
    const Instant now = world_.timeline.now();
    if (now >= deadline) return absl::DeadlineExceededError("simulated: it took too long");
    Block(std::min<Duration>(deadline - now, kLook));
    LookForLost();
  }
}

absl::Status SimMember::Broken(int64_t interrupts) const {
  if (dead_) return Aborted("the process has ended");
  if (interrupts != interrupts_) return Aborted("interrupted");
  return absl::OkStatus();
}

absl::Status SimMember::Takes(Duration at_most) {
  const int64_t before = interrupts_;
  Block(microseconds(100) + world_.UpTo(at_most));
  return Broken(before);
}

void SimMember::Interrupt(const std::string& reason) {
  ++interrupts_;
  for (auto& [id, call] : calls_) {
    if (!call.result) call.result = Aborted(reason);
  }
  InterruptWork(reason);
}

void SimMember::InterruptWork(const std::string& reason) {
  if (work_broken_.empty()) work_broken_ = reason;
  Wake();
}

// ----------------------------------------------------------------------------------- partners ----

std::shared_ptr<SimMember> SimMember::Partner(const NodeId& worker, std::string* why) const {
  const auto no = [&](const char* what) -> std::shared_ptr<SimMember> {
    if (why != nullptr) *why = absl::StrCat(worker, what);
    return nullptr;
  };
  WorkerNode* const node = world_.FindWorker(worker);
  if (node == nullptr || !node->alive() || node->member() == nullptr ||
      !world_.network.IsReachable(self_.worker, worker)) {
    return no(" cannot be reached");
  }
  const std::shared_ptr<SimMember> other = node->member();
  for (const IslandMember& member : plan_.members) {
    if (member.worker == worker && member.incarnation != other->self_.incarnation) {
      return no(" is another process");
    }
  }
  if (other->fence_ != fence_ || fence_.plan == 0) return no(" does not serve under this plan");
  return other;
}

// The failure of a peer that was met ends what goes on with it.
void SimMember::LookForLost() {
  if (dead_) return;
  for (auto& [worker, met] : met_) {
    std::string why;
    if (!met || Partner(worker, &why) != nullptr) continue;
    met = false;
    for (auto& [id, call] : calls_) {
      if (call.to == worker && !call.result) call.result = absl::UnavailableError(why);
    }
    InterruptWork(absl::StrCat(why, ": it is lost"));
    if (hooks_.peer_lost) hooks_.peer_lost();
  }
}

absl::Status SimMember::Join(const PeerFence& fence, const IslandPlan& plan) {
  if (fence != fence_) {
    epoch_ = 0;
    interrupted_epoch_ = -1;
    met_.clear();
  }
  fence_ = fence;
  plan_ = plan;
  for (const IslandMember& member : plan.members) {
    if (member.worker == self_.worker || fence.plan == 0) continue;
    met_.try_emplace(member.worker, false);
  }
  return absl::OkStatus();
}

void SimMember::Leave() {
  plan_ = IslandPlan();
  fence_.plan = 0;  // no member can reach it
  met_.clear();
}

absl::Status SimMember::Meet(const std::vector<NodeId>& workers,
                             const std::atomic<bool>& interrupted) {
  std::string why;
  const absl::Status met = WaitUntil(limits().meet, [&] {
    if (interrupted) return true;
    return std::all_of(workers.begin(), workers.end(),
                       [&](const NodeId& worker) { return Partner(worker, &why) != nullptr; });
  });
  if (interrupted || dead_) return Aborted("interrupted");
  if (!met.ok()) return absl::DeadlineExceededError(why);
  for (const NodeId& worker : workers) met_[worker] = true;
  return Takes(milliseconds(20));
}

void SimMember::BeginEpoch(int64_t epoch) {
  ++save_epoch_;
  epoch_ = epoch;
  work_broken_.clear();
  if (interrupted_epoch_ >= epoch) work_broken_ = "aborted before it began";
  // Whom it sets the plan up with speaks with it.
  for (auto& [worker, met] : met_) met = met || Partner(worker) != nullptr;
}

worker::IslandLimits SimMember::limits() const { return {seconds(6), seconds(10), seconds(15)}; }

Duration SimMember::StepTimeout() const { return seconds(15); }

int64_t SimMember::NowUs() const {
  return std::chrono::duration_cast<microseconds>(world_.timeline.now() - Instant{}).count();
}

// ------------------------------------------------------------------------------------- calls ----

// In order, under the plan that holds now.
void SimMember::Send(const NodeId& to, GroupFrame frame) {
  const absl::StatusOr<GroupFrame> sent = worker::ParseGroupFrame(worker::Serialize(frame));
  ATOLL_CHECK(sent.ok(), worker::Describe(frame), ": ", sent.status().ToString());
  Instant& arrival = last_arrival_[to];
  arrival =
      std::max(arrival, world_.timeline.now() + microseconds(200) + world_.UpTo(milliseconds(5)));
  world_.timeline.At(arrival, [self = shared_from_this(), to, fence = fence_, frame = *sent] {
    if (self->fence_ != fence) return;
    const std::shared_ptr<SimMember> other = self->Partner(to);
    if (other != nullptr && !self->dead_) other->OnFrame(self->self_.worker, frame);
  });
}

absl::StatusOr<CallId> SimMember::Call(const NodeId& to, GroupFrame frame) {
  if (dead_) return Aborted("the process has ended");
  std::string why;
  const auto met = met_.find(to);
  if (met == met_.end() || !met->second || Partner(to, &why) == nullptr) {
    return absl::UnavailableError(absl::StrCat(to, " is lost ", why));
  }
  const CallId id = next_call_++;
  calls_[id] = {to, std::nullopt};
  frame.call = id;
  frame.epoch = epoch_;
  Send(to, std::move(frame));
  return id;
}

absl::StatusOr<GroupReply> SimMember::Await(CallId id, Duration timeout) {
  const absl::Status waited =
      WaitUntil(timeout, [this, id] { return calls_.at(id).result.has_value(); });
  const Called called = std::move(calls_.extract(id).mapped());
  ATOLL_RETURN_IF_ERROR(waited);
  return *called.result;
}

void SimMember::Notify(const NodeId& to, GroupFrame frame) {
  if (dead_) return;
  if (to == self_.worker) return (void)OnSaveFrame(to, frame);
  frame.epoch = epoch_;
  Send(to, std::move(frame));
}

void SimMember::Reply(const NodeId& to, CallId call, GroupReply reply) {
  Notify(to, {.call = call, .body = std::move(reply)});
}

void SimMember::OnFrame(const NodeId& from, GroupFrame frame) {
  if (const GroupReply* reply = worker::BodyIf<GroupReply>(frame)) {
    const auto call = calls_.find(frame.call);
    const absl::Status status = worker::StatusFromReply(*reply);
    if (call != calls_.end() && !call->second.result) {
      call->second.result =
          status.ok() ? absl::StatusOr<GroupReply>(*reply)
                      : absl::Status(status.code(), absl::StrCat(from, ": ", status.message()));
    }
    if (!status.ok() && hooks_.save_done && frame.epoch == epoch_) {
      InterruptWork(absl::StrCat(from, ": ", status.message()));
    }
    return Wake();
  }
  if (const Interruption* interrupt = worker::BodyIf<Interruption>(frame)) {
    if (frame.epoch < epoch_) return;
    interrupted_epoch_ = std::max(interrupted_epoch_, frame.epoch);
    return Interrupt(interrupt->reason);
  }
  if (OnSaveFrame(from, frame)) return;
  const ApplyCall* apply = worker::BodyIf<ApplyCall>(frame);
  if (worker::BodyIf<CaptureDelta>(frame) != nullptr || (apply != nullptr && apply->during_steps)) {
    return DoLater(from, std::move(frame));
  }
  if (hooks_.serve) return hooks_.serve(from, std::move(frame));
  GroupReply reply;
  worker::SetStatus(absl::UnavailableError("it serves no leader now"), &reply);
  Reply(from, frame.call, std::move(reply));
}

bool SimMember::OnSaveFrame(const NodeId& from, const GroupFrame& frame) {
  const GoOnSaving* go_on = worker::BodyIf<GoOnSaving>(frame);
  const ForgetSaves* forget = worker::BodyIf<ForgetSaves>(frame);
  const SaveDone* done = worker::BodyIf<SaveDone>(frame);
  if (go_on == nullptr && forget == nullptr && done == nullptr) return false;
  if (from != self_.worker && frame.epoch != epoch_) return true;
  if (go_on != nullptr) GoOnSave(go_on->save);
  if (forget != nullptr && forget->tier == Tier::kMemory) units_.DropBefore(forget->save);
  if (done != nullptr && hooks_.save_done) hooks_.save_done(from, *done);
  return true;
}

// During steps, on a thread of its own.
void SimMember::DoLater(const NodeId& from, GroupFrame frame) {
  const bool leads = !plan_.members.empty() && plan_.members.front().worker == from;
  GroupReply reply;
  if (frame.epoch != epoch_ || !leads) {
    worker::SetStatus(absl::UnavailableError("it serves no leader now"), &reply);
    return Reply(from, frame.call, std::move(reply));
  }
  Fiber::Start([self = shared_from_this(), from, frame] {
    GroupReply reply;
    absl::Status status = self->Takes(milliseconds(20));
    const CaptureDelta* make = worker::BodyIf<CaptureDelta>(frame);
    if (status.ok() && make == nullptr) status = self->DoOuter(std::get<ApplyCall>(frame.body));
    if (status.ok() && make != nullptr) {
      absl::StatusOr<GroupReply> made = self->DoCall(*make);
      status = made.status();
      if (made.ok()) reply = *std::move(made);
    }
    worker::SetStatus(status, &reply);
    self->Reply(from, frame.call, std::move(reply));
  });
}

}  // namespace atl::sim
