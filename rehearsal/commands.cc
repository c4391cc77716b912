// A worker's commands, which its core gives: its island's work, as times.

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rehearsal/players.h"

namespace atl::rehearsal {
namespace {

using std::chrono::milliseconds;

constexpr double kHostBytesPerSecond = 10e9;  // of one worker's memory, to copy state
constexpr double kDiskBytesPerSecond = 2e9;
// Weights and both moments, fp32: what moves and is saved.
constexpr double kStateBytes = 12;
constexpr size_t kSavesKept = 16;  // of an island
constexpr Duration kMoment = milliseconds(10);
// A forward pass takes about a third of a step.
constexpr double kForwardShare = 1.0 / 3;

}  // namespace

void Worker::Do(const worker::Send& action) {
  said_ = said_ || !std::holds_alternative<WorkerHeartbeat>(action.message);
  SendUp(FromWorker{name(), incarnation_, action.message});
}

void Worker::Do(const worker::Prepare& action) {
  preparing_ = true;
  job_ = action.job;
  Finish(world_.scene.times.open, worker::Prepared{action.job, world_.facts});
}

Duration Worker::CopyTime(double bytes_per_parameter) const {
  const auto members = static_cast<double>(std::max<size_t>(1, plan_.members.size()));
  return FromSeconds(bytes_per_parameter * static_cast<double>(world_.scene.parameters()) /
                     members / kHostBytesPerSecond);
}

Duration Worker::StateCopyTime() const { return CopyTime(kStateBytes); }

// --------------------------------------------------------------------------------- the plan ----

void Worker::Do(const worker::Reconfigure& action) {
  reconfigure_ = action;
  followed_by_ = 0;
  outstanding_ = true;
  setting_up_ = stuck_ = false;
  ++command_;
  CancelAll(state_on_links_);
  AfterInRun(kMoment, [this, generation = action.generation, number = action.plan.number] {
    Deliver(worker::Drained{generation, number});
  });
  SetUpIfAllFollow();
}

bool Worker::IsHere(const IslandMember& member, const Worker& worker) const {
  return worker.alive() && worker.incarnation_ == member.incarnation &&
         world_.links.IsUp({site_, worker.site_}) && world_.links.IsUp({worker.site_, site_});
}

bool Worker::AllHere() {
  if (all_here_at_ == world_.reach) return true;
  for (size_t m = 0; m < plan_.members.size(); ++m) {
    if (!IsHere(plan_.members[m], *team_[m])) return false;
  }
  all_here_at_ = world_.reach;
  return true;
}

bool Worker::Follows(const worker::Reconfigure& action, const IslandMember& member) const {
  if (member.worker == name()) return true;
  const Worker* const other = world_.FindWorker(member.worker);
  return IsHere(member, *other) && other->follows_ && other->follows_->island == action.island &&
         other->follows_->generation == action.generation &&
         other->follows_->plan.number == action.plan.number;
}

// Each member that follows calls it: those that did are looked at again when all do.
void Worker::SetUpIfAllFollow() {
  if (!reconfigure_ || setting_up_) return;
  const worker::Reconfigure& action = *reconfigure_;
  const std::vector<IslandMember>& members = action.plan.members;
  while (followed_by_ < members.size() && Follows(action, members[followed_by_])) ++followed_by_;
  if (followed_by_ < members.size()) return;
  if (!std::all_of(members.begin(), members.end(),
                   [&](const IslandMember& member) { return Follows(action, member); })) {
    return;
  }
  if (!action.take_over_from.empty() &&
      !world_.handed_over.contains({action.generation, action.take_over_from})) {
    return;
  }
  SetUp();
}

worker::Reconfigured Worker::KeepState(Duration* takes, Duration* replay) {
  const worker::Reconfigure& action = *reconfigure_;
  worker::Reconfigured done{action.plan.number, /*kept=*/true};
  IslandState& state = world_.islands[action.island];
  const bool same = state.valid && state.generation == action.generation;
  state.generation = action.generation;
  if (!same) {
    state.steps = state.adopted_at = 0;
    state.copied_at = -1;
  }
  if (action.resume != 0) {
    done.resumed = world_.saves.contains(action.resume);
    state.valid = done.resumed;
    *takes +=
        FromSeconds(kStateBytes * static_cast<double>(world_.scene.parameters()) /
                    static_cast<double>(action.plan.members.size() + 1) / kDiskBytesPerSecond);
    return done;
  }
  if (!same) {
    state.valid = false;
    return done;
  }
  std::set<NodeId> lost;
  for (const auto& [name, incarnation] : state.holders) {
    const Worker* const holder = world_.FindWorker(name);
    if (!holder->alive() || holder->incarnation_ != incarnation) lost.insert(name);
  }
  if (lost.empty() || world_.planner.Survives(action.island, state.members, lost)) return done;
  const int64_t copies = world_.spec.checkpoint.peer_copies;
  if (std::ssize(lost) <= copies && state.copied_at >= 0) {
    done.steps_replayed = state.steps - state.copied_at;
    done.reason = "from copies";
    *replay = Duration(action.plan.step_ns) * done.steps_replayed;
    return done;
  }
  done.kept = false;
  done.reason = absl::StrCat("what ", *lost.begin(), " held is lost");
  state.valid = false;
  return done;
}

std::vector<std::pair<Links::Path, double>> Worker::ListStateMoves(
    const IslandPlan& plan, const std::set<std::pair<NodeId, Incarnation>>& had) const {
  std::map<std::string, std::string> source_of;  // a site's own holders, or others
  for (const auto& [holder, incarnation] : had) {
    const std::string& site = world_.FindWorker(holder)->site_;
    source_of.try_emplace(site, site);
  }
  if (source_of.empty()) return {};
  const double bytes = kStateBytes * static_cast<double>(world_.scene.parameters()) /
                       static_cast<double>(plan.members.size());
  std::map<Links::Ends, std::pair<NodeId, double>> moves;
  for (const IslandMember& member : plan.members) {
    if (had.contains({member.worker, member.incarnation})) continue;
    const std::string& to = world_.FindWorker(member.worker)->site_;
    const auto found = source_of.find(to);
    const std::string& from = found == source_of.end() ? source_of.begin()->second : found->second;
    auto& [node, sum] = moves[{from, to}];
    node = member.worker;
    sum = from == to ? bytes : sum + bytes;  // each has a card of its own
  }
  std::vector<std::pair<Links::Path, double>> paths;
  for (const auto& [ends, move] : moves) paths.push_back({{ends, move.first}, move.second});
  return paths;
}

std::vector<std::pair<Links::Path, double>> Worker::ListCopies() const {
  const size_t n = plan_.members.size();
  const double bytes =
      kStateBytes * static_cast<double>(world_.scene.parameters()) / static_cast<double>(n);
  std::map<Links::Ends, double> copies;
  for (size_t m = 0; m < n; ++m) {
    for (size_t next = 1; next <= static_cast<size_t>(world_.spec.checkpoint.peer_copies); ++next) {
      if (next == n) break;
      const std::string& from = team_[m]->site_;
      const std::string& to = team_[(m + next) % n]->site_;
      double& sum = copies[{from, to}];
      sum = from == to ? bytes * static_cast<double>(next) : sum + bytes;
    }
  }
  std::vector<std::pair<Links::Path, double>> paths;
  for (const auto& [ends, sum] : copies) paths.push_back({{ends, name(), false}, sum});
  return paths;
}

// Nothing else is sent by a leader's own card.
std::optional<Duration> Worker::PredictCopies() const {
  Duration takes{0};
  for (const auto& [path, bytes] : ListCopies()) {
    if (path.ends.first != path.ends.second) return std::nullopt;
    takes = std::max(takes, world_.links.TimeAlone(path.ends, bytes));
  }
  return takes;
}

void Worker::MoveState(const std::vector<std::pair<Links::Path, double>>& moves,
                       Timeline::Action done) {
  state_on_links_.clear();
  if (moves.empty()) return done();
  const auto open = std::make_shared<size_t>(moves.size());
  for (const auto& [path, bytes] : moves) {
    state_on_links_.push_back(world_.links.Send(path, bytes, [this, open, done, at = run()] {
      if (alive() && run() == at && --*open == 0) done();
    }));
  }
}

void Worker::SetUp() {
  setting_up_ = true;
  const worker::Reconfigure& action = *reconfigure_;
  Duration takes = world_.scene.times.set_up, replay{0};
  const std::set<std::pair<NodeId, Incarnation>> had = world_.islands[action.island].holders;
  const worker::Reconfigured done = KeepState(&takes, &replay);
  std::vector<std::pair<Links::Path, double>> moves;
  if (world_.islands[action.island].valid) moves = ListStateMoves(action.plan, had);
  MoveState(moves, [this, done, takes, replay, number = ++command_] {
    AfterInRun(takes + replay, [this, done, replay, number] {
      if (number == command_) EndSetUp(done, replay);
    });
  });
}

// Plans for this worker's devices, where the coordinator has made none.
absl::Status Worker::PlanAlone() {
  PlanRequest request;
  request.spec = world_.spec;
  request.number = 2;  // its limits were checked before
  request.members = {{{name(), incarnation_}, site_, {}, {}}};
  ATOLL_ASSIGN_OR_RETURN(const IslandPlan own,
                         world_.planner.Plan(island_, request, std::nullopt, 1).plan);
  plan_.step_ns = own.step_ns;
  return absl::OkStatus();
}

void Worker::EndSetUp(worker::Reconfigured done, Duration replay) {
  const worker::Reconfigure action = *std::exchange(reconfigure_, std::nullopt);
  outstanding_ = setting_up_ = false;
  pace_.kept = kNever;
  all_here_at_ = -1;
  plan_ = action.plan;
  island_ = action.island;
  generation_ = action.generation;
  leads_ = true;
  if (plan_.members.empty()) {
    if (const absl::Status own = PlanAlone(); !own.ok()) {
      plan_ = IslandPlan();
      team_.clear();
      leads_ = false;
      return Deliver(worker::CommandFailed{std::string(own.message())});
    }
  }
  team_.clear();
  for (const IslandMember& member : plan_.members)
    team_.push_back(world_.FindWorker(member.worker));
  if (team_.empty()) team_.push_back(this);
  NoteParts();
  if (replay > Duration(0)) LoseWork(Use::kReplanning, replay);
  if (!done.kept) ChargeLostSteps();
  if (!action.take_over_from.empty()) {
    done.taken_over =
        world_.handed_over.extract({action.generation, action.take_over_from}).mapped();
  }
  if (world_.islands[island_].valid) HoldState();
  for (Worker* const other : team_) {
    if (other == this) continue;
    world_.Say(site_, other->site_, [other, plan_number = plan_.number] {
      other->Deliver(worker::FollowerState{plan_number, "following"});
    });
  }
  Deliver(done);
}

// Sources of state transfers are members without a part.
void Worker::NoteParts() {
  parts_.clear();
  for (const PlanReplica& replica : plan_.replicas) {
    for (const std::string& device : replica.stages.front().devices) {
      parts_.push_back(WorkerFromDevice(device));
    }
  }
  if (parts_.empty()) parts_.push_back(name());
  owned_ = world_.planner.ShareBySite(island_, parts_);
  redundant_ = world_.planner.IsRedundant(island_, parts_);
  copies_take_ = PredictCopies();
  std::map<NodeId, int64_t> devices = world_.planner.CountDevices(island_, parts_);
  if (devices.empty()) return;
  for (const Worker* const member : team_) {
    world_.accounts.SetUsed(world_.timeline.now(), member->index_, devices[member->name()]);
  }
}

void Worker::HoldState() {
  IslandState& state = world_.islands[island_];
  const bool same = state.valid && state.generation == generation_ && !state.members.empty() &&
                    state.plan_number == plan_.number;
  if (same) return;  // each adoption calls it
  state.valid = true;
  state.generation = generation_;
  state.plan_number = plan_.number;
  state.members.clear();
  state.holders.clear();
  for (const NodeId& part : parts_) {
    state.members.push_back(part);
    state.holders.insert({part, world_.FindWorker(part)->incarnation_});
  }
}

void Worker::Do(const worker::Handover& action) {
  world_.handed_over[{action.leadership.generation, name()}] = action.leadership;
  leads_ = false;
  Finish(kMoment, worker::HandedOver{});
}

void Worker::Do(const worker::Follow& action) {
  follows_ = action.order;
  leads_ = false;
  Worker* const leader = world_.FindWorker(action.order.plan.members.front().worker);
  AfterInRun(kMoment, [this] { Deliver(worker::FollowerState{0, "waiting for the leader"}); });
  world_.Say(site_, leader->site_, [leader] {
    if (leader->alive()) leader->SetUpIfAllFollow();
  });
}

void Worker::Do(const worker::Unfollow&) { follows_.reset(); }

void Worker::Do(const worker::ReleaseJob& action) {
  leads_ = false;
  follows_.reset();
  reconfigure_.reset();
  island_ = -1;
  plan_ = IslandPlan();
  team_.clear();
  if (action.removed) held_.erase(action.job);
}

// ------------------------------------------------------------------------------------- steps ----

void Worker::Do(const worker::MakeInitialWeights&) {
  HoldState();
  Finish(std::chrono::seconds(1), worker::InitialWeightsMade{});
}

void Worker::Do(const worker::TrainStep& action) {
  pace_.stepping = true;
  scheduled_ = false;
  stuck_ = !AllHere();
  pace_.step_tokens = Tokens(action.ranges);
  pace_.step_began = world_.timeline.now();
  pace_.step_ends = pace_.step_began + step_time();
}

void Worker::Do(const worker::InterruptStep& action) {
  if (pace_.stepping) {
    if (!stuck_) LoseWork(Use::kComputing, world_.timeline.now() - pace_.step_began);
    pace_.stepping = stuck_ = scheduled_ = false;
    ++step_number_;
    return Finish(kMoment, worker::CommandFailed{action.reason});
  }
  if (!outstanding_) return;
  CancelAll(state_on_links_);
  reconfigure_.reset();
  setting_up_ = false;
  if (preparing_) return Finish(kMoment, worker::PrepareFailed{job_, action.reason});
  Finish(kMoment, worker::CommandFailed{action.reason});
}

void Worker::Do(const worker::Validate& action) {
  const int64_t sequences = world_.facts.validation_sequences;
  const double steps = static_cast<double>(sequences) /
                       static_cast<double>(world_.spec.inner.batch_sequences) * kForwardShare;
  Finish(FromSeconds(Seconds(step_time()) * steps),
         worker::ValidationDone{action.version, 1.0, sequences * world_.spec.data.sequence_length});
}

void Worker::Do(const CaptureDelta& action) {
  world_.islands[island_].adopted_at = world_.islands[island_].steps;
  Finish(milliseconds(1), worker::DeltaCaptured{action.contribution});
  AfterInRun(milliseconds(1) + CopyTime(8),
             [this, id = action.contribution] { Deliver(worker::DeltaReady{id}); });
}

void Worker::Do(const worker::AdoptPulled& action) {
  if (action.mode == worker::AdoptMode::kReplace) {
    world_.islands[island_].adopted_at = world_.islands[island_].steps;
  }
  HoldState();
  Finish(CopyTime(8), worker::Adopted{action.version});
}

// ------------------------------------------------------------------------------------- saves ----

// Every member has a part of the first layer, which stands for all of them.
SavedState Worker::MakeSavedState(const worker::SaveState& action) const {
  SavedState state;
  state.about = action.about;
  std::vector<NodeId> members;
  for (const Worker* const member : team_) members.push_back(member->name());
  const int64_t elements = world_.facts.layers.front().elements;
  const auto count = static_cast<int64_t>(members.size());
  for (int64_t m = 0; m < count; ++m) {
    const int64_t begin = elements * m / count, end = elements * (m + 1) / count;
    if (end == begin) continue;
    const auto unit = static_cast<int64_t>(state.units.size());
    state.units.push_back({});
    state.units.back().begin = begin;
    state.units.back().end = end;
    SavedHolder holder;
    holder.worker = members[static_cast<size_t>(m)];
    holder.incarnation = world_.FindWorker(holder.worker)->incarnation_;
    holder.tier = action.tier;
    holder.units.assign(static_cast<size_t>(unit / 64) + 1, 0);
    holder.units.back() |= uint64_t{1} << (unit % 64);
    state.holders.push_back(std::move(holder));
  }
  return state;
}

void Worker::BeginCopies(Instant now, int64_t steps, Pace& pace) const {
  if (redundant_) return;
  pace.kept = now + StateCopyTime() + *copies_take_;
  pace.kept_steps = steps;
}

void Worker::ScheduleKept() {
  if (pace_.kept == kNever) return;
  AfterInRun(pace_.kept - world_.timeline.now(), [this, number = ++kept_number_] {
    if (number != kept_number_ || pace_.kept != world_.timeline.now() || !leads_) return;
    pace_.kept = kNever;
    world_.islands[island_].copied_at = pace_.kept_steps;
    Deliver(worker::StateSaved{{}, "", Tier::kMemory});
  });
}

void Worker::Do(const worker::SaveState& action) {
  const int64_t steps = world_.islands[island_].steps;
  if (CopiesByItself(action)) {
    Finish(StateCopyTime(), CopiedState());
    BeginCopies(world_.timeline.now(), steps, pace_);
    return ScheduleKept();
  }
  const bool memory = action.tier == Tier::kMemory;
  worker::SaveState saved = action;
  if (!memory) saved.about.save = world_.next_save++;
  Finish(StateCopyTime(), worker::StateCopied{worker::Kept::kCopied});
  const auto end = [this, saved, memory, steps, generation = generation_, number = plan_.number] {
    if (generation != generation_ || number != plan_.number || !leads_) return;
    worker::StateSaved done{{}, "", saved.tier};
    if (memory) {
      world_.islands[island_].copied_at = steps;
    } else {
      held_.insert(saved.about.job);
      done.state = MakeSavedState(saved);
      NoteSave(saved.about.save);
    }
    Deliver(done);
  };
  if (memory) {
    return AfterInRun(StateCopyTime(), [this, end] { MoveState(ListCopies(), end); });
  }
  const double share = kStateBytes * static_cast<double>(world_.scene.parameters()) /
                       static_cast<double>(std::max<size_t>(1, plan_.members.size()));
  AfterInRun(StateCopyTime() + FromSeconds(share / kDiskBytesPerSecond), end);
}

// Its members have it on their disks.
void Worker::NoteSave(int64_t save) {
  std::vector<NodeId>& members = world_.saves[save];
  for (const Worker* const member : team_) members.push_back(member->name());
  std::deque<int64_t>& of_island = world_.islands[island_].saves;
  of_island.push_back(save);
  if (of_island.size() <= kSavesKept) return;
  world_.saves.erase(of_island.front());
  of_island.pop_front();
}

}  // namespace atl::rehearsal
