#include "coordinator/observations.h"

namespace atl {

Observations::Observations(const std::string& state_dir, const std::vector<StoreRecord>& records,
                           const std::optional<OtlpSettings>& otlp)
    : files_(&RealFiles(), state_dir + "/history") {
  if (otlp) exporter_.emplace(*otlp);
  files_.Load(&history_);
  counters_.Recover(records);
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
  if (writes.empty()) return;
  history_.OnWrites(unix_ms, writes);
  counters_.OnStored(unix_ms, event, writes);
  if (exporter_) exporter_->Export(spans_.OnStored(unix_ms, writes));
  for (const StoreWrite& write : writes) NoteChange(now, write);
}

void Observations::NoteChange(Instant now, const StoreWrite& write) {
  if (const auto* job = std::get_if<JobRecord>(&write.record); job != nullptr && job->removed) {
    progress_.Forget(job->job);
    states_.erase(job->job);
    std::erase_if(leaders_, [&](const auto& entry) { return entry.first.first == job->job; });
  }
  if (write.erase) return;
  if (const auto* progress = std::get_if<ProgressRecord>(&write.record)) {
    const auto [state, is_new] = states_.try_emplace(progress->job, progress->state);
    if (is_new || state->second != progress->state) progress_.OnState(now, progress->job);
    state->second = progress->state;
  } else if (const auto* island = std::get_if<IslandRecord>(&write.record)) {
    Incarnation& leader = leaders_[{island->job, island->island}];
    if (leader != island->incarnation) progress_.OnState(now, island->job);
    leader = island->incarnation;
  }
}

}  // namespace atl
