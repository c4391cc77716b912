// Metrics that a parameter server reports to monitors, besides what the coordinator reports of it
// (its bytes and traffic). Thread-safe.

#ifndef ATOLL_PARAMSERVER_DAEMON_METRICS_H_
#define ATOLL_PARAMSERVER_DAEMON_METRICS_H_

#include "common/metrics/metrics_server.h"
#include "common/protocol/control.h"

namespace atl::ps {

class DaemonMetrics : public MemberMetrics {
 public:
  using MemberMetrics::MemberMetrics;

  void NoteHeartbeat(const ServerHeartbeat& heartbeat);

 private:
  void Collect(MetricsWriter& writer) const override;

  ServerHeartbeat newest_;  // guarded by mutex_
};

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_DAEMON_METRICS_H_
