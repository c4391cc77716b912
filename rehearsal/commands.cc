// A worker's commands, which its core gives: its island's work, as times.

#include <algorithm>
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

// --------------------------------------------------------------------------------- the plan ----

void Worker::Do(const worker::Reconfigure& action) {
  reconfigure_ = action;
  outstanding_ = true;
  setting_up_ = stuck_ = false;
  ++command_;
  AfterInRun(kMoment, [this, generation = action.generation, number = action.plan.number] {
    Deliver(worker::Drained{generation, number});
  });
  SetUpIfAllFollow();
}

bool Worker::IsHere(const IslandMember& member) const {
  const Worker* const other = world_.FindWorker(member.worker);
  return other->alive() && other->incarnation_ == member.incarnation &&
         world_.links.IsUp({site_, other->site_}) && world_.links.IsUp({other->site_, site_});
}

bool Worker::AllHere() const {
  return std::all_of(plan_.members.begin(), plan_.members.end(),
                     [&](const IslandMember& member) { return IsHere(member); });
}

void Worker::SetUpIfAllFollow() {
  if (!reconfigure_ || setting_up_) return;
  const worker::Reconfigure& action = *reconfigure_;
  for (const IslandMember& member : action.plan.members) {
    if (member.worker == name()) continue;
    const Worker* const other = world_.FindWorker(member.worker);
    const bool follows = IsHere(member) && other->follows_ &&
                         other->follows_->island == action.island &&
                         other->follows_->generation == action.generation &&
                         other->follows_->plan.number == action.plan.number;
    if (!follows) return;
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
  if (lost.empty() || world_.planner.Survives(state.members, lost)) return done;
  const int64_t copies = world_.spec.checkpoint.peer_copies;
  if (std::ssize(lost) <= copies && state.copied_at >= 0) {
    done.steps_replayed = std::max<int64_t>(0, core_->inner_step() - state.copied_at);
    done.reason = "from copies";
    *replay = Duration(action.plan.step_ns) * done.steps_replayed;
    return done;
  }
  done.kept = false;
  done.reason = absl::StrCat("what ", *lost.begin(), " held is lost");
  state.valid = false;
  return done;
}

void Worker::SetUp() {
  setting_up_ = true;
  const worker::Reconfigure& action = *reconfigure_;
  Duration takes = world_.scene.times.set_up, replay{0};
  const std::set<std::pair<NodeId, Incarnation>> had = world_.islands[action.island].holders;
  worker::Reconfigured done = KeepState(&takes, &replay);
  const bool joined = std::any_of(action.plan.members.begin(), action.plan.members.end(),
                                  [&](const IslandMember& m) {
                                    return !had.contains({m.worker, m.incarnation});
                                  });
  if (joined && world_.islands[action.island].valid && !world_.scene.free_links) {
    takes += FromSeconds(kStateBytes * static_cast<double>(world_.scene.parameters()) /
                         static_cast<double>(action.plan.members.size()) /
                         world_.scene.links.at({site_, site_}).bytes_per_s);
  }
  AfterInRun(takes + replay, [this, done = std::move(done), replay, number = ++command_]() mutable {
    if (number != command_) return;
    const worker::Reconfigure action = *std::exchange(reconfigure_, std::nullopt);
    outstanding_ = setting_up_ = false;
    plan_ = action.plan;
    island_ = action.island;
    generation_ = action.generation;
    leads_ = true;
    if (plan_.members.empty()) {  // this worker's devices, without a plan
      PlanRequest request;
      request.spec = world_.spec;
      request.number = 2;  // its limits were checked before
      request.members = {{{name(), incarnation_}, site_, {}, {}}};
      const absl::StatusOr<IslandPlan> own = world_.planner.Plan(request, std::nullopt, 1).plan;
      if (!own.ok()) {
        plan_ = IslandPlan();
        leads_ = false;
        return Deliver(worker::CommandFailed{std::string(own.status().message())});
      }
      plan_.step_ns = own->step_ns;
    }
    if (replay > Duration(0)) LoseWork(Use::kReplanning, replay);
    if (!done.kept) {
      for (const IslandMember& member : plan_.members) {
        world_.accounts.ChargeReplayed(world_.worker_index.at(member.worker),
                                       step_time() * steps_since_base_);
      }
      steps_since_base_ = 0;
    }
    if (!action.take_over_from.empty()) {
      done.taken_over = world_.handed_over.at({action.generation, action.take_over_from});
    }
    if (world_.islands[island_].valid) HoldState();
    for (const IslandMember& member : plan_.members) {
      if (member.worker == name()) continue;
      Worker* const other = world_.FindWorker(member.worker);
      world_.Say(site_, other->site_, [other, plan_number = plan_.number] {
        other->Deliver(worker::FollowerState{plan_number, "following"});
      });
    }
    Deliver(done);
  });
}

void Worker::HoldState() {
  IslandState& state = world_.islands[island_];
  state.valid = true;
  state.generation = generation_;
  state.members.clear();
  state.holders.clear();
  for (const IslandMember& member : plan_.members) {
    const bool part =
        std::any_of(plan_.replicas.begin(), plan_.replicas.end(), [&](const PlanReplica& replica) {
          const std::vector<std::string>& devices = replica.stages.front().devices;
          return std::find(devices.begin(), devices.end(), member.worker + "/0") != devices.end();
        });
    if (!part) continue;
    state.members.push_back(member.worker);
    state.holders.insert({member.worker, member.incarnation});
  }
  if (plan_.members.empty()) state.holders.insert({name(), incarnation_});
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
  if (action.removed) held_.erase(action.job);
}

// ------------------------------------------------------------------------------------- steps ----

void Worker::Do(const worker::MakeInitialWeights&) {
  HoldState();
  Finish(std::chrono::seconds(1), worker::InitialWeightsMade{});
}

void Worker::Do(const worker::TrainStep& action) {
  stepping_ = true;
  scheduled_ = false;
  stuck_ = !AllHere();
  step_tokens_ = Tokens(action.ranges);
  step_began_ = world_.timeline.now();
  step_ends_ = step_began_ + step_time();
}

void Worker::Do(const worker::InterruptStep& action) {
  if (stepping_) {
    if (!stuck_) LoseWork(Use::kComputing, world_.timeline.now() - step_began_);
    stepping_ = stuck_ = scheduled_ = false;
    ++step_number_;
    return Finish(kMoment, worker::CommandFailed{action.reason});
  }
  if (!outstanding_) return;
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
  steps_since_base_ = 0;
  Finish(milliseconds(1), worker::DeltaCaptured{action.contribution});
  AfterInRun(milliseconds(1) + CopyTime(8),
             [this, id = action.contribution] { Deliver(worker::DeltaReady{id}); });
}

void Worker::Do(const worker::AdoptPulled& action) {
  if (action.mode == worker::AdoptMode::kReplace) steps_since_base_ = 0;
  HoldState();
  Finish(CopyTime(8), worker::Adopted{action.version});
}

// ------------------------------------------------------------------------------------- saves ----

// Every member has a part of the first layer, which stands for all of them.
SavedState Worker::MakeSavedState(const worker::SaveState& action) const {
  SavedState state;
  state.about = action.about;
  std::vector<NodeId> members;
  for (const IslandMember& member : plan_.members) members.push_back(member.worker);
  if (members.empty()) members.push_back(name());
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

void Worker::Do(const worker::SaveState& action) {
  const bool memory = action.tier == Tier::kMemory;
  worker::SaveState saved = action;
  saved.about.save = world_.next_save++;
  const bool by_owners = memory && world_.planner.IsRedundant(world_.islands[island_].members);
  Finish(CopyTime(kStateBytes),
         worker::StateCopied{by_owners ? worker::Kept::kByOwners : worker::Kept::kCopied});
  const double share = kStateBytes * static_cast<double>(world_.scene.parameters()) /
                       static_cast<double>(std::max<size_t>(1, plan_.members.size()));
  const double rate = memory && !world_.scene.free_links
                          ? world_.scene.links.at({site_, site_}).bytes_per_s
                          : kDiskBytesPerSecond;
  if (by_owners) return;
  AfterInRun(CopyTime(kStateBytes) + FromSeconds(share / rate),
             [this, saved, memory, generation = generation_, number = plan_.number] {
               if (generation != generation_ || number != plan_.number || !leads_) return;
               worker::StateSaved done{{}, "", saved.tier};
               done.state.about = saved.about;
               if (memory) {
                 world_.islands[island_].copied_at = saved.about.inner_step;
               } else {
                 held_.insert(saved.about.job);
                 done.state = MakeSavedState(saved);
                 world_.saves[saved.about.save] = saved;
               }
               Deliver(done);
             });
}

}  // namespace atl::rehearsal
