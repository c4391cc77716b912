// Derives what is to be done now from the whole state.

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/net/relay/places.h"
#include "common/protocol/experts.h"
#include "common/protocol/fragments.h"
#include "common/protocol/learning_rate.h"
#include "worker/core/impl.h"

namespace atl::worker {

void WorkerCore::Impl::Plan() {
  PlanLink();
  if (shutdown_.state == Shutdown::State::kNone) return PlanWork();
  const std::string prefix = absl::StrCat("leaves (", shutdown_.reason, "): ");
  if (absl::StartsWith(activity_, prefix)) activity_.erase(0, prefix.size());
  if (PlanShutdown()) return;
  PlanWork();
  activity_.insert(0, prefix);
}

void WorkerCore::Impl::PlanWork() {
  PlanPrepare();
  PlanFollow();
  if (!order_) return;
  if (given_up_) return PlanGivenUp();
  if (handover_) return PlanHandover();
  if (TakingOver()) return PlanTrainer();  // nothing is known of leases and contributions yet
  PlanLeases();
  PlanPushes();
  PlanPull();
  PlanTrainer();
  PlanPull();  // an idle island may pull
  PlanValidationResult();
}

// -------------------------------------------------------------------------------------- link ----

void WorkerCore::Impl::PlanLink() {
  if (session_.state == Session::State::kDisconnected) return;
  if (!session_.welcomed()) {
    if (!Due(session_.hello_at)) return;
    WorkerHello hello = identity_.hello;
    hello.mark = session_.mark;
    hello.peer_endpoint = AddRelays(hello.peer_endpoint, session_.relays);
    hello.held.assign(held_.begin(), held_.end());
    Emit(Send{std::move(hello)});
    session_.hello_at = now_ + kRetryInterval;
    Due(session_.hello_at);
  } else if (Due(session_.heartbeat_at)) {
    WorkerHeartbeat heartbeat;
    if (order_) heartbeat.progress = Progress();
    if (order_ && std::exchange(saving_.report_due, false)) {
      for (const auto& state : saving_.states) heartbeat.progress->saved.push_back(*state);
    }
    if (following_.order) {
      heartbeat.member = MemberProgress{following_.order->job,        following_.order->island,
                                        following_.order->generation, following_.state.plan_number,
                                        following_.order->sequence,   activity_,
                                        following_.holds_layers};
    }
    heartbeat.measuring = measuring_;
    Emit(Send{std::move(heartbeat)});
    session_.heartbeat_sent = now_;
    session_.heartbeat_at = now_ + session_.heartbeat_interval;
    Due(session_.heartbeat_at);
  }
}

IslandProgress WorkerCore::Impl::Progress() const {
  IslandProgress p;
  p.job = order_->job;
  p.island = order_->island;
  p.generation = order_->generation;
  p.seen_sequence = order_->sequence;
  p.base_version = base_version_;
  p.ready = adopted_;
  p.activity = activity_;
  p.inner_step = counters_.inner_step;
  p.tokens = counters_.tokens;
  p.train_loss = counters_.loss.Get();
  p.learning_rate = counters_.learning_rate;
  p.gradient_norm = counters_.gradient_norm.Get();
  p.router_balance = counters_.router_balance.Get();
  p.router_z = counters_.router_z.Get();
  p.router_losses = counters_.router_losses;
  p.expert_tokens = counters_.expert_tokens;
  p.tokens_per_s = counters_.tokens_per_s.Get();
  p.step_seconds_idle_link = counters_.idle_link_seconds.Get();
  p.step_seconds_overlap = counters_.overlap_seconds.Get();
  p.pushed_bytes = counters_.pushed_bytes;
  p.pulled_bytes = counters_.pulled_bytes;
  p.setting_up = SettingUp();
  p.exchange_seconds = counters_.exchange_seconds;
  p.unpushed_steps = local_.steps;
  p.steps_interrupted = counters_.steps_interrupted;
  p.steps_redone = counters_.steps_redone;
  p.plan_number = SetUp() ? order_->plan.number : 0;
  if (p.plan_number != 0 && stage_links_.plan_number == p.plan_number) {
    p.plan_wanted = stage_links_.plan_wanted;
    p.stage_links = stage_links_.stage_links;
  }
  p.memory = memory_;
  return p;
}

// False: the island that it shares goes on meanwhile.
bool WorkerCore::Impl::PlanShutdown() {
  if (SharesIsland() && session_.welcomed() && !Due(shutdown_.by)) {
    PlanLeaving();
    if (!Due(following_.leave_by)) return false;
  }
  activity_ = absl::StrCat("stopping: ", shutdown_.reason);
  if (!Due(shutdown_.by)) {
    if (command_ != Command::kNone || saving_.under_way.contains(Tier::kDisk)) return true;
    const bool worth_it = order_ && adopted_ && SetUp() && !step_failed_ && !in_flight_ &&
                          spec().schedule.checkpoint_every_steps > 0 &&
                          counters_.inner_step > saving_.newest_at[Tier::kDisk];
    if (worth_it && !std::exchange(shutdown_.checkpoint_requested, true)) {
      Save(Tier::kDisk);
      return true;
    }
  }
  if (session_.welcomed() && following_.leave_by == kNever) Emit(Send{Leaving{shutdown_.reason}});
  Emit(Stop{0, shutdown_.reason});
  shutdown_.state = Shutdown::State::kStopped;
  return true;
}

// ----------------------------------------------------------------------------------- prepare ----

void WorkerCore::Impl::PlanPrepare() {
  if (order_ || following_.order) {
    const JobId& job = order_ ? order_->job : following_.order->job;
    if (preparation_.done && preparation_.done->job == job) return;
    if (command_ == Command::kPrepare && preparation_.opening == job) return;
    activity_ = command_ == Command::kPrepare ? "waiting for another job's model to be opened"
                                              : "opening the model and the data";
    if (preparation_.failed && preparation_.failed->job == job) {
      activity_ = absl::StrCat("cannot run the job: ", preparation_.failed->reason);
      if (!Due(preparation_.again_at)) return;
    }
    if (command_ == Command::kPrepare) GiveUpPreparing("another job is to be opened");
    if (command_ != Command::kNone) return;
    preparation_.done.reset();
    preparation_.opening = job;
    preparation_.request = 0;
    return Start(Command::kPrepare, Prepare{job, order_ ? spec() : following_.order->spec});
  }
  activity_ = session_.state != Session::State::kDisconnected
                  ? (session_.welcomed() ? "idle" : "waiting for the coordinator's welcome")
                  : "waiting for a connection to the coordinator";
  if (!session_.refused.empty() && !session_.welcomed()) {
    activity_ = absl::StrCat("refused: ", session_.refused);
  }
  if (command_ == Command::kPrepare) activity_ = "opening the model and the data";
  if (!preparation_.requested || command_ != Command::kNone) return;
  preparation_.done.reset();
  preparation_.opening = preparation_.requested->job;
  preparation_.request = preparation_.requested->request;
  const PrepareJob prepare = *std::exchange(preparation_.requested, std::nullopt);
  Start(Command::kPrepare, Prepare{prepare.job, prepare.spec});
}

// ----------------------------------------------------------------------------------- trainer ----

void WorkerCore::Impl::PlanGivenUp() {
  activity_ = absl::StrCat("has given the job up: ", given_up_->reason);
  if (!session_.welcomed() || !Due(give_up_at_)) return;
  Emit(Send{*given_up_});
  give_up_at_ = now_ + kRetryInterval;
  Due(give_up_at_);
}

// Gives a free trainer its next command, or says in activity_ what it waits for.
void WorkerCore::Impl::PlanTrainer() {
  if (command_ != Command::kNone || !preparation_.done || preparation_.done->job != order_->job) {
    return;
  }
  if (preparation_.done->facts.layers != order_->layers) {
    activity_ = "this worker's model differs from the job's: are all workers of one version?";
    return;
  }
  if (!trainer_trouble_.empty()) {
    const std::string times =
        trainer_failures_ == 1 ? "" : absl::StrCat(" ", trainer_failures_, " times in a row");
    activity_ = absl::StrCat("failed", times, "; retrying in ", Seconds(trainer_retry_),
                             " s: ", trainer_trouble_);
    if (!Due(trainer_again_at_)) return;
    trainer_trouble_.clear();
  }
  if (StartReconfigure()) return;
  // No other version is adopted between two tasks, unless one fails.
  if ((trainer_failures_ == 0 && StartTask()) || StartAdopt()) return;
  if (StartTask() || StartValidate() || StartSave() || StartCapture()) return;
  if (order_->initialize && !adopted_ && !in_flight_ && !initial_made_) {
    activity_ = "making the initial weights";
    return Start(Command::kInitialWeights, MakeInitialWeights{});
  }
  StartStep();
}

bool WorkerCore::Impl::StartAdopt() {
  if (!pull_.pulled() || AwaitsDelay()) return false;
  if (NeedsAllLayers() && !pull_.shards.empty()) {
    pull_.state = Pull::State::kNone;  // more is of no use now than when the pull began
    return false;
  }
  const bool again = IsWarmingUpAgain();
  if (saving_.resumed && pull_.version == saving_.resumed->base_version) {
    adopting_ = AdoptMode::kKeep;
    activity_ =
        absl::StrCat("going on from the state saved at inner step ", saving_.resumed->inner_step);
    Start(Command::kAdopt,
          AdoptPulled{pull_.version, adopting_, false, /*keep_residual=*/true,
                      Without(saving_.resumed->consumed, saving_.resumed->skipped)});
    return true;
  }
  // A later version is there: its base is none for what was trained since.
  if (saving_.resumed) {
    leased_.ranges.PutBack(std::exchange(saving_.resumed, std::nullopt)->consumed);
  }
  // Without steps of its own there is nothing to carry, and the result is exactly version v; but
  // fragments whose turns were missed have steps that were never pushed.
  const bool missed =
      !pull_.shards.empty() && !(in_flight_ && in_flight_->id.base_version + 1 == pull_.version);
  const bool steps = local_.steps > 0 || missed || spec().outer.fragment_blend < 1;
  const bool carry = adopted_ && steps && !diverged_ && !again;
  adopting_ = carry ? AdoptMode::kCarry : AdoptMode::kReplace;
  reset_moments_ = reset_moments_ || again;
  pull_.adopting_since = now_;
  activity_ = absl::StrCat("adopting version ", pull_.version);
  // A residual is owed as long as all that was pushed is in the model.
  const bool accepted = !in_flight_ || (order_->outcome && order_->outcome->accepted &&
                                        order_->outcome->contribution == in_flight_->id);
  const bool keep = adopted_ && accepted && !diverged_ && !reset_moments_;
  Start(Command::kAdopt, AdoptPulled{pull_.version,
                                     adopting_,
                                     reset_moments_,
                                     keep,
                                     {},
                                     pull_.shards,
                                     pull_.moments,
                                     order_->averaged_steps});
  return true;
}

// Islands adopt a version after the same number of steps, however quickly it comes.
bool WorkerCore::Impl::AwaitsDelay() const {
  return in_flight_ && adopted_ && !diverged_ && !IsWarmingUpAgain() &&
         order_->run == RunState::kRun && (leased_.ranges.size() > 0 || !leased_.exhausted) &&
         local_.steps < spec().outer.fragment_delay_steps;
}

bool WorkerCore::Impl::StartValidate() {
  const Version wanted = order_->validate_version;
  if (!adopted_ || wanted == kNoVersion || wanted != base_version_) return false;
  if (validation_ && validation_->version == wanted) return false;
  activity_ = absl::StrCat("validating version ", wanted);
  Start(Command::kValidate, Validate{wanted});
  return true;
}

// The next task of the version whose loss is known: what is known is sent meanwhile, and stays if
// this fails.
bool WorkerCore::Impl::StartTask() {
  const Version wanted = order_->validate_version;
  if (!adopted_ || wanted != base_version_ || !validation_ || validation_->version != wanted) {
    return false;
  }
  for (const int32_t task : order_->evaluations) {
    if (task >= std::ssize(spec().evaluation)) continue;
    const std::string& name = spec().evaluation[static_cast<size_t>(task)].name;
    const auto is_it = [&](const TaskScore& score) { return score.name == name; };
    if (std::any_of(validation_->scores.begin(), validation_->scores.end(), is_it)) continue;
    activity_ = absl::StrCat("evaluating version ", wanted, " in ", name);
    Start(Command::kValidate, Validate{wanted, task});
    return true;
  }
  return false;
}

bool WorkerCore::Impl::StartCapture() {
  if (in_flight_ || order_->run != RunState::kRun) return false;
  const bool initial = order_->initialize && !adopted_ && initial_made_;
  if (!initial) {
    const bool used_up = leased_.exhausted && leased_.ranges.size() == 0 && local_.steps > 0;
    if (newest_skipped_ && !used_up) return false;  // the parameters may be at fault
    // With a delay the steps during an exchange are as many for all islands, and count.
    const int64_t carried = spec().outer.fragment_delay_steps > 0 ? 0 : carried_steps_;
    const bool enough = local_.steps - carried >= round_steps() ||
                        local_.steps >= kMaxCarriedRounds * round_steps();
    if (!adopted_ || (!enough && !used_up)) return false;
    if (last_pushed_ == NextContribution()) return false;
  }
  // A version that was requested when there was nothing to push would take its place.
  if (pull_.pulling()) RestartTransfers();
  in_flight_ = InFlight{NextContribution(), std::exchange(local_, Work())};
  in_flight_->began_at = in_flight_->request_at = now_;
  last_pushed_ = in_flight_->id;
  in_flight_->moments = order_->moments_version != kNoVersion && base_version_ != kNoVersion &&
                        base_version_ + 1 >= order_->moments_version;
  CaptureDelta capture{in_flight_->id, SelectEncoding(*in_flight_), {}};
  const bool fragment = !initial && FragmentsFrom(spec().outer).count() > 1;
  capture.digests = identity_.signs;
  // Beside an adapter experts see tokens, and are not trained. Where all steps were skipped there
  // is nothing to weigh by.
  size_t trained = 0;
  for (const LayerSize& layer : order_->layers) trained += static_cast<size_t>(layer.experts);
  std::vector<int64_t>& experts = in_flight_->work.expert_tokens;
  const bool none = std::count(experts.begin(), experts.end(), 0) == std::ssize(experts);
  if (!WeighsExperts(spec().outer) || experts.size() != trained || none) experts.clear();
  const bool unseen = std::find(experts.begin(), experts.end(), 0) != experts.end();
  if (fragment || unseen || IsQuantized(capture.encoding) || capture.digests) {
    capture.shards = SelectPushed(base_version_ + 1, experts);
  }
  if (!counters_.expert_tokens_since.empty()) {
    counters_.expert_tokens = std::exchange(counters_.expert_tokens_since, {});
  }
  Start(Command::kCapture, std::move(capture));
  return true;
}

void WorkerCore::Impl::StartStep() {
  const std::string next = absl::StrCat("version ", base_version_ + 1);
  if (!adopted_) {
    if (in_flight_) {
      activity_ = "pushing the initial weights" + PushTrouble();
    } else if (order_->committed_version == kNoVersion) {
      activity_ = "waiting for the initial weights";
    } else if (order_->pull_order.empty()) {
      activity_ = "waiting for the version that is made of the island's last push";
    } else {
      activity_ = absl::StrCat("pulling version ", order_->committed_version);
    }
    if (!pull_.trouble.empty()) absl::StrAppend(&activity_, ": ", pull_.trouble);
    return;
  }
  if (order_->run == RunState::kPause) {
    activity_ = absl::StrCat("paused: ", order_->reason);
    return;
  }
  const int64_t delay = spec().outer.fragment_delay_steps;
  // After a skipped step one more shows whether the parameters may be pushed.
  const bool full =
      local_.steps >= kMaxCarriedRounds * round_steps() && (in_flight_ || !newest_skipped_);
  const bool held_up = full || (in_flight_ && delay > 0 && local_.steps >= delay);
  if (diverged_ || (in_flight_ && (spec().outer.overlap == Overlap::kNone || held_up))) {
    activity_ = pull_.pulling()
                    ? absl::StrCat("pulling version ", pull_.version)
                    : absl::StrCat("waiting for ", next, " to be decided", PushTrouble());
    if (!pull_.trouble.empty()) absl::StrAppend(&activity_, ": ", pull_.trouble);
    return;
  }
  if (held_up) {
    activity_ = absl::StrCat("waiting for ", next, ": the last push from version ", base_version_,
                             " was rejected");
    return;
  }
  if (leased_.ranges.size() < batch() && !(leased_.exhausted && leased_.ranges.size() > 0)) {
    activity_ = leased_.exhausted ? "all data is leased out: waiting for the others, or for more"
                : !session_.welcomed() ? "waiting for the coordinator: all leased data is used"
                                       : "waiting for a lease of data";
    return;
  }
  stepping_ = leased_.ranges.Take(batch());
  const int64_t own = local_.tokens + (in_flight_ ? in_flight_->work.tokens : 0) +
                      Sequences(stepping_) * spec().data.sequence_length;
  const int64_t islands = std::max<int64_t>(order_->active_islands, 1);
  counters_.learning_rate = LearningRate(spec().inner, spec().schedule.train_tokens,
                                         tokens_at_base_ + own * islands, islands);
  activity_ =
      in_flight_ ? absl::StrCat("training, while ", next, " is made", PushTrouble()) : "training";
  // A store that is busy takes up to a minute to fail once more.
  if (trainer_failures_ > 0) absl::StrAppend(&activity_, "; failed before: ", trainer_failure_);
  norm_limit_ = norms_.Limit(spec().inner.skip_norm_deviations);
  TrainStep step{stepping_, counters_.learning_rate, norm_limit_};
  if (spec().data.documents == Documents::kPairs) {
    step.ahead = Leases(leased_.ranges).Take(round_sequences());
  }
  Start(Command::kStep, std::move(step));
}

void WorkerCore::Impl::PlanValidationResult() {
  if (!validation_ || !session_.welcomed() || order_->validate_version != validation_->version) {
    return;
  }
  if (!Due(validation_at_)) return;
  Emit(Send{*validation_});
  validation_at_ = now_ + kRetryInterval;
  Due(validation_at_);
}

}  // namespace atl::worker
