// A toy island of several workers: each holds the layers that its plan gives it, and a step is
// taken by all of them or, where something breaks, by none, by some, or by all without the leader's
// knowing. What the real devices say to each other is here one look at the other nodes.
//
// The leader is the first to take a step and the others follow within moments, unless they are told
// to follow another plan before: then the step is torn.
//
// Every layer carries the sequences that it was trained on since the base. They must agree wherever
// the leader puts the model together: a torn state cannot hide.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "tests/sim/nodes.h"
#include "worker/core/leases.h"

namespace atl::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kSetupLimit = std::chrono::seconds(6);
constexpr Duration kLateMax = std::chrono::milliseconds(60);  // less than any step takes

// Of a worker that has no plan: all on its only device.
IslandPlan PlanOfOne(const NodeId& worker, Incarnation incarnation) {
  IslandPlan plan;
  plan.members = {{worker, incarnation, absl::StrCat("sim://", worker), ""}};
  PlanReplica replica;
  replica.stages = {{0, static_cast<int32_t>(ToyLayers().size()), {worker + "/0"}, {}}};
  plan.replicas = {replica};
  return plan;
}

}  // namespace

NodeId WorkerNode::HolderOf(int32_t layer) const {
  for (const PlanStage& stage : plan_.replicas.at(0).stages) {
    if (layer >= stage.first_layer && layer < stage.first_layer + stage.layers) {
      return WorkerOfDevice(stage.devices[0]);
    }
  }
  ATOLL_CHECK(false, "no stage holds layer ", layer);
  return "";
}

// The other end, if it can be reached and serves under the same plan; else why not.
WorkerNode* WorkerNode::Partner(const NodeId& worker, std::string& why) {
  if (worker == name()) return this;
  WorkerNode* node = world_.FindWorker(worker);
  if (node == nullptr || !node->alive() || !world_.network.Reachable(name(), worker)) {
    why = absl::StrCat(worker, " cannot be reached");
    return nullptr;
  }
  for (const IslandMember& member : plan_.members) {
    if (member.worker == worker && member.incarnation != node->incarnation_) {
      why = absl::StrCat(worker, " is another process");
      return nullptr;
    }
  }
  if (!serving_ || node->serving_ != serving_) {
    why = absl::StrCat(worker, " does not serve under this plan");
    return nullptr;
  }
  return node;
}

std::string WorkerNode::WhyNotTogether() {
  std::string why;
  for (const IslandMember& member : plan_.members) Partner(member.worker, why);
  return why;
}

// One command of several devices, which ends after `delay` unless it is interrupted.
void WorkerNode::Together(Duration delay, Timeline::Action finish) {
  together_ = true;
  After(delay, [this, number = ++together_number_, finish] {
    if (number != together_number_) return;
    together_ = false;
    finish();
  });
}

void WorkerNode::FailTogether(const std::string& why) { Deliver(worker::CommandFailed{why}); }

void WorkerNode::Do(const worker::InterruptStep&) {
  if (!together_) return;
  together_ = false;
  ++together_number_;
  // Perhaps it was too late for some of the devices, or for all.
  if (stepping_) TakeStepSomewhere();
  After(milliseconds(3), [this] { FailTogether("interrupted"); });
}

// ------------------------------------------------------------------------------- the plan ----

void WorkerNode::Do(const worker::Reconfigure& action) {
  plan_ = action.plan.number == 0 ? PlanOfOne(name(), incarnation_) : action.plan;
  serving_ = Serving{action.job, action.generation, action.plan.number};
  const Owner owner{action.island, action.generation};
  if (owner != owner_) owners_.clear();
  owner_ = owner;
  take_over_from_ = action.take_over_from;
  resume_ = action.resume;
  Together(world_.UpTo(milliseconds(10)), [this, number = action.plan.number] {
    HearAll();
    SetUp(world_.timeline.now() + kSetupLimit);
    Deliver(worker::Settled{owner_.generation, number});
  });
}

void WorkerNode::SetUp(Instant deadline) {
  Together(milliseconds(20) + world_.UpTo(milliseconds(60)), [this, deadline] {
    const std::string why = WhyNotTogether();
    if (why.empty()) return MoveState();
    if (world_.timeline.now() > deadline) return FailTogether(why);
    SetUp(deadline);
  });
}

