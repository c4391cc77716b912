// Steps, and copies of the state between them: one by one, or as many at once as a copy of the core
// orders before it does anything else. What arrives meanwhile takes the core back to that instant.

#include <algorithm>
#include <utility>
#include <variant>

#include "rehearsal/players.h"
#include "worker/core/leases.h"

namespace atl::rehearsal {
namespace {

constexpr int64_t kLeapMax = int64_t{1} << 16;

// When the next thing that is under way ends.
template <class Pace>
Instant NextEnd(const Pace& pace) {
  return std::min({pace.stepping ? pace.step_ends : kNever, pace.copied, pace.kept});
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

void Worker::Count(const Made& made) {
  world_.trained_tokens += made.tokens;
  world_.steps += made.steps;
  IslandState& state = world_.islands[island_];
  state.steps += made.steps;
  if (made.kept_steps >= 0) state.copied_at = made.kept_steps;
  if (made.copying > Duration(0)) MoveWork(Use::kComputing, Use::kTransfers, made.copying);
}

void Worker::ScheduleStep(Instant deadline) {
  scheduled_ = true;
  const int64_t number = ++step_number_;
  const bool leaps = TryLeap(deadline);
  const Instant end = leaps ? leap_->last : pace_.step_ends;
  AfterInRun(end - world_.timeline.now(), [this, number, leaps] {
    if (number != step_number_) return;
    leaps ? EndLeap() : EndStep();
  });
}

void Worker::EndStep() {
  pace_.stepping = scheduled_ = false;
  Count({1, pace_.step_tokens});
  Deliver(DoneStep(pace_.step_tokens));
}

worker::Actions Worker::EndInLeap(Instant at, WorkerCore& core, Pace& pace, Made& made) const {
  if (at == pace.kept) {
    pace.kept = kNever;
    made.kept_steps = pace.kept_steps;
    return core.Step(at, worker::StateSaved{{}, "", Tier::kMemory});
  }
  if (at == pace.copied) {
    pace.copied = kNever;
    made.copying += StateCopyTime();
    return core.Step(at, CopiedState());
  }
  pace.stepping = false;
  ++made.steps;
  made.tokens += pace.step_tokens;
  return core.Step(at, DoneStep(pace.step_tokens));
}

bool Worker::BeginInLeap(Instant at, const worker::Actions& actions, int64_t steps,
                         Pace& pace) const {
  if (actions.list.size() > 1) return false;
  if (!actions.list.empty()) {
    const worker::Action& action = actions.list.front();
    const auto* const save = std::get_if<worker::SaveState>(&action);
    if (const auto* const step = std::get_if<worker::TrainStep>(&action)) {
      pace.stepping = true;
      pace.step_began = at;
      pace.step_ends = at + step_time();
      pace.step_tokens = Tokens(step->ranges);
    } else if (save != nullptr && CopiesByItself(*save)) {
      pace.copied = at + StateCopyTime();
      BeginCopies(at, steps, pace);
    } else {
      return false;
    }
  }
  return pace.stepping || pace.copied != kNever;
}

// An answer that is awaited would take the leap back at once.
bool Worker::TryLeap(Instant deadline) {
  if (!world_.scene.leaps || said_ || deadline < NextEnd(pace_)) return false;
  Leap leap{std::make_unique<WorkerCore>(*core_), pace_};
  const int64_t steps = world_.islands[island_].steps;
  Pace next = pace_;
  do {
    leap.pace = next;
    leap.last = NextEnd(leap.pace);
    leap.actions = EndInLeap(leap.last, *leap.ahead, leap.pace, leap.made);
    next = leap.pace;
  } while (BeginInLeap(leap.last, leap.actions, steps + leap.made.steps, next) &&
           NextEnd(next) <= std::min(leap.actions.deadline, world_.horizon) &&
           leap.made.steps < kLeapMax);
  ++world_.leaps;
  ++kept_number_;
  leap_ = std::move(leap);
  ArmTick(kNever, nullptr);
  return true;
}

void Worker::EndLeap() {
  Leap leap = *std::exchange(leap_, std::nullopt);
  core_ = std::move(leap.ahead);
  pace_ = leap.pace;
  scheduled_ = false;
  Count(leap.made);
  ScheduleKept();
  Carry(leap.actions);
}

void Worker::RollBack() {
  if (!leap_) return;
  leap_.reset();
  ++step_number_;
  scheduled_ = false;
  const Instant now = world_.timeline.now();
  const int64_t steps = world_.islands[island_].steps;
  Made made;
  while (NextEnd(pace_) < now) {
    const Instant at = NextEnd(pace_);
    const worker::Actions actions = EndInLeap(at, *core_, pace_, made);
    BeginInLeap(at, actions, steps + made.steps, pace_);
  }
  if (pace_.copied != kNever) {
    const Duration rest = std::exchange(pace_.copied, kNever) - now;
    made.copying += StateCopyTime() - rest;
    Finish(rest, CopiedState());
  }
  Count(made);
  ScheduleKept();
}

}  // namespace atl::rehearsal
