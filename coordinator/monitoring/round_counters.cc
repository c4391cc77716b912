#include "coordinator/monitoring/round_counters.h"

#include <algorithm>

namespace atl {
namespace {

// The kind of the event that evicted a member.
const char* EvictionReason(const CoordinatorEvent& event) {
  if (std::holds_alternative<WorkerConnectionLost>(event)) return "connection_lost";
  if (std::holds_alternative<Tick>(event)) return "silent";
  if (const auto* from = std::get_if<FromWorker>(&event)) {
    if (std::holds_alternative<WorkerHello>(from->message)) return "restarted";
  }
  return "other";
}

void NoteState(const ProgressRecord& progress, JobCounters& job) {
  job.paused = progress.state == JobState::kPaused || progress.state == JobState::kFailed;
  job.paused_since = job.paused_since || job.paused;
}

}  // namespace

void RoundCounters::Recover(const std::vector<StoreRecord>& records) {
  for (const StoreRecord& record : records) {
    if (const auto* island = std::get_if<IslandRecord>(&record)) {
      jobs_[island->job].evictions_seen[island->island] = island->evictions;
    } else if (const auto* progress = std::get_if<ProgressRecord>(&record)) {
      NoteState(*progress, jobs_[progress->job]);
    } else if (const auto* decision = std::get_if<DecisionRecord>(&record)) {
      JobCounters& job = jobs_[decision->job];
      job.last_round = std::max(job.last_round, decision->round);
    }
  }
}

void RoundCounters::OnStored(int64_t unix_ms, const CoordinatorEvent& event,
                             const std::vector<StoreWrite>& writes) {
  for (const StoreWrite& write : writes) {
    if (const auto* job = std::get_if<JobRecord>(&write.record)) {
      if (write.erase || job->removed) jobs_.erase(job->job);
    }
    if (write.erase) continue;
    if (const auto* island = std::get_if<IslandRecord>(&write.record)) {
      JobCounters& job = jobs_[island->job];
      const int64_t more = island->evictions - job.evictions_seen[island->island];
      if (more > 0) job.evictions[EvictionReason(event)] += more;
      job.evictions_seen[island->island] = island->evictions;
    } else if (const auto* progress = std::get_if<ProgressRecord>(&write.record)) {
      if (const auto job = jobs_.find(progress->job); job != jobs_.end()) {
        NoteState(*progress, job->second);
      }
    } else if (const auto* decision = std::get_if<DecisionRecord>(&write.record)) {
      JobCounters& job = jobs_[decision->job];
      if (decision->round <= job.last_round) continue;  // stored again
      job.last_round = decision->round;
      ++(decision->version == kNoVersion ? job.voided : job.committed);
      if (job.last_decision_ms != 0 && !job.paused_since) {
        job.round_seconds.Observe(static_cast<double>(unix_ms - job.last_decision_ms) / 1e3);
      }
      job.last_decision_ms = unix_ms;
      job.paused_since = job.paused;
      job.clip_scale = decision->clip_scale;
      job.norm = decision->norm;
      job.rho = decision->rho;
      job.gain = decision->gain;
      job.cosine = decision->cosine;
      for (const DecisionParticipant& p : decision->participants) {
        if (decision->version == 0) break;  // the initial weights
        job.staleness.Observe(
            static_cast<double>(decision->previous - p.contribution.base_version));
      }
    }
  }
}

const JobCounters* RoundCounters::Find(const JobId& job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : &found->second;
}

}  // namespace atl
