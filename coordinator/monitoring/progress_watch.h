// Distinguishes an island that trains from one that only sends heartbeats: its step count has to
// grow. Pure.

#ifndef ATOLL_COORDINATOR_MONITORING_PROGRESS_WATCH_H_
#define ATOLL_COORDINATOR_MONITORING_PROGRESS_WATCH_H_

#include <map>
#include <string>
#include <utility>

#include "common/time.h"
#include "coordinator/history/round_log.h"

namespace atl {

// An island may be without progress so long before it counts as stalled, or this many times its
// step time.
inline constexpr Duration kStallLimit = std::chrono::seconds(30);
inline constexpr double kStallSteps = 20;

class ProgressWatch {
 public:
  struct Standing {
    double since_step_s = 0;
    std::string stalled;  // why; empty: it is not
  };

  void OnHeartbeat(Instant now, const IslandProgress& progress);
  void On(Instant now, const JobEvent& event);

  Standing Of(Instant now, const JobView& job, const IslandView& island) const;

 private:
  struct Seen {
    Generation generation = 0;
    int64_t inner_step = -1;
    Instant at{};  // when the count grew, or when it first could have
  };
  std::map<std::pair<JobId, IslandId>, Seen> seen_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_MONITORING_PROGRESS_WATCH_H_
