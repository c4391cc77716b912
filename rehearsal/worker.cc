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
  ++world_.reach;
  ++incarnation_;
  connected_ = outstanding_ = preparing_ = leaving_ = said_ = false;
  leads_ = setting_up_ = stuck_ = scheduled_ = false;
  pace_ = Pace();
  reconfigure_.reset();
  follows_.reset();
  leap_.reset();
  island_ = -1;
  plan_ = IslandPlan();
  team_.clear();
  worker::Identity identity{name(), incarnation_};
  identity.heartbeat_interval_max = kQuiet;
  WorkerHello& hello = identity.hello;
  hello.devices = ListDevices(world_.scene.input.cluster, described_);
  hello.peer_endpoint = name();
  hello.site = site_;
  hello.held.assign(held_.begin(), held_.end());
  hello.mark = mark_;
  core_ = std::make_unique<WorkerCore>(std::move(identity));
  world_.accounts.SetDown(world_.timeline.now(), index_, false);
  world_.accounts.SetUsed(world_.timeline.now(), index_, std::ssize(described_.devices));
  UpdateUse();
  ConnectAfter(world_.scene.times.restart);
}

void Worker::End() {
  RollBack();
  const bool led = leads_;
  if (pace_.stepping && !stuck_) {
    const Duration done = world_.timeline.now() - pace_.step_began;
    LoseWork(Use::kComputing, done);
  }
  if (led) {
    ChargeLostSteps();
  }
  CancelAll(on_links_);
  CancelAll(state_on_links_);
  EndRun();
  ++world_.reach;
  core_.reset();
  pace_.stepping = false;
  UpdateUse();
  for (Worker* const other : team_) {
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

void Worker::LoseDisk() {
  held_.clear();
  mark_ = ClusterMark();
  std::erase_if(world_.saves, [&](const auto& save) {
    return std::find(save.second.begin(), save.second.end(), name()) != save.second.end();
  });
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

std::vector<NodeId> Worker::ListMembers() const {
  std::vector<NodeId> names;
  for (const IslandMember& member : (reconfigure_ ? reconfigure_->plan : plan_).members) {
    names.push_back(member.worker);
  }
  return names;
}

bool Worker::AnyMoves(std::vector<int64_t>& transfers) const {
  while (!transfers.empty() && !world_.links.IsMoving(transfers.back())) transfers.pop_back();
  // The newest one moves while its link is up: hardly any search goes on.
  return std::any_of(transfers.rbegin(), transfers.rend(), [&](int64_t transfer) {
    return world_.links.IsMoving(transfer).value_or(false);
  });
}

void Worker::NoteProgress() {
  const bool idle =
      !pace_.stepping && !outstanding_ && on_links_.empty() && state_on_links_.empty();
  if (idle) return;
  if (!alive() || !connected_ || !world_.links.IsUp({site_, world_.coordinator->site()})) return;
  const bool moving = AnyMoves(on_links_) || AnyMoves(state_on_links_);
  const bool waits = !on_links_.empty() || !state_on_links_.empty();
  const bool works = (pace_.stepping && !stuck_) || outstanding_;
  if (moving || (!waits && works)) progress_ = world_.timeline.now();
}

void Worker::MemberLost() {
  NoteProgress();
  RollBack();
  if (reconfigure_ && setting_up_) {  // it waits for what does not come
    setting_up_ = false;
    ++command_;
    CancelAll(state_on_links_);
  }
  if (pace_.stepping && !stuck_) {
    LoseWork(Use::kComputing, world_.timeline.now() - pace_.step_began);
    stuck_ = true;
    ++step_number_;
    scheduled_ = false;
  }
  Deliver(worker::Tick{});
}

void Worker::MembersBack() {
  if (reconfigure_) return SetUpIfAllFollow();
  if (!pace_.stepping || !stuck_ || !AllHere()) return;
  pace_.stepping = stuck_ = false;
  Finish(Duration(0), worker::CommandFailed{"a link was down"});
}

void Worker::LinkDown(const Links::Ends& ends) {
  if (!leads_ || plan_.members.size() < 2) return;
  const auto is_at = [&](const std::string& site) {
    return site_ == site || std::any_of(team_.begin(), team_.end(), [&](const Worker* member) {
             return member->site_ == site;
           });
  };
  if (is_at(ends.first) && is_at(ends.second)) MemberLost();
}

// The step under way is lost, whatever is done with it later.
void Worker::BringTo(Instant end) {
  RollBack();
  if (pace_.stepping && !stuck_)
    LoseWork(Use::kComputing, std::min(end, pace_.step_ends) - pace_.step_began);
}

Use Worker::CurrentUse() const {
  if (!alive()) return Use::kWaiting;
  if (pace_.stepping) return stuck_ ? Use::kReplanning : Use::kComputing;
  if (reconfigure_) return Use::kReplanning;
  if (leads_) return Use::kTransfers;
  if (follows_) {
    return FollowedUse(*world_.FindWorker(follows_->plan.members.front().worker));
  }
  return preparing_ || !connected_ ? Use::kRestarting : Use::kWaiting;
}

// REQUIRES: it follows.
Use Worker::FollowedUse(const Worker& leader) const {
  const int64_t number =
      leader.reconfigure_ ? leader.reconfigure_->plan.number : leader.plan_.number;
  const bool together = leader.alive() && leader.leads_ && leader.island_ == follows_->island &&
                        leader.generation_ == follows_->generation &&
                        follows_->plan.number >= number;
  return together ? leader.CurrentUse() : Use::kReplanning;
}

void Worker::UpdateUse() {
  const Instant now = world_.timeline.now();
  const Use use = CurrentUse();
  world_.accounts.Set(now, index_, use);
  // Its members' uses follow from its own.
  if (std::exchange(noted_use_, use) == use || !alive() || !leads_) return;
  for (Worker* const other : team_) {
    if (other == this || !other->alive()) continue;
    const bool follows = other->follows_ && !other->pace_.stepping && !other->reconfigure_ &&
                         !other->leads_ && other->follows_->plan.members.front().worker == name();
    world_.accounts.Set(now, other->index_,
                        follows ? other->FollowedUse(*this) : other->CurrentUse());
  }
}

// The island goes back to its base.
void Worker::ChargeLostSteps() {
  IslandState& state = world_.islands[island_];
  for (const Worker* const member : team_) {
    world_.accounts.ChargeReplayed(member->index_, step_time() * state.steps_at_risk());
  }
  state.adopted_at = state.steps;
}

void Worker::LoseWork(Use from, Duration time) { MoveWork(from, Use::kReplayed, time); }

void Worker::MoveWork(Use from, Use to, Duration time) {
  for (const Worker* const member : team_) world_.accounts.Move(member->index_, from, to, time);
  if (team_.empty()) world_.accounts.Move(index_, from, to, time);
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
  if (pace_.stepping && !scheduled_ && !stuck_) ScheduleStep(actions.deadline);
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
