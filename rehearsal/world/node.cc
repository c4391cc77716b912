#include "rehearsal/world/node.h"

#include <algorithm>
#include <utility>

namespace atl::rehearsal {

void Node::AfterInRun(Duration delay, Timeline::Action action) {
  timeline_.After(delay, [this, run = run_, action = std::move(action)] {
    if (alive_ && run == run_) action();
  });
}

void Node::ArmTick(Instant deadline, Timeline::Action tick) {
  timeline_.Cancel(armed_);
  if (deadline == kNever) return;
  const Duration delay = std::max(deadline - timeline_.now(), Duration(0));
  // A deadline that has passed must not be set again and again.
  armed_ = timeline_.At(timeline_.now() + std::max(delay, Duration(std::chrono::microseconds(10))),
                        [this, run = run_, tick = std::move(tick)] {
                          if (alive_ && run == run_) tick();
                        });
}

}  // namespace atl::rehearsal
