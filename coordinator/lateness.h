// Whether the coordinator's loop is late itself (a stall): heartbeats wait unread, so missing
// heartbeats do not show that a member is unavailable. Pure; for loop.cc only.

#ifndef ATOLL_COORDINATOR_LATENESS_H_
#define ATOLL_COORDINATOR_LATENESS_H_

#include <optional>

#include "common/time.h"

namespace atl {

class Lateness {
 public:
  // At the beginning of a turn that was due at `due` (kNever: no turn was), with a task that has
  // been in the queue since `posted_at`. True: evictions are to be suspended (Stalled). Of a queue
  // that stays long this is reported once in kQueuedTooLong, since it looks at all members.
  bool IsLate(Instant now, Instant due, std::optional<Instant> posted_at) {
    if (due != kNever && now - due > kStall) return true;  // a turn that is as late as no other
    if (!posted_at || now - *posted_at < kQueuedTooLong || now < again_at_) return false;
    again_at_ = now + kQueuedTooLong;
    return true;
  }

 private:
  static constexpr Duration kStall = std::chrono::milliseconds(100);
  static constexpr Duration kQueuedTooLong = std::chrono::seconds(1);

  Instant again_at_{};
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_LATENESS_H_
