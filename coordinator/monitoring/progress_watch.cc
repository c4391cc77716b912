#include "coordinator/monitoring/progress_watch.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace atl {
namespace {

constexpr size_t kIslandsMax = 65536;

// It is there and nothing that the coordinator ordered keeps it from training.
bool ShouldTrain(const JobView& job, const IslandView& island) {
  return job.summary.state == JobState::kRunning &&
         job.summary.active_islands >= job.spec.outer.min_islands && island.attached &&
         island.incarnation != 0 && island.progress;
}

// The members that the leader has to wait for: those that do something else than the plan says.
std::string WaitsFor(const IslandView& island) {
  std::string text;
  for (const IslandWorkerView& worker : island.workers) {
    if (worker.leads || !worker.in_plan) continue;
    const bool ready = worker.attached && island.plan && worker.plan_number == island.plan->number;
    if (ready) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", worker.worker, " (", worker.activity, ")");
  }
  return text;
}

}  // namespace

void ProgressWatch::OnHeartbeat(Instant now, const IslandProgress& progress) {
  const auto key = std::make_pair(progress.job, progress.island);
  if (seen_.size() >= kIslandsMax && !seen_.contains(key)) return;
  const Seen newest{progress.generation, progress.inner_step, now};
  Seen& seen = seen_.try_emplace(key, newest).first->second;
  if (seen.generation != newest.generation || seen.inner_step != newest.inner_step) seen = newest;
}

void ProgressWatch::On(Instant now, const JobEvent& event) {
  if (std::holds_alternative<RemovedJob>(event.what)) {
    std::erase_if(seen_, [&](const auto& entry) { return entry.first.first == event.job; });
  }
  // Perhaps no island could train before.
  const auto* progressed = std::get_if<JobProgressed>(&event.what);
  if ((progressed == nullptr || !progressed->state_changed) &&
      !std::holds_alternative<LeaderChanged>(event.what)) {
    return;
  }
  for (auto& [key, seen] : seen_) {
    if (key.first == event.job) seen.at = now;
  }
}

ProgressWatch::Standing ProgressWatch::Of(Instant now, const JobView& job,
                                          const IslandView& island) const {
  Standing standing;
  const auto found = seen_.find({job.summary.job, island.island});
  if (found == seen_.end() || !ShouldTrain(job, island)) return standing;
  standing.since_step_s = std::max(0.0, Seconds(now - found->second.at));
  const IslandProgress& p = *island.progress;
  const double step_s = std::max(p.step_seconds_idle_link, p.step_seconds_overlap);
  const double limit_s =
      std::max(Seconds(kStallLimit), std::isfinite(step_s) ? kStallSteps * step_s : 0);
  if (standing.since_step_s <= limit_s) return standing;
  const std::string waits = WaitsFor(island);
  standing.stalled =
      absl::StrCat("heartbeats come, but no step for ", std::lround(standing.since_step_s), " s",
                   waits.empty() ? "" : "; waiting for ", waits,
                   island.activity.empty() ? "" : "; the leader: ", island.activity);
  return standing;
}

}  // namespace atl
