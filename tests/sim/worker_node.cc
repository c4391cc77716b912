// A worker's process: its incarnations, and its threads as fibers.

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "tests/sim/nodes.h"

namespace atl::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

void WorkerNode::Start() {
  BeginRun();
  ++incarnation_;
  connected_ = false;
  follower_runs_ = leaving_ = false;
  leader_.reset();  // before what it uses
  known_ = kept_ = Known();
  island_ = {-1, 0};
  saving_.clear();
  transfers_.clear();
  pull_ = Pull();
  world_.Trace(absl::StrCat(name(), " starts, incarnation ", incarnation_,
                            disk_.empty() ? "" : ", with saved states"));
  worker::Identity identity{name(), incarnation_};
  identity.signs = world_.options.signs;
  WorkerHello& hello = identity.hello;
  hello.devices = {{"cpu", 1 << 30, 1}};
  hello.peer_endpoint = absl::StrCat("sim://", name());
  if (world_.options.sites_declared) hello.site = name().back() % 2 == 0 ? "even" : "odd";
  if (!disk_.empty()) hello.held = {disk_.rbegin()->second.job};
  hello.mark = mark_;
  member_ = std::make_shared<SimMember>(
      &world_, IslandMember{name(), incarnation_, hello.peer_endpoint, ""}, slowness_, &disk_);
  MakeLeader();
  follower_ = std::make_shared<worker::FollowerControl>(
      member_.get(), [this](int64_t plan_number, const std::string& activity) {
        Post(worker::FollowerState{plan_number, activity});
      });
  core_.emplace(std::move(identity));
  KeepConnecting();
}

void WorkerNode::Crash() {
  const bool lost = world_.faulty() && !disk_.empty() && world_.rng.Chance(0.1);
  if (lost) disk_.clear();
  world_.Trace(absl::StrCat(name(), " crashes", lost ? ", and its disk is lost" : ""));
  EndRun();
  core_.reset();
  // The threads wait for what never comes: they end now, and their work on the way counts nowhere.
  const std::shared_ptr<SimMember> member = member_;
  member->Die();
  CloseByDeath();
}

void WorkerNode::End() {
  if (!alive()) return;
  EndRun();
  const std::shared_ptr<SimMember> member = member_;
  member->Die();
}

void WorkerNode::DeliverConnectionLost(Incarnation incarnation, int64_t connection) {
  world_.coordinator().WorkerLost(name(), incarnation, connection);
}

void WorkerNode::Deliver(const worker::Event& event) {
  if (!core_) return;
  const worker::Actions actions = core_->Step(world_.timeline.now(), event);
  const int64_t this_run = run();
  for (const worker::Action& action : actions.list) {
    std::visit([this](const auto& a) { Do(a); }, action);
    if (run() != this_run) return;
  }
  ArmTick(actions.deadline, [this] { Deliver(worker::Tick{}); });
}

// From any of its threads.
void WorkerNode::Post(worker::Event event) {
  AfterInRun(Duration(0), [this, event = std::move(event)] { Deliver(event); });
}

void WorkerNode::Leave() {
  if (!alive()) return;
  world_.Trace(absl::StrCat(name(), " gets SIGTERM"));
  leaving_ = true;
  Deliver(worker::ShutdownRequested{"SIGTERM"});
}

void WorkerNode::Do(const worker::Stop& action) {
  if (!leaving_) {
    return world_.checker.Fail(absl::StrCat(name(), " stops: ", action.reason));
  }
  world_.Trace(absl::StrCat(name(), " ends"));
  CrashAndRestart();
}

void WorkerNode::CrashAndRestart() {
  world_.timeline.After(world_.UpTo(seconds(5)), [this] {
    if (!alive()) Start();
  });
  Crash();
}

void WorkerNode::Do(const worker::InterruptStep& action) { leader_->Interrupt(action.reason); }

// ------------------------------------------------------------------- the follower's thread ----

void WorkerNode::Do(const worker::Follow& action) {
  const MemberOrder& order = action.order;
  const PeerFence fence{order.job, order.generation, order.plan.number};
  const int64_t number = follower_->Follow(fence, order.plan, order.at_step_end);
  const auto serve = [this, number](const NodeId& from, GroupFrame frame) {
    if (worker::FollowerControl::BeginsAnew(frame)) {
      member_->Interrupt("the island is set up again");
    }
    follower_->OnCall(from, std::move(frame), number);
    RunFollower();
  };
  const auto lost = [this] {
    follower_->OnPeerLost();
    RunFollower();
  };
  member_->SetHooks({.serve = serve, .peer_lost = lost});
  if (!order.at_step_end) member_->Interrupt(absl::StrCat("plan ", order.plan.number, " is there"));
  RunFollower();
}

void WorkerNode::Do(const worker::Unfollow& action) {
  if (!follower_->Unfollow()) return;
  member_->SetHooks({});
  member_->Interrupt(action.reason);
  RunFollower();
}

void WorkerNode::RunFollower() {
  if (follower_runs_ || !alive()) return;
  follower_runs_ = true;
  Fiber::Start([this, member = member_, follower = follower_, at = run()] {
    while (run() == at) {
      std::optional<worker::FollowerControl::Next> next = follower->Take();
      if (!next) break;
      follower->Do(*std::move(next));
    }
    if (run() != at) return;
    follower_runs_ = false;
    member->Wake();
  });
}

absl::Status WorkerNode::AwaitFree() {
  return member_->WaitUntil(seconds(20), [this] {
    return follower_->following() || (!follower_runs_ && !follower_->waiting());
  });
}

}  // namespace atl::sim
