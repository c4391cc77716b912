// A worker's commands: the real leader does them; what it says became of the island's state is
// compared with what is there.

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/nodes.h"
#include "worker/core/leases.h"

namespace atl::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;
using worker::Event;

namespace {

// Returns the rate that makes a step `scale` times as long as it should be; see
// ToyTrainer::StepLayer.
double ScaleLearningRate(double learning_rate, double scale) {
  return scale * (10 + learning_rate) - 10;
}

void TakeOnto(IslandState& state, const std::vector<PositionRange>& ranges, double learning_rate) {
  for (size_t l = 0; l < state.moment.size(); ++l) {
    const auto layer = static_cast<int32_t>(l);
    if (!state.theta.empty()) {
      ToyTrainer::StepLayer(layer, state.theta[l], ranges, learning_rate, 1);
    }
    ToyTrainer::StepLayer(layer, state.moment[l], ranges, learning_rate, 1);
  }
  ++state.optimizer_step;
}

}  // namespace

void WorkerNode::MakeLeader() {
  worker::IslandLeader::Hooks hooks;
  hooks.post = [this, at = run()](Event event) {
    if (run() != at) return;
    std::visit([this](const auto& e) { Check(e); }, event);
    Post(std::move(event));
  };
  hooks.await_free = [this] { return AwaitFree(); };
  hooks.remove = [this](const JobId& job) { RemoveJob(job); };
  hooks.transfers_started = [this] { return next_transfer_; };
  hooks.transfers_running = [this] { return std::ssize(transfers_); };
  leader_ = std::make_shared<worker::IslandLeader>(member_.get(), worker::LeaderOptions(),
                                                   std::move(hooks));
  member_->WatchCalls([this, at = run()](const GroupFrame& call) {
    if (run() == at) OnCall(call);
  });
}

void WorkerNode::Do(const worker::Prepare& action) {
  spec_ = action.spec;
  command_ = action;
  leader_->Enqueue(action);
}

void WorkerNode::Forget(const JobId& next) {
  known_ = kept_ = Known();
  island_ = {-1, 0};
  job_ = next;
}

void WorkerNode::RemoveJob(const JobId& job) {
  world_.checker.Of(job).Deleted(name());
  std::erase_if(disk_, [&](const auto& save) { return save.second.job == job; });
}

void WorkerNode::Check(const worker::CommandFailed& event) {
  world_.Trace(absl::StrCat(name(), ": a command failed: ", event.reason));
  addition_.reset();
  const auto* adopts = std::get_if<worker::AdoptPulled>(&command_);
  if (adopts == nullptr) return;
  // Its parameters are of no use until a version replaces them.
  if (known_.state && adopts->mode != worker::AdoptMode::kKeep) known_.state->theta.clear();
  if (adopts->reset_moments || adopts->moments) known_.state.reset();
}

// -------------------------------------------------------------------------------- the plan ----

void WorkerNode::Check(const worker::Reconfigured& taken) {
  const auto& action = std::get<worker::Reconfigure>(command_);
  const std::pair owner(action.island, action.generation);
  if (owner != island_) known_ = Known();
  island_ = owner;
  if (taken.taken_over) known_ = world_.FindWorker(action.take_over_from)->kept_;
  world_.Trace(absl::StrCat(name(), " sets up plan ", action.plan.number,
                            !taken.beyond.empty()      ? ", further than its save"
                            : taken.resumed            ? ", from a save"
                            : taken.steps_replayed > 0 ? ", from copies"
                            : taken.step_taken         ? ", one step ahead"
                            : taken.kept               ? ""
                                                       : ", state lost",
                            taken.base_lost ? ", theta_base lost" : "",
                            taken.push_lost ? ", a push lost" : "", " (", taken.reason, ")"));
  CheckKept(taken);
}

void WorkerNode::CheckKept(const worker::Reconfigured& taken) {
  const std::optional<ToyStep> step = std::exchange(known_.stepping, std::nullopt);
  if (taken.push_lost) known_.captured.reset();
  if (!taken.kept) {
    known_.state.reset();
    return;
  }
  if (taken.resumed) {
    const auto saved = world_.saved.find(std::get<worker::Reconfigure>(command_).resume);
    if (saved == world_.saved.end()) {
      return world_.checker.Fail(absl::StrCat(name(), " goes on from a save that was never whole"));
    }
    known_ = Known();
    known_.state = *saved->second.second;
    known_.since_base = saved->second.first.consumed;
    for (const LoggedStep& further : taken.beyond) {
      TakeOnto(*known_.state, further.ranges, further.learning_rate);
      known_.since_base.insert(known_.since_base.end(), further.ranges.begin(),
                               further.ranges.end());
    }
  } else if (taken.step_taken && step) {
    if (known_.state) TakeOnto(*known_.state, step->ranges, step->learning_rate);
    known_.since_base.insert(known_.since_base.end(), step->ranges.begin(), step->ranges.end());
  }
  CheckWhole("sets up a plan");
}

