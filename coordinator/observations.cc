#include "coordinator/observations.h"

namespace atl {

Observations::Observations(const std::string& state_dir, const std::vector<StoreRecord>& records,
                           const std::optional<OtlpSettings>& otlp)
    : files_(&RealFiles(), state_dir + "/history") {
  if (otlp) exporter_.emplace(*otlp);
  files_.Load(&history_);
  for (const JobEvent& happened : log_.Recover(records)) counters_.On(happened);
  for (const StoreRecord& record : records) {
    const auto* job = std::get_if<JobRecord>(&record);
    if (job == nullptr || job->removed || history_.Find(job->job) != nullptr) continue;
    history_.Restore(job->job, JobHistory());
  }
}

Observations::~Observations() { files_.SaveAll(&history_); }

void Observations::OnStep(Instant now, int64_t unix_ms, const CoordinatorEvent& event,
                          const std::vector<StoreWrite>& writes) {
  if (const auto* from = std::get_if<FromWorker>(&event)) {
    const auto* heartbeat = std::get_if<WorkerHeartbeat>(&from->message);
    if (heartbeat != nullptr && heartbeat->progress) {
      progress_.OnHeartbeat(now, *heartbeat->progress);
    }
  }
  for (const JobEvent& happened : log_.Read(unix_ms, event, writes)) {
    history_.On(happened);
    counters_.On(happened);
    progress_.On(now, happened);
    if (exporter_) exporter_->Export(spans_.On(happened));
  }
}

}  // namespace atl