// Every layer of that state, wherever it is; empty if one is missing.
std::map<int32_t, WorkerNode::Shard> WorkerNode::Find(int64_t clock) {
  std::map<int32_t, Shard> found;
  for (const IslandMember& member : plan_.members) {
    for (const auto& [layer, shard] : world_.FindWorker(member.worker)->held_) {
      if (shard.owner == owner_ && shard.clock == clock) found.try_emplace(layer, shard);
    }
  }
  return found.size() == ToyLayers().size() ? found : std::map<int32_t, Shard>();
}

void WorkerNode::Do(const worker::HandOver& action) {
  HearAll();
  kept_ = Kept{action.leadership, trainer_, since_base_, adopted_, carried_,
               captured_,         clock_,   stepping_,   owners_};
  After(milliseconds(1), [this] { Deliver(worker::HandedOver{}); });
  if (!world_.faulty() || !world_.rng.Chance(world_.options.dies_handing_over)) return;
  After(world_.UpTo(milliseconds(100)), [this] { CrashAndRestart(); });
}

bool WorkerNode::TakeOver(std::string& why) {
  WorkerNode* before = Partner(take_over_from_, why);
  if (before == nullptr) return false;
  if (!before->kept_ || before->kept_->leadership.generation != owner_.generation) {
    why = absl::StrCat(take_over_from_, " has nothing to hand over");
    return false;
  }
  const Kept& kept = *before->kept_;
  const LayerValues pulled = std::move(trainer_.pulled);
  trainer_ = kept.trainer;
  trainer_.pulled = pulled;
  since_base_ = kept.since_base;
  adopted_ = kept.adopted;
  carried_ = kept.carried;
  captured_ = kept.captured;
  owners_ = kept.owners;
  clock_ = kept.clock;
  stepping_ = kept.stepping;
  return true;
}

// The layers of a save, wherever members have them on their disks. False: one is nowhere.
bool WorkerNode::FromDisks(int64_t save, std::map<int32_t, Shard>& state) {
  std::map<int32_t, Shard> found;
  for (const IslandMember& member : plan_.members) {
    const auto& disk = world_.FindWorker(member.worker)->disk_;
    const auto saved = disk.find(save);
    if (saved == disk.end()) continue;
    for (const auto& [layer, theta] : saved->second.layers) {
      found.try_emplace(layer, Shard{theta, clock_ + 1, owner_, saved->second.about.consumed});
    }
  }
  if (found.size() != ToyLayers().size()) return false;
  state = std::move(found);
  ++clock_;
  return true;
}

void WorkerNode::MoveState() {
  worker::Reconfigured done{plan_.number, false, false, "a layer is nowhere"};
  if (!take_over_from_.empty()) {
    std::string why;
    if (!TakeOver(why)) return FailTogether(why);
    done.taken_over = Partner(take_over_from_, why)->kept_->leadership;
  }
  AgreeOnStep();
  std::map<int32_t, Shard> state;
  if (stepping_) state = Find(clock_ + 1);
  if (!state.empty()) {
    done.step_taken = true;
    ++clock_;
  } else {
    state = Find(clock_);
  }
  if (resume_ != 0 && FromDisks(std::exchange(resume_, 0), state)) {
    done.resumed = true;
    done.step_taken = false;
    owners_.clear();
  }
  done.kept = !state.empty();
  if (AnOwnerIsGone()) {
    done.kept = done.step_taken = false;
    done.reason = "theta_base of a layer is nowhere";
    done.push_lost = captured_.has_value();
    owners_.clear();
  }
  stepping_.reset();
  world_.Trace(absl::StrCat(name(), " sets up plan ", plan_.number,
                            done.resumed      ? ", from disks"
                            : done.step_taken ? ", one step ahead"
                            : done.kept       ? ""
                                              : ", state lost"));
  for (const IslandMember& member : plan_.members) world_.FindWorker(member.worker)->held_.clear();
  for (const auto& [layer, shard] : state) {
    world_.FindWorker(HolderOf(layer))->held_[layer] = shard;
  }
  if (!owners_.empty()) OwnersKeep();
  Deliver(done);
}