void WorkerNode::Check(const worker::HandedOver&) {
  kept_ = known_;
  if (world_.faulty() && world_.rng.Chance(world_.options.dies_handing_over)) {
    AfterInRun(world_.UpTo(milliseconds(100)), [this] { CrashAndRestart(); });
  }
}

// ------------------------------------------------------------------------------------- steps ----

void WorkerNode::Check(const worker::InitialWeightsMade&) {
  known_.state = Gather();
  if (known_.state) known_.state->theta = ToyInitialWeights(spec_.model.seed);
  CheckWhole("makes the initial weights");
}

void WorkerNode::Do(const worker::TrainStep& action) {
  const bool faulty = world_.faulty();
  command_ = action;
  if (faulty && world_.rng.Chance(world_.options.step_fails)) {
    return AfterInRun(milliseconds(50),
                      [this] { Deliver(worker::CommandFailed{"simulated: the step failed"}); });
  }
  if (faulty && world_.rng.Chance(world_.options.trainer_sick)) {
    sick_until_ = world_.timeline.now() + world_.UpTo(seconds(20));
  }
  const bool sick = faulty && world_.timeline.now() < sick_until_;
  if (worker::Sequences(action.ranges) == 0) {
    world_.checker.Fail(absl::StrCat(name(), " trains on nothing"));
  }
  // One more in a row, and the worker rightly gives the job up: that is for worker/core's tests.
  const bool diverges =
      sick && diverged_ + 1 < worker::kNotFiniteTriesMax && world_.rng.Chance(0.1);
  if (diverges) ++diverged_;
  member_->SetStepLoss(diverges ? std::numeric_limits<double>::quiet_NaN() : 1.0);
  const double rate = ScaleLearningRate(action.learning_rate, sick ? 100 : 1);
  known_.stepping = ToyStep{action.ranges, rate};
  if (known_.state) {
    IslandState after = *known_.state;
    TakeOnto(after, action.ranges, rate);
    Remember(after);
  }
  leader_->Enqueue(worker::TrainStep{action.ranges, rate});
}

void WorkerNode::Check(const worker::StepDone&) {
  const std::optional<ToyStep> step = std::exchange(known_.stepping, std::nullopt);
  if (!step || !known_.state || known_.state->theta.empty()) {
    return world_.checker.Fail(absl::StrCat("N3: ", name(), " trains what is no island's state"));
  }
  TakeOnto(*known_.state, step->ranges, step->learning_rate);
  known_.since_base.insert(known_.since_base.end(), step->ranges.begin(), step->ranges.end());
  world_.checker.Of(job_).AtRisk(name(), known_.since_base, known_.carried,
                                 known_.captured.has_value());
  if (world_.faulty() && member_->Several() &&
      world_.rng.Chance(world_.options.replan_request_chance)) {
    Post(worker::StageLinksSeen{leader_->plan().number, {}, "simulated: a link is saturated"});
  }
}

void WorkerNode::Do(const worker::Validate& action) {
  if (action.version != known_.adopted) {
    world_.checker.Fail(
        absl::StrCat(name(), " validates version ", action.version, " and holds ", known_.adopted));
  }
  command_ = action;
  leader_->Enqueue(action);
}

// --------------------------------------------------------------- the exchange with servers ----

void WorkerNode::Check(const worker::DeltaCaptured& event) {
  CheckWhole("captures its parameters");
  diverged_ = 0;
  capture_ = std::get<CaptureDelta>(command_);
  known_.captured = event.contribution;
  known_.captured_on = std::exchange(known_.since_base, {});
  captured_theta_ = known_.state ? known_.state->theta : LayerValues();
  captured_moment_ = known_.state ? known_.state->moment : LayerValues();
}

void WorkerNode::Check(const worker::DeltaReady& event) {
  if (event.ok) return CheckDelta(capture_, job_, captured_theta_);
  known_.captured.reset();
  known_.captured_on.insert(known_.captured_on.end(), known_.since_base.begin(),
                            known_.since_base.end());
  known_.since_base = std::exchange(known_.captured_on, {});
}

// A leader that takes over half way may find the averaged moments.
void WorkerNode::Do(const worker::AdoptPulled& action) {
  if (action.moments) {
    IslandState after = known_.state.value_or(IslandState());
    after.moment = OfOwners(OuterKind::kPulledFirst);
    Remember(after);
    if (action.reset_moments || after.optimizer_step < action.optimizer_steps) {
      after.optimizer_step = action.optimizer_steps;
    }
    Remember(after);
  }
  command_ = action;
  leader_->Enqueue(action);
}

