// A worker's process: its runs, and what its devices do meanwhile.

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "rehearsal/players.h"

namespace atl::rehearsal {
Worker::Worker(World* world, size_t index, const SceneWorker* described)
    : Member(world, described->name, described->site), index_(index), described_(*described) {}

void Worker::Start() {
  if (alive()) return;
  BeginRun();
  ++incarnation_;
  connected_ = outstanding_ = preparing_ = leaving_ = said_ = false;
  leads_ = setting_up_ = stepping_ = stuck_ = scheduled_ = false;
  reconfigure_.reset();
  follows_.reset();
  leap_.reset();
  island_ = -1;
  plan_ = IslandPlan();
  steps_since_base_ = 0;
  worker::Identity identity{name(), incarnation_};
  identity.heartbeat_interval_max = kQuiet;
  WorkerHello& hello = identity.hello;
  hello.devices = ListDevices(world_.scene.input.cluster, described_);
  hello.peer_endpoint = absl::StrCat("rehearsed://", name());
  hello.site = site_;
  hello.held.assign(held_.begin(), held_.end());
  hello.mark = mark_;
  core_ = std::make_unique<WorkerCore>(std::move(identity));
  world_.accounts.SetDown(world_.timeline.now(), index_, false);
  UpdateUse();
  ConnectAfter(world_.scene.times.restart);
}

void Worker::End() {
  RollBack();
  const bool led = leads_;
  if (stepping_ && !stuck_) {
    const Duration done = world_.timeline.now() - step_began_;
    LoseWork(Use::kComputing, done);
  }
  if (led) {
    for (const IslandMember& member : plan_.members) {
      world_.accounts.ChargeReplayed(world_.worker_index.at(member.worker),
                                     step_time() * steps_since_base_);
    }
  }
  EndRun();
  core_.reset();
  stepping_ = false;
  UpdateUse();
  for (const IslandMember& member : plan_.members) {
    Worker* const other = world_.FindWorker(member.worker);
    if (other != this && other->alive()) other->UpdateUse();
  }
}

void Worker::Crash(bool machine) {
  if (!alive()) return;
  End();
  ReportLost(machine ? world_.scene.times.detect : kClosed);
  for (const auto& other : world_.workers) {
    if (other->alive() && other->Leads(name())) other->MemberLost();
  }
}

void Worker::Leave(Duration notice) {
  if (!alive()) return;
  leaving_ = true;
  Deliver(worker::ShutdownRequested{"its machine is taken away", notice});
}

void Worker::Do(const worker::Stop& action) {
  if (!leaving_) {
    world_.trouble = absl::StrCat(name(), " stops: ", action.reason);
    return;
  }
  Crash(/*machine=*/false);
}

bool Worker::Leads(const NodeId& member) const {
  const std::vector<IslandMember>& members =
      reconfigure_ ? reconfigure_->plan.members : plan_.members;
  return (leads_ || reconfigure_) &&
         std::any_of(members.begin(), members.end(),
                     [&](const IslandMember& m) { return m.worker == member; });
}

void Worker::NoteProgress() {
  if (!alive() || !connected_ || !world_.links.IsUp({site_, world_.coordinator->site()})) return;
  int64_t open = 0, moving = 0;
  for (const int64_t transfer : on_links_) {
    const Links::Ends* const ends = world_.links.Find(transfer);
    open += ends != nullptr;
    moving += ends != nullptr && world_.links.IsUp(*ends);
  }
  const bool works = (stepping_ && !stuck_) || outstanding_;
  if (moving > 0 || (open == 0 && works)) progress_ = world_.timeline.now();
}

void Worker::MemberLost() {
  NoteProgress();
  RollBack();
  if (reconfigure_ && setting_up_) {  // it waits for what does not come
    setting_up_ = false;
    ++command_;
  }
  if (stepping_ && !stuck_) {
    LoseWork(Use::kComputing, world_.timeline.now() - step_began_);
    stuck_ = true;
    ++step_number_;
    scheduled_ = false;
  }
  Deliver(worker::Tick{});
}

void Worker::MembersBack() {
  if (reconfigure_) return SetUpIfAllFollow();
  if (!stepping_ || !stuck_ || !AllHere()) return;
  stepping_ = stuck_ = false;
  Finish(Duration(0), worker::CommandFailed{"a link was down"});
}

void Worker::LinkDown(const Links::Ends& ends) {
  if (!leads_ || plan_.members.size() < 2) return;
  const auto is_at = [&](const std::string& site) {
    return site_ == site ||
           std::any_of(plan_.members.begin(), plan_.members.end(), [&](const IslandMember& m) {
             return world_.FindWorker(m.worker)->site_ == site;
           });
  };
  if (is_at(ends.first) && is_at(ends.second)) MemberLost();
}

// The step under way is lost, whatever is done with it later.
void Worker::BringTo(Instant end) {
  RollBack();
  if (stepping_ && !stuck_) LoseWork(Use::kComputing, std::min(end, step_ends_) - step_began_);
}

Use Worker::CurrentUse() const {
  if (!alive()) return Use::kWaiting;
  if (stepping_) return stuck_ ? Use::kReplanning : Use::kComputing;
  if (reconfigure_) return Use::kReplanning;
  if (leads_) return Use::kTransfers;
  if (follows_) {
    const Worker* const leader = world_.FindWorker(follows_->plan.members.front().worker);
    const bool together = leader->alive() && leader->leads_ &&
                          leader->island_ == follows_->island &&
                          leader->generation_ == follows_->generation && leader->Leads(name());
    return together ? leader->CurrentUse() : Use::kReplanning;
  }
  return preparing_ || !connected_ ? Use::kRestarting : Use::kWaiting;
}

void Worker::UpdateUse() {
  const Instant now = world_.timeline.now();
  const Use use = CurrentUse();
  world_.accounts.Set(now, index_, use);
  // Its members' uses follow from its own.
  if (std::exchange(noted_use_, use) == use || !alive() || !leads_) return;
  for (const IslandMember& member : plan_.members) {
    Worker* const other = world_.FindWorker(member.worker);
    if (other != this && other->alive())
      world_.accounts.Set(now, other->index_, other->CurrentUse());
  }
}

void Worker::LoseWork(Use from, Duration time) {
  for (const IslandMember& member : plan_.members) {
    world_.accounts.MoveToReplayed(world_.worker_index.at(member.worker), from, time);
  }
  if (plan_.members.empty()) world_.accounts.MoveToReplayed(index_, from, time);
}

void Worker::Deliver(const worker::Event& event) {
  if (!alive()) return;
  RollBack();
  Carry(core_->Step(world_.timeline.now(), event));
}

void Worker::Carry(const worker::Actions& actions) {
  said_ = false;
  const int64_t at = run();
  for (const worker::Action& action : actions.list) {
    std::visit([this](const auto& a) { Do(a); }, action);
    if (!alive() || run() != at) return;
  }
  NoteProgress();
  ArmTick(actions.deadline, [this] { Deliver(worker::Tick{}); });
  if (stepping_ && !scheduled_ && !stuck_) ScheduleStep(actions.deadline);
  UpdateUse();
}

void Worker::Finish(Duration delay, worker::Event event) {
  outstanding_ = true;
  AfterInRun(delay, [this, number = ++command_, event = std::move(event)] {
    if (number != command_) return;
    outstanding_ = preparing_ = false;
    Deliver(event);
  });
}

}  // namespace atl::rehearsal
