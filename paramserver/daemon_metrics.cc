#include "paramserver/daemon_metrics.h"

#include "common/metrics/names.h"

namespace atl::ps {

void DaemonMetrics::NoteHeartbeat(const ServerHeartbeat& heartbeat) {
  const std::lock_guard lock(mutex_);
  newest_ = heartbeat;
}

void DaemonMetrics::Collect(MetricsWriter& writer) const {
  for (const HeldJob& job : newest_.jobs) {
    writer.Add(kPsJobVersion, static_cast<double>(job.version), {{"atoll_job", job.job}});
    writer.Add(kPsSnapshotVersion, static_cast<double>(job.snapshot_version),
               {{"atoll_job", job.job}});
  }
}

}  // namespace atl::ps
