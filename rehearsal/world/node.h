// A process that can die, in virtual time. What one of its runs scheduled does nothing in the next.

#ifndef ATOLL_REHEARSAL_WORLD_NODE_H_
#define ATOLL_REHEARSAL_WORLD_NODE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "rehearsal/world/timeline.h"

namespace atl::rehearsal {

class Node {
 public:
  // `timeline` outlives it, and it outlives what it schedules there.
  Node(Timeline* timeline, std::string name) : timeline_(*timeline), name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  bool alive() const { return alive_; }

 protected:
  // Runs `action` after `delay` if this run still goes on.
  void AfterInRun(Duration delay, Timeline::Action action);
  // Calls `tick` at `deadline`, unless another deadline has replaced it by then.
  void ArmTick(Instant deadline, Timeline::Action tick);
  void BeginRun() {
    alive_ = true;
    ++run_;
  }
  void EndRun() {
    alive_ = false;
    ++run_;
  }
  int64_t run() const { return run_; }

 private:
  Timeline& timeline_;
  const std::string name_;
  bool alive_ = false;
  int64_t run_ = 0;
  Timeline::Key armed_;  // the newest tick; it may be over
};

}  // namespace atl::rehearsal

#endif  // ATOLL_REHEARSAL_WORLD_NODE_H_
