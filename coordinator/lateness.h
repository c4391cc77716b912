// Notices that the coordinator's loop is late itself (a stall): heartbeats wait unread, so missing
// heartbeats do not show that a member is unavailable. Pure; for loop.cc only.

#ifndef ATOLL_COORDINATOR_LATENESS_H_
#define ATOLL_COORDINATOR_LATENESS_H_

#include <algorithm>
#include <optional>
#include <utility>

#include "common/time.h"

namespace atl {

class Lateness {
 public:
  // At the beginning of a turn that was due at `due` (kNever: no turn was), with a task that has
  // been in the queue since `posted_at`: by how much the loop is later than it was. Nothing: it is
  // not late; else evictions are to be suspended (Stalled). Of a queue that stays long this is
  // reported once in kQueuedTooLong, since it looks at all members.
  std::optional<Duration> Measure(Instant now, Instant due, std::optional<Instant> posted_at) {
    if (due != kNever && now - due > kStall)
      return now - due;  // a turn that is as late as no other
    const Duration queued = posted_at ? now - *posted_at : Duration(0);
    if (queued < kQueuedTooLong) {
      if (posted_at) queued_ = Duration(0);
      return std::nullopt;
    }
    if (now < again_at_) return std::nullopt;
    again_at_ = now + kQueuedTooLong;
    // The oldest task of a queue that does not become longer is as late as the one before it.
    return std::max(Duration(0), queued - std::exchange(queued_, queued));
  }

 private:
  static constexpr Duration kStall = std::chrono::milliseconds(100);
  static constexpr Duration kQueuedTooLong = std::chrono::seconds(1);

  Instant again_at_{};
  Duration queued_{0};  // of the newest late task
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_LATENESS_H_
