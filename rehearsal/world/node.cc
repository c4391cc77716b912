#include "rehearsal/world/node.h"

#include <algorithm>

namespace atl::rehearsal {

void Node::AfterInRun(Duration delay, Timeline::Action action) {
  timeline_.After(delay, [this, run = run_, action = std::move(action)] {
    if (alive_ && run == run_) action();
  });
}

void Node::ArmTick(Instant deadline, Timeline::Action tick) {
  const int64_t number = ++deadline_number_;
  if (deadline == kNever) return;
  const Duration delay = std::max(deadline - timeline_.now(), Duration(0));
  // A deadline that has passed must not be set again and again.
  AfterInRun(std::max(delay, Duration(std::chrono::microseconds(10))), [this, number, tick] {
    if (number == deadline_number_) tick();
  });
}

}  // namespace atl::rehearsal
