#include "worker/runtime/island.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/check.h"
#include "common/logging.h"
#include "common/model/outer_copies.h"
#include "common/protocol/host_copies.h"

namespace atl::worker {
namespace {

constexpr int kTrainerCopies = 4;  // see the header
constexpr int64_t kElementBytes = sizeof(float);

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <typename Done>
Event Result(const absl::Status& status, Done done) {
  if (status.ok()) return done;
  return CommandFailed{std::string(status.message())};
}

// Whether reading the initial weights failed by what the files hold.
bool IsAboutFiles(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
         absl::IsPermissionDenied(status) || absl::IsDataLoss(status) || absl::IsOutOfRange(status);
}

// Of a command that reads training data: nothing else loses any.
CommandFailed ReadingFailed(const absl::Status& status) {
  return {std::string(status.message()), absl::IsDataLoss(status)};
}

}  // namespace

Island::Island(Trainer* trainer, IslandOptions options, Hooks hooks)
    : trainer_(trainer), options_(options), hooks_(std::move(hooks)) {}

Island::~Island() {
  for (SideWork* work : {&capturer_, &stager_}) work->Cancel();
  for (SideWork* work : {&capturer_, &stager_}) work->Join();
}

void Island::Run(const Action& command) {
  std::visit(
      [this]<typename Command>(const Command& c) {
        if constexpr (requires { this->Do(c); }) {
          if constexpr (!std::is_same_v<Command, TrainStep>) AwaitSideWork();
          if constexpr (std::is_void_v<decltype(this->Do(c))>) {
            Do(c);
          } else {
            hooks_.post(Do(c));
          }
        } else {
          ATOLL_CHECK(false, "not a command for the trainer");
        }
      },
      command);
}

void Island::Interrupt(const std::string& reason) {
  for (SideWork* work : {&capturer_, &stager_}) work->Cancel();
  interrupted_ = true;
  trainer_->Interrupt(reason);
}

void Island::ForgetInterrupts() {
  for (SideWork* work : {&capturer_, &stager_}) work->Revive();
  interrupted_ = false;
  trainer_->ForgetInterrupts();
}

bool Island::Refuse(const Action& command, const std::string& reason) {
  if (const Prepare* prepare = std::get_if<Prepare>(&command)) {
    hooks_.post(PrepareFailed{prepare->job, reason});
    return true;
  }
  const bool together =
      std::holds_alternative<Reconfigure>(command) || std::holds_alternative<TrainStep>(command) ||
      std::holds_alternative<CaptureDelta>(command) ||
      std::holds_alternative<AdoptPulled>(command) || std::holds_alternative<Validate>(command) ||
      std::holds_alternative<SaveState>(command) ||
      std::holds_alternative<MakeInitialWeights>(command);
  if (together) hooks_.post(CommandFailed{reason});
  return together;
}

Event Island::Do(const Prepare& command) {
  absl::StatusOr<JobFacts> facts = Open(command);
  if (facts.ok()) {
    const std::string lacks = trainer_->Lacks();
    std::vector<DeviceProfile> profiles;
    if (hooks_.profiles) {
      profiles = hooks_.profiles(command.spec, *facts, !lacks.empty(), interrupted_);
    }
    if (lacks.empty() || !profiles.empty()) {
      return Prepared{command.job, *std::move(facts), std::move(profiles)};
    }
    // Of what was not measured no plan can say that it fits.
    facts = absl::ResourceExhaustedError(lacks);
  }
  trainer_->Release();
  job_.clear();
  return PrepareFailed{command.job, std::string(facts.status().message())};
}

absl::StatusOr<JobFacts> Island::Open(const Prepare& command) {
  trainer_->Release();
  job_ = command.job;
  spec_ = command.spec;
  fits_ = stepped_ = false;
  ATOLL_ASSIGN_OR_RETURN(facts_, trainer_->Prepare(spec_));
  // Where islands have plans, this worker may hold a part of the model, and follow.
  if (spec_.layout.island != IslandScope::kWorker) return facts_;
  ATOLL_RETURN_IF_ERROR(CheckMemory(nullptr));
  fits_ = true;
  return facts_;
}

// `plan`: of an island that this worker leads; null: it holds the whole model.
absl::Status Island::CheckMemory(const IslandPlan* plan) const {
  int64_t elements = 0;
  for (const LayerSize& layer : facts_.layers) elements += layer.elements;
  // Of several workers each has a part of the model on its devices, for which the plan has seen to
  // it.
  const bool alone = plan == nullptr || plan->members.size() <= 1;
  int64_t bytes = 0;
  if (plan == nullptr) {
    bytes = elements * (OuterCopies(spec_) + SaveCopies(spec_)) * kElementBytes;
  } else {
    bytes =
        MakeHostCopies(spec_, *plan, facts_.layers, plan->members.front().worker).needed_bytes();
  }
  if (options_.trainer_on_host && alone) bytes += elements * kTrainerCopies * kElementBytes;
  if (options_.host_bytes == 0 || bytes <= options_.host_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the model's ", elements, " parameters need ", bytes, " bytes ",
      options_.trainer_on_host ? "on this worker" : "of this worker's host, beside its devices",
      ", which has ", options_.host_bytes,
      options_.trainer_on_host ? " for it (--memory-bytes)" : "",
      ": use a smaller model or a larger ", options_.trainer_on_host ? "worker" : "host"));
}

