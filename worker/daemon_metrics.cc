#include "worker/daemon_metrics.h"

#include "absl/strings/str_cat.h"

namespace atl::worker {

void DaemonMetrics::NoteStep(double seconds) {
  const std::lock_guard lock(mutex_);
  steps_.Observe(seconds);
}

void DaemonMetrics::NoteHeartbeat(const WorkerHeartbeat& heartbeat, bool paused,
                                  size_t compute_queue) {
  const std::lock_guard lock(mutex_);
  progress_ = heartbeat.progress;
  paused_ = paused;
  compute_queue_ = compute_queue;
}

void DaemonMetrics::NoteEdges(const std::array<int64_t, kPeerEndpointsMax>& sent_bytes) {
  const std::lock_guard lock(mutex_);
  edge_sent_bytes_ = sent_bytes;
}

namespace {

void AddExperts(const IslandProgress& p, MetricsWriter& writer) {
  const size_t mixtures = p.router_losses.size() / 2;
  for (size_t m = 0; m < mixtures; ++m) {
    const MetricsWriter::Labels labels = {{"atoll_job", p.job}, {"mixture", absl::StrCat(m)}};
    writer.Add(kWorkerMixtureBalance, p.router_losses[2 * m], labels);
    writer.Add(kWorkerMixtureZ, p.router_losses[2 * m + 1], labels);
  }
  const size_t experts = mixtures == 0 ? 0 : p.expert_tokens.size() / mixtures;
  for (size_t e = 0; e < mixtures * experts; ++e) {
    writer.Add(kWorkerExpertTokens, static_cast<double>(p.expert_tokens[e]),
               {{"atoll_job", p.job},
                {"mixture", absl::StrCat(e / experts)},
                {"expert", absl::StrCat(e % experts)}});
  }
}

}  // namespace

void DaemonMetrics::Collect(MetricsWriter& writer) const {
  writer.Add(kWorkerDevices, static_cast<double>(devices_));
  writer.Add(kWorkerStepSeconds, steps_);
  writer.Add(kWorkQueue, static_cast<double>(compute_queue_), {{"queue", "compute"}});
  for (size_t edge = 0; edge < edge_sent_bytes_.size(); ++edge) {
    if (edge > 0 && edge_sent_bytes_[edge] == 0) continue;
    writer.Add(kWorkerPeerSentBytes, static_cast<double>(edge_sent_bytes_[edge]),
               {{"edge", absl::StrCat(edge)}});
  }
  if (!progress_) return;
  const IslandProgress& p = *progress_;
  const MetricsWriter::Labels job = {{"atoll_job", p.job}};
  writer.Add(kWorkerSteps, static_cast<double>(p.inner_step), job);
  writer.Add(kWorkerTokens, static_cast<double>(p.tokens), job);
  writer.Add(kWorkerTokenRate, paused_ ? 0 : p.tokens_per_s, job);
  if (p.train_loss != 0) writer.Add(kWorkerLoss, p.train_loss, job);
  if (p.router_balance != 0) {
    writer.Add(kWorkerRouterBalance, p.router_balance, job);
    writer.Add(kWorkerRouterZ, p.router_z, job);
  }
  AddExperts(p, writer);
  writer.Add(kWorkerPushedBytes, static_cast<double>(p.pushed_bytes), job);
  writer.Add(kWorkerPulledBytes, static_cast<double>(p.pulled_bytes), job);
  for (const DeviceMemoryState& device : p.memory) {
    writer.Add(kDevicePeakBytes, static_cast<double>(device.peak_bytes),
               {{"device", device.device}});
    writer.Add(kDeviceLimitBytes, static_cast<double>(device.limit_bytes),
               {{"device", device.device}});
  }
}

}  // namespace atl::worker
