#include "coordinator/monitoring/round_counters.h"

#include <algorithm>

namespace atl {
namespace {

void NoteRound(int64_t unix_ms, const DecisionRecord& decision, JobCounters& job) {
  ++(decision.version == kNoVersion ? job.voided : job.committed);
  if (job.last_decision_ms != 0 && !job.paused_since) {
    job.round_seconds.Observe(static_cast<double>(unix_ms - job.last_decision_ms) / 1e3);
  }
  job.last_decision_ms = unix_ms;
  job.paused_since = job.paused;
  job.clip_scale = decision.clip_scale;
  job.norm = decision.norm;
  job.rho = decision.rho;
  job.gain = decision.gain;
  job.cosine = decision.cosine;
  if (decision.version == 0) return;  // the initial weights
  for (const DecisionParticipant& p : decision.participants) {
    job.staleness.Observe(static_cast<double>(decision.previous - p.contribution.base_version));
  }
}

}  // namespace

void RoundCounters::On(const JobEvent& event) {
  if (std::holds_alternative<RemovedJob>(event.what)) {
    jobs_.erase(event.job);
  } else if (const auto* evicted = std::get_if<WorkersEvicted>(&event.what)) {
    jobs_[event.job].evictions[evicted->reason] += evicted->times;
  } else if (const auto* progressed = std::get_if<JobProgressed>(&event.what)) {
    const JobState state = progressed->record->state;
    JobCounters& job = jobs_[event.job];
    job.paused = state == JobState::kPaused || state == JobState::kFailed;
    job.paused_since = job.paused_since || job.paused;
  } else if (const auto* decided = std::get_if<RoundDecided>(&event.what)) {
    NoteRound(event.unix_ms, *decided->record, jobs_[event.job]);
  }
}

const JobCounters* RoundCounters::Find(const JobId& job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : &found->second;
}

}  // namespace atl
