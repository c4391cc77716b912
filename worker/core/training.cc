// Handles what the trainer reports.

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/protocol/fragments.h"
#include "worker/core/impl.h"

namespace atl::worker {

namespace {
// Beside that a step has been made: what fails now and then floods a log, too.
constexpr Duration kLogAgainAfter = std::chrono::minutes(1);
constexpr Duration kTrainerRetry = std::chrono::seconds(1);
// From the tenth on each retry waits twice as long as the one before: a failed member is left out
// of plans after seconds. The longest wait is what passes at most once a store is back.
constexpr Duration kRetryMax = std::chrono::seconds(8);
constexpr int kTriesAtOnce = 10;
constexpr int kSkippedInARowMax = 3;  // sets of data
constexpr uint64_t kSkippedStepsLogged = 4;
}  // namespace

// The outstanding command has ended. kNone if its result is not needed any more.
WorkerCore::Impl::Command WorkerCore::Impl::Finish() {
  const Command command = std::exchange(command_, Command::kNone);
  interrupted_ = false;
  if (order_ && (handover_ || !SetUp())) LeaveLater();  // what waited for its end goes on
  return std::exchange(discard_, false) ? Command::kNone : command;
}

void WorkerCore::Impl::On(const InitialWeightsMade&) {
  if (Finish() == Command::kInitialWeights) initial_made_ = true;
}

void WorkerCore::Impl::On(const StepDone& step) {
  if (Finish() != Command::kStep) return;
  if (now_ >= logged_at_ + kLogAgainAfter) logged_.clear();
  if (!saving_.cost.under_way()) {
    (step.overlapped ? counters_.overlap_seconds : counters_.idle_link_seconds).Add(step.seconds);
  }
  saving_.cost.Step(step.seconds);
  if (step.seconds > 0) counters_.tokens_per_s.Add(static_cast<double>(step.tokens) / step.seconds);
  newest_skipped_ = step.skipped;
  if (step.skipped) return Skipped(step);
  skipped_in_a_row_ = 0;
  if (!std::isfinite(step.loss)) {
    ++counters_.inner_step;
    counters_.tokens += step.tokens;
    return Diverged();
  }
  counters_.loss.Add(step.loss);
  counters_.gradient_norm.Add(step.gradient_norm);
  counters_.router_balance.Add(step.router_balance);
  counters_.router_z.Add(step.router_z);
  counters_.router_losses = step.router_losses;
  norms_.Add(step.gradient_norm);
  trainer_failures_ = 0;
  CountStep(step);
}

// The devices are as before the step. Data that is not finite is tried once more, since hardware
// may have been at fault; then it is left out, as is at once what is unlike the steps before. Where
// nothing else succeeds either, the parameters are at fault and not the data; but data that is not
// finite on the committed version's parameters again is.
void WorkerCore::Impl::Skipped(const StepDone& step) {
  trainer_failures_ = 0;
  const bool finite = std::isfinite(step.loss) && std::isfinite(step.gradient_norm);
  const std::vector<PositionRange> data = stepping_;
  const bool again = !finite && Sequences(Without(data, not_finite_)) < Sequences(data);
  if (!finite) {
    for (const PositionRange& range : data) Join(not_finite_, range);
  }
  if (!again && ++skipped_in_a_row_ >= kSkippedInARowMax) {
    skipped_in_a_row_ = 0;
    newest_skipped_ = false;
    norms_.Clear();  // the steps before are no measure of these
    if (!finite) {
      ++counters_.inner_step;
      counters_.tokens += step.tokens;
      return Diverged();
    }
  }
  if (!finite && !again) return leased_.ranges.PutBack(std::exchange(stepping_, {}));
  for (const PositionRange& range : data) Join(local_.skipped, range);
  CountStep({.tokens = step.tokens, .masked_tokens = step.tokens});
  ++skipped_steps_;
  // Pushes name all of them: where they are many, the log has the first ones and ever fewer others.
  if (skipped_steps_ > kSkippedStepsLogged && !std::has_single_bit(skipped_steps_)) return;
  const std::string which =
      absl::StrCat("skipped step ", skipped_steps_, ", on ", DescribeSequences(data));
  Log(finite ? absl::StrFormat(
                   "%s: the gradient's norm is %.4g, and of the steps before %.4g at most is to be "
                   "expected",
                   which, step.gradient_norm, norm_limit_)
             : absl::StrCat(which, ": it is not finite again, and this data is left out"));
}

void WorkerCore::Impl::CountStep(const StepDone& step) {
  ++counters_.inner_step;
  counters_.tokens += step.tokens;
  ++local_.steps;
  local_.tokens += step.tokens;
  local_.masked_tokens += step.masked_tokens;
  AddTokens(step.expert_tokens, &local_.expert_tokens);
  AddTokens(step.expert_tokens, &counters_.expert_tokens_since);
  local_.loss_times_tokens += step.loss * static_cast<double>(step.tokens - step.masked_tokens);
  for (const PositionRange& range : stepping_) Join(local_.consumed, range);
  stepping_.clear();
}

// Parameters and moments are not numbers any more. Nothing of this is pushed: the island goes back
// to the newest committed version, and trains again on the same sequences.
void WorkerCore::Impl::Diverged() {
  if (++not_finite_tries_ >= kNotFiniteTriesMax) {
    GiveUp(absl::StrCat("the loss of inner step ", counters_.inner_step, " is not finite, ",
                        not_finite_tries_, " times in a row from version ", base_version_,
                        "; lower inner.learning_rate, or set inner.clip_norm"));
  } else {
    LogOnce("the loss is not finite: local progress is dropped, and the optimizer starts anew");
  }
  reset_moments_ = true;
  DropLocalProgress();
}

// The island's parameters are of no use: back to the committed version, on the same sequences.
void WorkerCore::Impl::DropLocalProgress() {
  leased_.ranges.PutBack(stepping_);
  stepping_.clear();
  leased_.ranges.PutBack(local_.consumed);
  counters_.steps_redone += local_.steps;
  local_ = Work();
  if (in_flight_) {
    diverged_ = true;
  } else {
    adopted_ = false;
  }
}

void WorkerCore::Impl::On(const DeltaCaptured&) { Finish(); }

void WorkerCore::Impl::On(const DeltaReady& event) {
  if (!Capturing() || in_flight_->id != event.contribution) return;  // of what was forgotten
  if (event.ok) {
    in_flight_->captured = true;
    in_flight_->parts = event.digests;
    in_flight_->request_at = now_;
    not_finite_tries_ = 0;
    not_finite_.clear();
    return;
  }
  CaptureFailed();
  RetryLater(event.reason);
  // The devices' state may be lost, too, and was to be replaced at the adoption.
  if (diverged_) DropLocalProgress();
}

// Its steps are not pushed yet, like those made since.
void WorkerCore::Impl::CaptureFailed() {
  Work work = std::move(in_flight_->work);
  work.steps += local_.steps;
  work.tokens += local_.tokens;
  work.masked_tokens += local_.masked_tokens;
  work.loss_times_tokens += local_.loss_times_tokens;
  AddTokens(local_.expert_tokens, &work.expert_tokens);
  for (const PositionRange& range : local_.consumed) Join(work.consumed, range);
  for (const PositionRange& range : local_.skipped) Join(work.skipped, range);
  local_ = std::move(work);
  in_flight_.reset();
  last_pushed_.reset();
}

void WorkerCore::Impl::On(const Adopted& event) {
  if (Finish() != Command::kAdopt) return;
  adopted_ = true;
  base_version_ = event.version;
  session_.heartbeat_at = now_;
  diverged_ = false;
  saving_.due = true;
  if (adopting_ == AdoptMode::kKeep) return AdoptResumed(event);
  // The steps since the push are kept by kCarry and trained again after kReplace.
  if (adopting_ == AdoptMode::kReplace) {
    leased_.ranges.PutBack(local_.consumed);
    counters_.steps_redone += local_.steps;
    // Experts that had no turn keep what they trained before.
    std::vector<int64_t> experts = std::move(local_.expert_tokens);
    local_ = Work();
    if (!pull_.shards.empty()) local_.expert_tokens = std::move(experts);
  }
  if (in_flight_ && !pull_.shards.empty()) KeepUnpushedTokens();
  carried_steps_ = local_.steps;
  if (in_flight_ && in_flight_->staged_at > in_flight_->began_at &&
      in_flight_->id.base_version != kNoVersion) {
    counters_.exchange_seconds = Seconds(in_flight_->staged_at - in_flight_->began_at + pull_.took +
                                         now_ - pull_.adopting_since);
  }
  reset_moments_ = false;
  tokens_at_base_ = pull_.tokens;
  pull_.state = Pull::State::kNone;
  in_flight_.reset();
}

// Keeps the tokens that experts without a turn have seen since their last one.
void WorkerCore::Impl::KeepUnpushedTokens() {
  const Fragments fragments = FragmentsFrom(spec().outer);
  const int64_t pushed = FragmentFromVersion(in_flight_->id.base_version + 1, fragments);
  std::vector<int64_t> tokens = in_flight_->work.expert_tokens;
  if (fragments.experts == 1) return;
  for (size_t e = 0; e < tokens.size(); ++e) {
    if (static_cast<int64_t>(e) % fragments.experts == pushed) tokens[e] = 0;
  }
  AddTokens(tokens, &local_.expert_tokens);
}

void WorkerCore::Impl::On(const ValidationDone& event) {
  if (Finish() != Command::kValidate) return;
  validation_at_ = now_;
  if (!event.score) {
    validation_ = ValidationResult{order_->job,  event.version,  event.loss,
                                   event.tokens, event.accuracy, event.sets};
  } else if (validation_ && validation_->version == event.version) {
    validation_->scores.push_back(*event.score);
  }
}

void WorkerCore::Impl::On(const CommandFailed& event) {
  if (command_ != Command::kPrepare) configured_ = PlanName();
  const bool interrupted = std::exchange(interrupted_, false);
  const Command command = Finish();
  if (command == Command::kNone) return;
  OnFailure(command);
  if (interrupted) return;  // as intended
  if (event.permanent) return GiveUp(event.reason);
  RetryLater(event.reason);
}

// The job cannot be trained here. Nothing is done for it any more; another worker may do better.
void WorkerCore::Impl::GiveUp(const std::string& reason) {
  if (!order_ || given_up_) return;
  given_up_ = JobRefused{order_->job, reason};
  give_up_at_ = now_;
  if (pull_.pulling() || (in_flight_ && !in_flight_->pushes.empty())) Emit(CancelTransfers{});
}

void WorkerCore::Impl::RetryLater(const std::string& reason) {
  LogOnce(reason);
  trainer_trouble_ = trainer_failure_ = reason;
  Duration retry = kTrainerRetry;
  const int longer = trainer_failures_ - kTriesAtOnce;
  for (int i = 0; i < longer && retry < kRetryMax; ++i) retry *= 2;
  ++trainer_failures_;
  trainer_retry_ = std::min(retry, kRetryMax);
  trainer_again_at_ = now_ + trainer_retry_;
}

void WorkerCore::Impl::OnFailure(Command command) {
  switch (command) {
    case Command::kStep:
      step_failed_ = true;
      break;
    case Command::kCapture:
      CaptureFailed();
      break;
    case Command::kSave:
      saving_.under_way.erase(saving_.tier);
      break;
    case Command::kAdopt:
      // Some devices may have the new parameters and others not: there is nothing left to carry.
      DropLocalProgress();
      pull_.state = Pull::State::kNone;
      break;
    default:
      break;
  }
}

}  // namespace atl::worker
