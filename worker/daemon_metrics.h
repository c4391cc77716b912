// Metrics that a worker reports to monitors. Thread-safe: the daemon's loop notes, the server's
// threads read.

#ifndef ATOLL_WORKER_DAEMON_METRICS_H_
#define ATOLL_WORKER_DAEMON_METRICS_H_

#include <array>
#include <optional>
#include <string>

#include "common/metrics/metrics_server.h"
#include "common/metrics/names.h"
#include "common/protocol/island_plan.h"
#include "proto/control.plain.h"

namespace atl::worker {

class DaemonMetrics : public MemberMetrics {
 public:
  DaemonMetrics(std::string state_dir, size_t devices)
      : MemberMetrics(std::move(state_dir)), devices_(devices) {}

  void NoteStep(double seconds);
  // `paused`: its island is. `compute_queue`: what waits for the compute thread.
  void NoteHeartbeat(const WorkerHeartbeat& heartbeat, bool paused, size_t compute_queue);
  // Notes bytes to other workers, by edge (peer_link.h).
  void NoteEdges(const std::array<int64_t, kPeerEndpointsMax>& sent_bytes);

 private:
  void Collect(MetricsWriter& writer) const override;

  const size_t devices_;
  HistogramCounts steps_{kWorkerStepSeconds};  // guarded by mutex_, as below
  std::optional<IslandProgress> progress_;
  bool paused_ = false;
  size_t compute_queue_ = 0;
  std::array<int64_t, kPeerEndpointsMax> edge_sent_bytes_ = {};
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_DAEMON_METRICS_H_