void WorkerNode::OwnersKeep() {
  owners_.clear();
  for (size_t layer = 0; layer < ToyLayers().size(); ++layer) {
    const NodeId owner = HolderOf(static_cast<int32_t>(layer));
    owners_[owner] = world_.FindWorker(owner)->life();
  }
}

// One that the plan names, with or without a part in it, can still be asked.
bool WorkerNode::AnOwnerIsGone() {
  return std::any_of(owners_.begin(), owners_.end(), [&](const auto& owner) {
    const bool named =
        std::any_of(plan_.members.begin(), plan_.members.end(),
                    [&](const IslandMember& member) { return member.worker == owner.first; });
    const WorkerNode* node = world_.FindWorker(owner.first);
    return !named || node == nullptr || !node->alive() || node->life() != owner.second;
  });
}

void WorkerNode::Do(const worker::Follow& action) {
  const MemberOrder& order = action.order;
  ++together_number_;
  together_ = false;
  plan_ = IslandPlan();
  stepping_.reset();
  if (late_) waits_ = std::exchange(late_, std::nullopt);
  serving_ = Serving{order.job, order.generation, order.plan.number};
  After(world_.UpTo(milliseconds(50)), [this, number = order.plan.number] {
    Deliver(worker::FollowerState{number, absl::StrCat("following under plan ", number)});
  });
}

// What it holds stays: it may be about to lead.
void WorkerNode::Do(const worker::Unfollow&) { serving_.reset(); }

// ------------------------------------------------------------------------ the model's layers ----

// The whole model into trainer_, and what it was trained on into since_base_.
bool WorkerNode::Gather() {
  HearAll();
  std::string why;
  bool first = true;
  for (size_t layer = 0; layer < ToyLayers().size(); ++layer) {
    WorkerNode* node = Partner(HolderOf(static_cast<int32_t>(layer)), why);
    if (node == nullptr) return false;
    const auto shard = node->held_.find(static_cast<int32_t>(layer));
    if (shard == node->held_.end()) return false;
    if (shard->second.clock != clock_) {
      world_.checker.Fail(absl::StrCat("N3: ", name(), " puts a model together of layers at ",
                                       shard->second.clock, " and ", clock_));
    }
    if (!first && shard->second.trained_on != since_base_) {
      world_.checker.Fail(
          absl::StrCat("N2: layers of ", name(), "'s island were trained on different sequences"));
    }
    first = false;
    since_base_ = shard->second.trained_on;
    trainer_.theta.resize(ToyLayers().size());
    trainer_.theta[layer] = shard->second.theta;
  }
  return true;
}

// trainer_'s parameters to all devices; what breaks on the way leaves some without them.
bool WorkerNode::Scatter(const std::vector<PositionRange>& trained_on) {
  HearAll();
  std::string why;
  ++clock_;
  for (size_t layer = 0; layer < ToyLayers().size(); ++layer) {
    WorkerNode* node = Partner(HolderOf(static_cast<int32_t>(layer)), why);
    if (node == nullptr || (world_.faulty() && world_.rng.Chance(world_.options.lost_writes)))
      return false;
    node->held_[static_cast<int32_t>(layer)] =
        Shard{trainer_.theta[layer], clock_, owner_, trained_on};
  }
  since_base_ = trained_on;
  return true;
}

void WorkerNode::Take(const LateStep& late) {
  for (auto& [layer, shard] : held_) {
    if (shard.owner != late.owner || shard.clock != late.clock) continue;
    const ToyStep& step = late.step;
    ToyTrainer::StepLayer(layer, shard.theta, step.ranges, step.learning_rate, step.scale);
    shard.trained_on.insert(shard.trained_on.end(), step.ranges.begin(), step.ranges.end());
    ++shard.clock;
    shard.step = late.number;
  }
}

void WorkerNode::TakeLate() {
  if (late_) Take(*std::exchange(late_, std::nullopt));
}