Event Island::Do(const Reconfigure& command) {
  if (!fits_) {
    if (const absl::Status room = CheckMemory(&command.plan); !room.ok()) {
      return CommandFailed{std::string(room.message())};
    }
    fits_ = true;
  }
  trainer_->ResumeFrom(command.resume, command.leased);
  Leadership known;
  const absl::StatusOr<PlanTaken> taken =
      trainer_->Configure(command.job, command.generation, command.plan, command.shards,
                          command.take_over_from, &known);
  if (!taken.ok()) return CommandFailed{std::string(taken.status().message())};
  Reconfigured done{command.plan.number, taken->kept, taken->step_taken, taken->reason};
  done.steps_replayed = taken->replayed;
  done.resumed = taken->resumed;
  done.beyond = taken->beyond;
  done.base_lost = taken->base_lost;
  done.push_lost = taken->push_lost;
  if (!command.take_over_from.empty()) done.taken_over = std::move(known);
  return done;
}

Event Island::Do(const Handover& command) {
  trainer_->Keep(command.leadership);
  return HandedOver{};
}

Event Island::Do(const MakeInitialWeights&) {
  const absl::Status made = trainer_->InitialWeights();
  if (made.ok()) return InitialWeightsMade{};
  return CommandFailed{std::string(made.message()), IsAboutFiles(made)};
}

Event Island::Do(const TrainStep& command) {
  const auto start = std::chrono::steady_clock::now();
  const int64_t started_before = hooks_.transfers_started();
  const bool running_before =
      capturer_.going() || stager_.going() || hooks_.transfers_running() > 0;
  stepped_ = true;
  const absl::StatusOr<MeanLoss> loss = trainer_->Step(command.ranges, command.learning_rate);
  if (!loss.ok()) return ReadingFailed(loss.status());
  const double computed = SecondsSince(start);
  const double lasts =
      std::max(computed, Seconds(options_.emulate_step)) * options_.emulate_slowdown;
  std::this_thread::sleep_for(std::chrono::duration<double>(lasts - computed));
  const bool overlapped = running_before || hooks_.transfers_started() != started_before;
  int64_t tokens = 0;
  for (const PositionRange& range : command.ranges) {
    tokens += range.size() * spec_.data.sequence_length;
  }
  return StepDone{tokens, loss->loss, SecondsSince(start), overlapped, tokens - loss->tokens};
}

