#include "paramserver/daemon_metrics.h"

#include <utility>

#include "common/metrics/names.h"

namespace atl::ps {

void DaemonMetrics::NoteHeartbeat(const ServerHeartbeat& heartbeat) {
  const std::lock_guard lock(mutex_);
  newest_ = heartbeat;
}

void DaemonMetrics::NoteConnection(bool connected) {
  const std::lock_guard lock(mutex_);
  connected_ = connected;
}

void DaemonMetrics::Collect(MetricsWriter& writer) const {
  writer.AddDisk(state_folder_);
  const std::lock_guard lock(mutex_);
  writer.Add(kConnected, connected_ ? 1 : 0);
  for (const HeldJob& job : newest_.jobs) {
    writer.Add(kPsJobVersion, static_cast<double>(job.version), {{"atoll_job", job.job}});
    writer.Add(kPsSnapshotVersion, static_cast<double>(job.snapshot_version),
               {{"atoll_job", job.job}});
  }
}

Monitored DaemonMetrics::ForServer(std::function<void()> wake,
                                   std::function<void(MetricsWriter&)> add_queues) {
  Monitored monitored;
  monitored.collect = [this, add_queues = std::move(add_queues)](MetricsWriter& writer) {
    Collect(writer);
    add_queues(writer);
  };
  monitored.healthy = [this, wake = std::move(wake)] { return pulse_.Turns(wake); };
  monitored.why_not_ready = [this] {
    const std::lock_guard lock(mutex_);
    return std::string(connected_ ? "" : "not connected to the coordinator");
  };
  return monitored;
}

}  // namespace atl::ps
