// Counters for metrics of what happens: rounds, contributions, evictions. From the coordinator's
// start on; jobs that were removed are forgotten. Pure.

#ifndef ATOLL_COORDINATOR_MONITORING_ROUND_COUNTERS_H_
#define ATOLL_COORDINATOR_MONITORING_ROUND_COUNTERS_H_

#include <map>
#include <string>

#include "common/metrics/metrics.h"
#include "common/metrics/names.h"
#include "coordinator/history/round_log.h"

namespace atl {

struct JobCounters {
  HistogramCounts round_seconds{kRoundSeconds};
  HistogramCounts staleness{kStaleness};
  int64_t committed = 0;
  int64_t voided = 0;
  int64_t last_decision_ms = 0;
  bool paused = false;
  bool paused_since = false;  // that decision: the next round's duration says nothing
  double clip_scale = 1;
  double rho = 0, gain = 0, cosine = 0;
  double norm = 0;
  std::map<std::string, int64_t> evictions;  // by reason
};

class RoundCounters {
 public:
  void On(const JobEvent& event);
  const JobCounters* Find(const JobId& job) const;

 private:
  std::map<JobId, JobCounters> jobs_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_MONITORING_ROUND_COUNTERS_H_