// The others' answers to the newest step are waited for before anything else is done with them.
void WorkerNode::HearAll() {
  for (const IslandMember& member : plan_.members) {
    if (WorkerNode* node = world_.FindWorker(member.worker); node != nullptr) {
      if (node->late_ && node->late_->owner == owner_) node->TakeLate();
    }
  }
}

// A step that some have taken is taken by all that are left and wait for it.
void WorkerNode::AgreeOnStep() {
  for (const IslandMember& member : plan_.members) {
    WorkerNode& node = *world_.FindWorker(member.worker);
    const auto waits = std::exchange(node.waits_, std::nullopt);
    if (!waits || waits->owner != owner_) continue;
    const auto taken = [&](const IslandMember& other) {
      const auto& held = world_.FindWorker(other.worker)->held_;
      return std::any_of(held.begin(), held.end(), [&](const auto& entry) {
        return entry.second.owner == owner_ && entry.second.step == waits->number;
      });
    };
    if (std::any_of(plan_.members.begin(), plan_.members.end(), taken)) node.Take(*waits);
  }
}

// Something broke around the commit: usually before it, sometimes after it, sometimes across it.
void WorkerNode::TakeStepSomewhere() {
  if (!world_.rng.Chance(0.3)) return;
  const bool all = world_.rng.Chance(0.5);
  const LateStep step{*stepping_, owner_, clock_, ++world_.island_steps};
  std::string why;
  if (all && !WhyNotTogether().empty()) return;
  for (const IslandMember& member : plan_.members) {
    WorkerNode* node = Partner(member.worker, why);
    if (node == nullptr) continue;
    if (all || world_.rng.Chance(0.5)) {
      node->Take(step);
    } else {
      node->waits_ = step;
    }
  }
}

void WorkerNode::StepTogether(const worker::TrainStep& action, Duration took, float scale,
                              double loss) {
  stepping_ = ToyStep{action.ranges, action.learning_rate, scale};
  Together(took, [this, took, loss] {
    std::string why = WhyNotTogether();
    if (why.empty() && world_.faulty() && world_.rng.Chance(world_.options.link_breaks)) {
      why = "simulated: a link broke";
    }
    if (!why.empty()) {
      TakeStepSomewhere();
      return FailTogether(why);
    }
    int64_t sequences = 0;
    for (const PositionRange& range : stepping_->ranges) sequences += range.size();
    const WorkerNode& first = *world_.FindWorker(HolderOf(0));
    std::vector<PositionRange> at_risk = first.held_.at(0).trained_on;
    at_risk.insert(at_risk.end(), stepping_->ranges.begin(), stepping_->ranges.end());
    world_.checker.AtRisk(name(), at_risk, carried_, captured_.has_value());
    const LateStep step{*stepping_, owner_, clock_, ++world_.island_steps};
    Take(step);
    for (const IslandMember& member : plan_.members) {
      WorkerNode& node = *world_.FindWorker(member.worker);
      if (&node == this) continue;
      node.late_ = step;
      node.After(world_.UpTo(kLateMax), [&node, number = ++node.late_number_] {
        if (number == node.late_number_) node.TakeLate();
      });
    }
    stepping_.reset();
    ++clock_;
    const int64_t tokens = sequences * spec_.data.sequence_length;
    Deliver(worker::StepDone{tokens, loss, Seconds(took), !transfers_.empty()});
    if (world_.faulty() && world_.rng.Chance(world_.options.island_wishes)) {
      Deliver(worker::BoundariesSeen{plan_.number, {}, "simulated: a link is saturated"});
    }
  });
}

void WorkerNode::Do(const worker::MakeInitialWeights&) {
  Together(milliseconds(30), [this] {
    trainer_.Initialize(spec_.model.seed);
    if (!Scatter({})) return FailTogether("the initial weights did not reach everybody");
    Deliver(worker::InitialWeightsMade{});
  });
}

