// Metrics that a parameter server reports to monitors, besides what the coordinator reports of it
// (its bytes and traffic). Thread-safe.

#ifndef ATOLL_PARAMSERVER_DAEMON_METRICS_H_
#define ATOLL_PARAMSERVER_DAEMON_METRICS_H_

#include <functional>
#include <mutex>
#include <string>

#include "common/metrics/metrics_server.h"
#include "common/protocol/control.h"

namespace atl::ps {

class DaemonMetrics {
 public:
  explicit DaemonMetrics(std::string state_folder) : state_folder_(std::move(state_folder)) {}

  void NoteHeartbeat(const ServerHeartbeat& heartbeat);
  void NoteConnection(bool connected);
  LoopPulse& pulse() { return pulse_; }

  // `wake` makes the daemon's loop turn; `add_queues` adds the lengths of its queues, on the
  // server's threads.
  Monitored ForServer(std::function<void()> wake, std::function<void(MetricsWriter&)> add_queues);

 private:
  void Collect(MetricsWriter& writer) const;

  const std::string state_folder_;
  LoopPulse pulse_;
  mutable std::mutex mutex_;  // guards all below
  ServerHeartbeat newest_;
  bool connected_ = false;
};

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_DAEMON_METRICS_H_