// The sum that carrying adds is known before it is added.
void WorkerNode::OnCall(const GroupFrame& call) {
  const auto* adopts = std::get_if<worker::AdoptPulled>(&command_);
  if (adopts == nullptr || adopts->mode != worker::AdoptMode::kCarry || addition_) return;
  const ApplyCall* apply = worker::BodyIf<ApplyCall>(call);
  const AdditionCall* adds = worker::BodyIf<AdditionCall>(call);
  if ((apply != nullptr && apply->target == OuterTarget::kAdded) ||
      (adds != nullptr && adds->add)) {
    addition_ = OfOwners(OuterKind::kAddition);
  }
}

void WorkerNode::Check(const worker::Adopted&) {
  const auto& action = std::get<worker::AdoptPulled>(command_);
  const bool carries = action.mode == worker::AdoptMode::kCarry;
  const LayerValues addition = std::exchange(addition_, std::nullopt).value_or(LayerValues());
  const LayerValues base = OfOwners(OuterKind::kBase);
  if (!known_.state) known_.state = Gather();
  if (known_.state) {
    IslandState& state = *known_.state;
    const auto blend = static_cast<float>(world_.options.spec.outer.fragment_blend);
    for (size_t l = 0; l < base.size(); ++l) {
      if (!worker::Concern(action.shards, static_cast<int32_t>(l))) continue;
      if (action.mode == worker::AdoptMode::kReplace) {
        state.theta.resize(base.size());
        state.theta[l] = base[l];
      }
      for (size_t i = 0; carries && l < state.theta.size() && i < state.theta[l].size(); ++i) {
        state.theta[l][i] += blend * addition[l][i];
      }
    }
    const int64_t least = action.moments ? action.optimizer_steps : 0;
    if (action.reset_moments || state.optimizer_step < least) state.optimizer_step = least;
    if (action.moments) {
      state.moment = OfOwners(OuterKind::kPulledFirst);
      world_.checker.Of(job_).AdoptedMoments(name(), action.version, state.moment);
    } else if (action.reset_moments) {
      for (std::vector<float>& layer : state.moment) std::fill(layer.begin(), layer.end(), 0.0f);
    }
  }
  world_.Trace(absl::StrCat(name(), " adopts version ", action.version,
                            carries ? " and carries on" : "", pull_.steps > 0 ? ", by steps," : "",
                            " at step ", known_.state ? known_.state->optimizer_step : -1));
  CheckWhole("adopts a version");
  world_.checker.Of(job_).Adopted(name(), action.version, base);
  known_.adopted = action.version;
  if (action.mode == worker::AdoptMode::kReplace) known_.since_base.clear();
  known_.carried =
      action.mode == worker::AdoptMode::kKeep ? 0 : worker::Sequences(known_.since_base);
  known_.captured_on.clear();
  const auto captured = std::exchange(known_.captured, std::nullopt);
  // That of a saved state comes with it.
  const bool saved = action.mode == worker::AdoptMode::kKeep;
  if (action.keep_residual && !saved && captured && !world_.checker.Of(job_).Committed(*captured)) {
    world_.checker.Fail(absl::StrCat(
        name(), " keeps the residual of a push that was not taken: ", Describe(*captured)));
  }
}

// ------------------------------------------------------------------------------------- saves ----

void WorkerNode::Do(const worker::SaveState& action) {
  if (worker::Sequences(action.about.consumed) < worker::Sequences(known_.since_base)) {
    world_.checker.Fail(absl::StrCat(name(), " saves a state of ",
                                     worker::Sequences(action.about.consumed), " sequences after ",
                                     worker::Sequences(known_.since_base)));
  }
  if (known_.state) saving_[action.about.inner_step] = {action.about, *known_.state};
  command_ = action;
  leader_->Enqueue(action);
}

void WorkerNode::Check(const worker::StateCopied& event) {
  if (event.kept == worker::Kept::kNot) return;
  const bool on_disk = std::get<worker::SaveState>(command_).tier == Tier::kDisk;
  world_.Trace(absl::StrCat(name(), " saves its state at step ",
                            known_.state ? known_.state->optimizer_step : -1,
                            on_disk ? " on disk" : ""));
}

void WorkerNode::Check(const worker::StateSaved& event) {
  const auto saved = saving_.find(event.state.about.inner_step);
  if (saved == saving_.end() || event.state.units.empty()) return;
  world_.saved[event.state.about.save] = {saved->second.first,
                                          std::make_shared<IslandState>(saved->second.second)};
}

}  // namespace atl::sim
