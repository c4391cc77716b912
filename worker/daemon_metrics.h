// Metrics that a worker reports to monitors. Thread-safe: the daemon's loop notes, the server's
// threads read.

#ifndef ATOLL_WORKER_DAEMON_METRICS_H_
#define ATOLL_WORKER_DAEMON_METRICS_H_

#include <array>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "common/metrics/metrics_server.h"
#include "common/metrics/names.h"
#include "common/protocol/island_plan.h"
#include "proto/control.plain.h"

namespace atl::worker {

class DaemonMetrics {
 public:
  DaemonMetrics(std::string state_dir, size_t devices)
      : state_dir_(std::move(state_dir)), devices_(devices) {}

  void NoteStep(double seconds);
  // `paused`: its island is. `compute_queue`: what waits for the compute thread.
  void NoteHeartbeat(const WorkerHeartbeat& heartbeat, bool paused, size_t compute_queue);
  void NoteConnection(bool connected);
  // Notes bytes to other workers, by edge (peer_link.h).
  void NoteEdges(const std::array<int64_t, kPeerEndpointsMax>& sent_bytes);
  LoopPulse& pulse() { return pulse_; }

  // `wake` makes the daemon's loop turn; `queued` is the length of the loop's queue, on the
  // server's threads.
  Monitored ForServer(std::function<void()> wake, std::function<size_t()> queued);

 private:
  void Collect(MetricsWriter& writer) const;

  const std::string state_dir_;
  const size_t devices_;
  LoopPulse pulse_;
  mutable std::mutex mutex_;  // guards all below
  HistogramCounts steps_{kWorkerStepSeconds};
  std::optional<IslandProgress> progress_;
  bool paused_ = false;
  size_t compute_queue_ = 0;
  bool connected_ = false;
  std::array<int64_t, kPeerEndpointsMax> edge_sent_bytes_ = {};
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_DAEMON_METRICS_H_
