// A worker's trainer commands: the real control does them (worker/runtime/island.cc is what does so
// in the daemon); what it says became of the island's state is compared with what is there.

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

// What makes a step `scale` times as long as it should be; see ToyTrainer::StepLayer.
double ScaleLearningRate(double learning_rate, double scale) {
  return scale * (10 + learning_rate) - 10;
}

Event Failed(const absl::Status& status) {
  return worker::CommandFailed{std::string(status.message())};
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

void WorkerNode::Lead() {
  member_->SetHooks(
      {.save_done = [control = control_](const NodeId& from,
                                         const SaveDone& done) { control->OnSaveDone(from, done); },
       .leads = true});
}

void WorkerNode::Do(const worker::Prepare& action) {
  spec_ = action.spec;
  Enqueue({[this, action]() -> std::optional<Event> {
             member_->Pause(milliseconds(50));
             (void)AwaitFree();
             member_->Open(action.job, action.spec);
             control_->Release();
             known_ = kept_ = Known();
             island_ = {-1, 0};
             job_ = action.job;
             if (action.spec.layout.island == IslandScope::kWorker) {
               Lead();
               if (const absl::Status alone = control_->ConfigureAlone(); !alone.ok()) {
                 return worker::PrepareFailed{action.job, std::string(alone.message())};
               }
             }
             return worker::Prepared{action.job, ToyFacts(action.spec)};
           },
           worker::PrepareFailed{action.job, "interrupted"}});
}

void WorkerNode::Do(const worker::ReleaseJob& action) {
  Enqueue({[this, action]() -> std::optional<Event> {
             if (job_ == action.job) {  // another one may be open by now
               AwaitSideWork();
               (void)AwaitFree();
               member_->Close();
               control_->Release();
               job_.clear();
             }
             if (action.removed) {
               world_.checker.Of(action.job).Deleted(name());
               std::erase_if(disk_,
                             [&](const auto& save) { return save.second.job == action.job; });
             }
             return std::nullopt;
           },
           std::nullopt});
}

// -------------------------------------------------------------------------------- the plan ----

void WorkerNode::Do(const worker::Reconfigure& action) {
  Enqueue({[this, action]() -> std::optional<Event> {
             AwaitSideWork();
             if (const absl::Status free = AwaitFree(); !free.ok()) return Failed(free);
             Lead();
             const std::pair owner(action.island, action.generation);
             if (owner != island_) known_ = Known();
             island_ = owner;
             control_->ResumeFrom(action.resume, action.leased);
             Leadership leadership;
             const absl::StatusOr<worker::PlanTaken> taken =
                 control_->Configure(action.job, action.generation, action.plan, action.shards,
                                     action.take_over_from, &leadership);
             if (!taken.ok()) return Failed(taken.status());
             return Configured(action, *taken, std::move(leadership));
           },
           worker::CommandFailed{"interrupted"}});
}

Event WorkerNode::Configured(const worker::Reconfigure& action, const worker::PlanTaken& taken,
                             Leadership leadership) {
  worker::Reconfigured done{action.plan.number, taken.kept, taken.step_taken, taken.reason};
  done.steps_replayed = taken.replayed;
  done.resumed = taken.resumed;
  done.beyond = taken.beyond;
  done.base_lost = taken.base_lost;
  done.push_lost = taken.push_lost;
  if (!action.take_over_from.empty()) {
    done.taken_over = std::move(leadership);
    known_ = world_.FindWorker(action.take_over_from)->kept_;
  }
  world_.Trace(absl::StrCat(name(), " sets up plan ", action.plan.number,
                            !taken.beyond.empty() ? ", further than its save"
                            : taken.resumed       ? ", from a save"
                            : taken.replayed > 0  ? ", from copies"
                            : taken.step_taken    ? ", one step ahead"
                            : taken.kept          ? ""
                                                  : ", state lost",
                            taken.base_lost ? ", theta_base lost" : "",
                            taken.push_lost ? ", a push lost" : "", " (", taken.reason, ")"));
  const std::optional<ToyStep> step = std::exchange(known_.stepping, std::nullopt);
  if (taken.push_lost) known_.captured.reset();
  if (!taken.kept) {
    known_.state.reset();
    return done;
  }
  if (taken.resumed) {
    const auto saved = world_.saved.find(action.resume);
    if (saved == world_.saved.end()) {
      world_.checker.Fail(absl::StrCat(name(), " goes on from a save that was never whole"));
      return done;
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
  return done;
}

void WorkerNode::Do(const worker::Handover& action) {
  Enqueue({[this, action]() -> std::optional<Event> {
             AwaitSideWork();
             control_->Keep(action.leadership);
             kept_ = known_;
             if (world_.faulty() && world_.rng.Chance(world_.options.dies_handing_over)) {
               After(world_.UpTo(milliseconds(100)), [this] { CrashAndRestart(); });
             }
             return worker::HandedOver{};
           },
           std::nullopt});
}

// ------------------------------------------------------------------------------------- steps ----

void WorkerNode::Do(const worker::MakeInitialWeights&) {
  Enqueue({[this]() -> std::optional<Event> {
             AwaitSideWork();
             if (const absl::Status made = control_->InitialWeights(); !made.ok()) {
               return Failed(made);
             }
             known_.state = Gather();
             if (known_.state) known_.state->theta = ToyInitialWeights(spec_.model.seed);
             CheckWhole("makes the initial weights");
             return worker::InitialWeightsMade{};
           },
           worker::CommandFailed{"interrupted"}});
}

void WorkerNode::Do(const worker::TrainStep& action) {
  Enqueue({[this, action]() -> std::optional<Event> {
             if (world_.faulty() && world_.rng.Chance(world_.options.step_fails)) {
               member_->Pause(milliseconds(50));
               return worker::CommandFailed{"simulated: the step failed"};
             }
             const Instant begun = world_.timeline.now();
             const absl::StatusOr<double> loss = Steps(action);
             if (!loss.ok()) return Failed(loss.status());
             const double took = Seconds(world_.timeline.now() - begun);
             const int64_t tokens = worker::Sequences(action.ranges) * spec_.data.sequence_length;
             const bool overlapped = !transfers_.empty() || capturing_ || staging_;
             if (world_.faulty() && member_->Several() &&
                 world_.rng.Chance(world_.options.replan_request_chance)) {
               Post(worker::StepDone{tokens, *loss, took, overlapped});
               return worker::StageLinksSeen{
                   control_->plan().number, {}, "simulated: a link is saturated"};
             }
             return worker::StepDone{tokens, *loss, took, overlapped};
           },
           worker::CommandFailed{"interrupted"}});
}

absl::StatusOr<double> WorkerNode::Steps(const worker::TrainStep& action) {
  const bool faulty = world_.faulty();
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
  const double rate = ScaleLearningRate(action.learning_rate, sick ? 100 : 1);
  known_.stepping = ToyStep{action.ranges, rate};
  stepped_ = true;
  if (known_.state) {
    IslandState after = *known_.state;
    TakeOnto(after, action.ranges, rate);
    Remember(after);
  }
  ATOLL_RETURN_IF_ERROR(control_->Step(action.ranges, rate, /*trace=*/false));
  known_.stepping.reset();
  if (!known_.state || known_.state->theta.empty()) {
    world_.checker.Fail(absl::StrCat("N3: ", name(), " trains what is no island's state"));
    return 0;
  }
  TakeOnto(*known_.state, action.ranges, rate);
  known_.since_base.insert(known_.since_base.end(), action.ranges.begin(), action.ranges.end());
  world_.checker.Of(job_).AtRisk(name(), known_.since_base, known_.carried,
                                 known_.captured.has_value());
  return diverges ? std::numeric_limits<double>::quiet_NaN() : 1.0;
}

void WorkerNode::Do(const worker::Validate& action) {
  if (action.version != known_.adopted) {
    world_.checker.Fail(
        absl::StrCat(name(), " validates version ", action.version, " and holds ", known_.adopted));
  }
  Enqueue({[this, action]() -> std::optional<Event> {
             AwaitSideWork();
             absl::Status status = control_->PutBaseIn();
             if (status.ok()) status = control_->Evaluate(0, 8);
             if (!control_->failed()) {
               const absl::Status back = control_->TakeBaseOut();
               if (status.ok()) status = back;
             }
             if (!status.ok()) return Failed(status);
             CheckWhole("has validated");
             return worker::ValidationDone{action.version, 1.0 / (2.0 + action.version), 64};
           },
           worker::CommandFailed{"interrupted"}});
}

// --------------------------------------------------------------- the exchange with servers ----

void WorkerNode::Do(const worker::CaptureDelta& action) {
  diverged_ = 0;
  Enqueue(
      {[this, action]() -> std::optional<Event> {
         AwaitSideWork();
         auto make = control_->CaptureDelta(action);
         if (!make.ok()) return Failed(make.status());
         CheckWhole("captures its parameters");
         stepped_ = false;
         known_.captured = action.contribution;
         known_.captured_on = std::exchange(known_.since_base, {});
         const LayerValues theta = known_.state ? known_.state->theta : LayerValues();
         Post(worker::DeltaCaptured{action.contribution});
         capturing_ = true;
         Fiber::Start([this, action, theta, job = job_, make = *std::move(make), member = member_,
                       control = control_, at = run(), cancelled = side_cancelled_] {
           member->Pause(milliseconds(2) + world_.UpTo(milliseconds(100)));
           const absl::Status made = make(*cancelled);
           if (run() != at) return;
           capturing_ = false;
           member->Wake();
           if (made.ok()) {
             CheckDelta(action, job, theta);
           } else {
             known_.captured.reset();
             known_.captured_on.insert(known_.captured_on.end(), known_.since_base.begin(),
                                       known_.since_base.end());
             known_.since_base = std::exchange(known_.captured_on, {});
           }
           Post(worker::DeltaReady{action.contribution, made.ok(), std::string(made.message())});
         });
         return std::nullopt;
       },
       worker::CommandFailed{"interrupted"}});
}

void WorkerNode::Do(const worker::AdoptPulled& action) {
  Enqueue({[this, action]() -> std::optional<Event> {
             AwaitSideWork();
             if (const absl::Status adopted = Adopt(action); !adopted.ok()) {
               // Its parameters are of no use until a version replaces them.
               const bool keeps = action.mode == worker::AdoptMode::kKeep;
               if (known_.state && !keeps) known_.state->theta.clear();
               if (action.reset_moments) known_.state.reset();
               return Failed(adopted);
             }
             stepped_ = false;
             return worker::Adopted{action.version};
           },
           worker::CommandFailed{"interrupted"}});
}

absl::Status WorkerNode::Adopt(const worker::AdoptPulled& action) {
  const bool carries = action.mode == worker::AdoptMode::kCarry;
  const LayerValues addition = carries ? OfOwners(OuterKind::kAddition) : LayerValues();
  ATOLL_RETURN_IF_ERROR(control_->AdoptPulled(action));
  if (action.reset_moments) ATOLL_RETURN_IF_ERROR(control_->SetOptimizerSteps(0));
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
    if (action.reset_moments) {
      state.optimizer_step = 0;
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
  return absl::OkStatus();
}

// ------------------------------------------------------------------------------------- saves ----

void WorkerNode::Do(const worker::SaveState& action) {
  Enqueue({[this, action]() -> std::optional<Event> {
             AwaitSideWork();
             if (worker::Sequences(action.about.consumed) < worker::Sequences(known_.since_base)) {
               world_.checker.Fail(absl::StrCat(
                   name(), " saves a state of ", worker::Sequences(action.about.consumed),
                   " sequences after ", worker::Sequences(known_.since_base)));
             }
             if (known_.state) saving_[action.about.inner_step] = {action.about, *known_.state};
             const absl::StatusOr<worker::Kept> kept =
                 control_->SaveState(action.about, action.tier);
             if (!kept.ok()) return Failed(kept.status());
             if (*kept != worker::Kept::kNot) {
               world_.Trace(absl::StrCat(name(), " saves its state at step ",
                                         known_.state ? known_.state->optimizer_step : -1,
                                         action.tier == Tier::kDisk ? " on disk" : ""));
             }
             return worker::StateCopied{*kept};
           },
           worker::CommandFailed{"interrupted"}});
}

void WorkerNode::OnSaved(const worker::IslandControl::SaveOutcome& outcome) {
  const auto saved = saving_.find(outcome.state.about.inner_step);
  if (saved != saving_.end() && !outcome.state.units.empty()) {
    world_.saved[outcome.save] = {saved->second.first,
                                  std::make_shared<IslandState>(saved->second.second)};
  }
  Post(worker::StateSaved{outcome.state, outcome.trouble, outcome.tier});
}

}  // namespace atl::sim