void WorkerNode::Do(const worker::CaptureDelta& action) {
  diverged_ = 0;
  Together(milliseconds(5), [this, action] {
    if (!Gather()) return FailTogether("a layer could not be read");
    Capture(action);
    if (action.contribution.base_version == kNoVersion) OwnersKeep();
    for (const IslandMember& member : plan_.members) {  // lenders too, wherever they are by now
      for (auto& [layer, shard] : world_.FindWorker(member.worker)->held_) {
        if (shard.owner == owner_) shard.trained_on.clear();
      }
    }
    Deliver(worker::DeltaCaptured{action.contribution});
    MakeDelta(action);
  });
}

void WorkerNode::Do(const worker::AdoptPulled& action) {
  Together(milliseconds(8), [this, action] {
    std::vector<PositionRange> trained_on;
    if (action.mode == worker::AdoptMode::kReplace) {
      trainer_.Replace();
    } else {
      if (!Gather()) return FailTogether("a layer could not be read");
      if (action.mode == worker::AdoptMode::kKeep) {
        trainer_.theta_base = trainer_.theta_push = trainer_.pulled;
      } else {
        trainer_.Carry();
      }
      trained_on = since_base_;
    }
    if (!Scatter(trained_on)) return FailTogether("a layer could not be written");
    adopted_ = action.version;
    OwnersKeep();
    carried_ = action.mode == worker::AdoptMode::kKeep ? 0 : worker::Sequences(trained_on);
    SettleResidual(action);
    world_.checker.Adopted(name(), action.version, trainer_.theta_base);
    Deliver(worker::Adopted{action.version});
  });
}

// ---------------------------------------------------------------------------------- saving ----

// On the disks of all members, of what each holds. (Nobody keeps copies in memory here.)
void WorkerNode::Do(const worker::SaveState& action) {
  if (action.tier != Tier::kDisk) {
    return After(milliseconds(1), [this] { Deliver(worker::StateCopied{false}); });
  }
  Together(milliseconds(2), [this, action] {
    if (!Gather()) return FailTogether("a layer could not be read");
    if (worker::Sequences(action.about.consumed) < worker::Sequences(since_base_)) {
      world_.checker.Fail(absl::StrCat(name(), " saves a state of ",
                                       worker::Sequences(action.about.consumed),
                                       " sequences after ", worker::Sequences(since_base_)));
    }
    Saving saving{action.about, {}, {}};
    saving.about.save = ++world_.saves;
    SavedState& state = saving.state;
    state.about = saving.about;
    for (size_t layer = 0; layer < ToyLayers().size(); ++layer) {
      state.units.push_back({static_cast<int32_t>(layer), 0, {1}, 0, ToyLayers()[layer].elements});
    }
    for (const IslandMember& member : plan_.members) {
      Saved part{saving.about, {}};
      SavedHolder holder{member.worker, member.incarnation, Tier::kDisk, {0}};
      for (size_t layer = 0; layer < ToyLayers().size(); ++layer) {
        if (HolderOf(static_cast<int32_t>(layer)) != member.worker) continue;
        part.layers[static_cast<int32_t>(layer)] = trainer_.theta[layer];
        holder.units[0] |= uint64_t{1} << layer;
      }
      if (part.layers.empty()) continue;
      state.holders.push_back(std::move(holder));
      saving.parts[member.worker] = std::move(part);
    }
    Deliver(worker::StateCopied{true});
    WriteSaved(std::move(saving));
  });
}

// Beside the steps. Who dies meanwhile has written nothing.
void WorkerNode::WriteSaved(Saving saving) {
  for (const auto& [worker, part] : saving.parts) {
    saving.lives[worker] = world_.FindWorker(worker)->life();
  }
  After(milliseconds(20) + world_.UpTo(milliseconds(300)), [this, saving] {
    bool whole = true;
    for (const auto& [worker, part] : saving.parts) {
      WorkerNode* const node = world_.FindWorker(worker);
      if (node->life() != saving.lives.at(worker)) {
        whole = false;
        continue;
      }
      node->disk_[saving.about.save] = part;
      if (node->disk_.size() > 2) node->disk_.erase(node->disk_.begin());
    }
    worker::StateSaved said;
    said.tier = Tier::kDisk;
    if (whole) {
      said.state = saving.state;
    } else {
      said.trouble = "simulated: a member died while it wrote";
    }
    Deliver(said);
  });
}

}  // namespace atl::sim
