// Changes of how messages go between the devices of an island, for the job's log. Adapters
// change their choice as often as a noisy machine changes its speed, and the log keeps a bounded
// number of lines for all jobs. So a stage link's first change is logged at once, and those of the
// minute after it in one line at its end: how many there were, and the newest. Pure.

#ifndef ATOLL_WORKER_CORE_STAGE_LINK_LOG_H_
#define ATOLL_WORKER_CORE_STAGE_LINK_LOG_H_

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "common/ids.h"
#include "common/time.h"
#include "proto/control.plain.h"

namespace atl::worker {

class StageLinkLog {
 public:
  static constexpr Duration kRepeatAfter = std::chrono::minutes(1);

  // The lines that are due, given what is seen now: all stage links of the plan in force.
  std::vector<std::string> LinesDue(Instant now, const std::vector<StageLinkState>& seen);
  // Forgets everything, for another job.
  void Clear() { logged_.clear(); }

 private:
  struct Logged {
    std::string reason;  // newest seen
    Instant at;          // of the newest line
    int changes = 0;     // since then
    bool any = false;    // a line has been logged
  };
  // From, to, and the number among those between the same two devices.
  using Key = std::tuple<std::string, std::string, int>;

  std::map<Key, Logged> logged_;  // those seen now, or logged less than kRepeatAfter ago
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_CORE_STAGE_LINK_LOG_H_
