// Steps: one by one, or as many at once as a copy of the core makes before it does anything else
// than to begin the next one. What arrives meanwhile takes the core back to that instant.

#include <utility>
#include <variant>

#include "rehearsal/players.h"
#include "worker/core/leases.h"

namespace atl::rehearsal {
namespace {

constexpr int64_t kLeapMax = int64_t{1} << 16;

// The next step, where nothing else is to be done.
const worker::TrainStep* OnlyStep(const worker::Actions& actions) {
  return actions.list.size() == 1 ? std::get_if<worker::TrainStep>(&actions.list.front()) : nullptr;
}

}  // namespace

int64_t Worker::Tokens(const std::vector<PositionRange>& ranges) const {
  return worker::Sequences(ranges) * world_.spec.data.sequence_length;
}

worker::StepDone Worker::DoneStep(int64_t tokens) const {
  worker::StepDone done{tokens, 1.0, Seconds(step_time())};
  done.gradient_norm = 1;
  return done;
}

void Worker::CountSteps(int64_t steps, int64_t tokens) {
  world_.trained_tokens += tokens;
  world_.steps += steps;
  world_.islands[island_].steps += steps;
}

void Worker::ScheduleStep(Instant deadline) {
  scheduled_ = true;
  const int64_t number = ++step_number_;
  const bool leaps = TryLeap(deadline);
  const Instant end = leaps ? leap_->last : step_ends_;
  AfterInRun(end - world_.timeline.now(), [this, number, leaps] {
    if (number != step_number_) return;
    leaps ? EndLeap() : EndStep();
  });
}

void Worker::EndStep() {
  stepping_ = scheduled_ = false;
  CountSteps(1, step_tokens_);
  Deliver(DoneStep(step_tokens_));
}

// An answer that is awaited would take the leap back at once.
bool Worker::TryLeap(Instant deadline) {
  if (!world_.scene.leaps || said_ || deadline < step_ends_) return false;
  Leap leap{std::make_unique<WorkerCore>(*core_)};
  Instant end = step_ends_;
  int64_t tokens = step_tokens_;
  for (;;) {
    leap.actions = leap.ahead->Step(end, DoneStep(tokens));
    leap.last = end;
    leap.tokens += tokens;
    ++leap.steps;
    const worker::TrainStep* const next = OnlyStep(leap.actions);
    end += step_time();
    if (next == nullptr || leap.actions.deadline < end || end > world_.horizon ||
        leap.steps >= kLeapMax) {
      break;
    }
    tokens = Tokens(next->ranges);
  }
  ++world_.leaps;
  leap_ = std::move(leap);
  ArmTick(kNever, nullptr);
  return true;
}

void Worker::EndLeap() {
  Leap leap = *std::exchange(leap_, std::nullopt);
  core_ = std::move(leap.ahead);
  stepping_ = scheduled_ = false;
  CountSteps(leap.steps, leap.tokens);
  Carry(leap.actions);
}

void Worker::RollBack() {
  if (!leap_) return;
  leap_.reset();
  ++step_number_;
  scheduled_ = false;
  while (step_ends_ < world_.timeline.now()) {
    const worker::Actions actions = core_->Step(step_ends_, DoneStep(step_tokens_));
    CountSteps(1, step_tokens_);
    step_tokens_ = Tokens(OnlyStep(actions)->ranges);
    step_began_ = step_ends_;
    step_ends_ += step_time();
  }
}

}  // namespace atl::rehearsal