void Island::Do(const CaptureDelta& command) {
  auto make = trainer_->CaptureDelta(command);
  if (!make.ok()) return hooks_.post(CommandFailed{std::string(make.status().message())});
  stepped_ = false;
  hooks_.post(DeltaCaptured{command.contribution});
  capturer_.Start([this, command, make = *std::move(make)] {
    const absl::Status made = make(capturer_.cancelled());
    capturer_.Done();
    hooks_.post(DeltaReady{command.contribution, made.ok(), std::string(made.message())});
  });
}

void Island::AwaitSideWork() {
  for (const SideWork* work : {&capturer_, &stager_}) work->Await();
}

int64_t Island::StagingTicket() const {
  const std::lock_guard lock(stage_mutex_);
  return stagings_cancelled_;
}

void Island::CancelStaging() {
  const std::lock_guard lock(stage_mutex_);
  ++stagings_cancelled_;
  stager_.Cancel();
}

bool Island::StagingWanted(int64_t ticket) const { return ticket == StagingTicket(); }

void Island::StagePulled(const PullDone& pulled, int64_t ticket) {
  AwaitSideWork();
  stager_.Join();  // here: its last word needs stage_mutex_
  // Without steps there is nothing to carry over, and adopting will replace the parameters.
  const std::shared_ptr<OuterState> outer = trainer_->outer();
  if (outer != nullptr && outer->tag().base != kNoVersion && stepped_) {
    auto bring = trainer_->StageCarry();
    // Otherwise the adoption goes the other way, and has the trouble if it lasts.
    if (bring.ok() && *bring != nullptr) {
      const std::lock_guard lock(stage_mutex_);
      if (ticket != stagings_cancelled_) return;
      return stager_.Start([this, pulled, ticket, bring = *std::move(bring)] {
        (void)bring(stager_.cancelled());
        stager_.Done();
        hooks_.post(StagingWanted(ticket) ? Event(pulled) : Event(Tick{}));
      });
    }
  }
  if (StagingWanted(ticket)) hooks_.post(pulled);
}

Event Island::Do(const AdoptPulled& command) {
  const absl::Status status = Adopt(command);
  if (status.ok()) stepped_ = false;
  return Result(status, Adopted{command.version, std::exchange(masked_at_resume_, 0)});
}

absl::Status Island::Adopt(const AdoptPulled& command) {
  if (command.mode == AdoptMode::kKeep) {
    ATOLL_ASSIGN_OR_RETURN(masked_at_resume_, trainer_->CountMasked(command.consumed));
  }
  ATOLL_RETURN_IF_ERROR(trainer_->AdoptPulled(command));
  if (command.reset_moments) return trainer_->ResetMoments();
  return absl::OkStatus();
}

Event Island::Do(const Validate& command) {
  const std::vector<ValidationSet>& sets = spec_.data.validation;
  const absl::StatusOr<std::vector<MeanLoss>> losses = trainer_->ValidateBase(
      spec_.schedule.validation_sequences, 1 + static_cast<int>(sets.size()));
  if (!losses.ok()) return ReadingFailed(losses.status());
  const MeanLoss& first = losses->front();
  ValidationDone done{command.version, first.loss, first.tokens, first.accuracy};
  for (size_t i = 0; i < sets.size(); ++i) {
    const MeanLoss& loss = (*losses)[i + 1];
    done.sets.push_back({sets[i].name, command.version, loss.loss, loss.tokens, loss.accuracy});
  }
  return done;
}

Event Island::Do(const SaveState& command) {
  const absl::StatusOr<Kept> kept = trainer_->SaveState(command.about, command.tier);
  if (!kept.ok()) return CommandFailed{std::string(kept.status().message())};
  return StateCopied{*kept};
}

void Island::Do(const ReleaseJob& command) {
  if (job_ == command.job) {
    trainer_->Release();
    job_.clear();
  }
  if (command.removed) hooks_.remove(command.job);
}

}  // namespace atl::worker
