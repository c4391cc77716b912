// The coordinator's metrics, from its views. Pure.
//
// Label sets are bounded: the newest kJobsShown jobs that have not ended, of each kIslandsShown
// islands, and kMembersShown members of each kind.

#ifndef ATOLL_COORDINATOR_MONITORING_CLUSTER_METRICS_H_
#define ATOLL_COORDINATOR_MONITORING_CLUSTER_METRICS_H_

#include "common/metrics/metrics.h"
#include "coordinator/core/core.h"
#include "coordinator/history/history.h"
#include "coordinator/monitoring/progress_watch.h"
#include "coordinator/monitoring/round_counters.h"

namespace atl {

inline constexpr size_t kJobsShown = 64;
inline constexpr size_t kIslandsShown = 256;
inline constexpr size_t kMembersShown = 4096;

// Knowledge about jobs besides the core's state.
struct JobObservations {
  const History& history;
  const RoundCounters& counters;
  const ProgressWatch& progress;
};

void AddClusterMetrics(Instant now, int64_t unix_ms, const CoordinatorCore& core,
                       const JobObservations& seen, MetricsWriter& writer);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_MONITORING_CLUSTER_METRICS_H_
