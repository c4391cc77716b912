#include "coordinator/core/stalls.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/islands/islands.h"
#include "coordinator/core/rounds/site_jobs.h"
#include "proto/control.plain.h"

namespace atl::coord {
namespace {

constexpr Duration kLeastLimit = kHeartbeatInterval * kMissedHeartbeatsBeforeEviction;
// Where rounds wait for all islands, however slow.
constexpr Duration kLimitOfAll = std::chrono::minutes(15);
// After that it loses what it has not pushed.
constexpr Duration kBeginsAnewAfter = std::chrono::minutes(10);

Duration GetStallLimit(const Job& job) {
  const OuterSpec& outer = job.spec().outer;
  if (outer.wait_for_all) return kLimitOfAll;
  return std::max(kLeastLimit, FromSeconds(outer.grace_seconds));
}

// Has a contribution that is granted and not complete.
bool IsPushing(const Job& job, const IslandRecord& island) {
  return job.rounds.HasContribution(island.island, [&](const ContributionId& id) {
    return id.generation == island.generation &&
           std::find(job.rounds.complete.begin(), job.rounds.complete.end(), id) ==
               job.rounds.complete.end();
  });
}

// A task may take longer than rounds wait for an island. Its score, or the loss before, is
// progress.
bool IsEvaluating(const Job& job, IslandId id) {
  const std::vector<IslandId>& validators = job.progress.validators;
  return !job.progress.evaluations.empty() && !validators.empty() && validators.front() == id;
}

// It has taken too long: another island would fare no better.
void GiveUpTasks(State& s, Job& job, IslandId id) {
  ProgressRecord& progress = job.EditProgress();
  progress.evaluations.clear();
  s.Log(job.id(), Severity::kWarning,
        absl::StrCat("version ", progress.validate_version, " is scored in no more tasks: island ",
                     id, " has no result for ", Seconds(s.options.final_evaluation_limit), " s"));
}

void Moves(State& s, Job& job, IslandId id, ProgressWatch& watch) {
  watch.since = s.now;
  if (!watch.stalled) return;
  watch.stalled = false;
  s.Touch(job);
  s.Log(job.id(), Severity::kInfo,
        absl::StrCat("island ", id, " makes progress again: rounds wait for it"));
}

}  // namespace

void NoteProgress(State& s, Job& job, const IslandRecord& island, const IslandProgress& progress) {
  const ProgressWatch seen{progress.generation,
                           progress.inner_step,
                           {progress.base_version, progress.plan_number, progress.setting_up,
                            progress.pushed_bytes, progress.pulled_bytes},
                           s.now};
  const auto [it, is_new] = job.watches.try_emplace(island.island, seen);
  ProgressWatch& watch = it->second;
  const bool moved = watch.generation != seen.generation || watch.others != seen.others ||
                     (watch.inner_step != seen.inner_step && !IsPushing(job, island));
  CalledIsland* call = FindIn(job.called, island.island);
  if (call != nullptr && watch.inner_step != seen.inner_step) call->since = s.now;
  watch = {seen.generation, seen.inner_step, seen.others, watch.since, watch.stalled};
  if (moved) Moves(s, job, island.island, watch);
}

void NotePush(State& s, Job& job, IslandId id) {
  const auto watch = job.watches.find(id);
  if (watch != job.watches.end()) Moves(s, job, id, watch->second);
}

void ExcuseStall(State& s, Duration late) {
  s.jobs.ForEachLive([&](Job& job) {
    for (auto& [id, watch] : job.watches) watch.since = std::min(s.now, watch.since + late);
    for (auto& [id, call] : job.called) call.since = std::min(s.now, call.since + late);
    if (job.spare) job.spare->since = std::min(s.now, job.spare->since + late);
  });
}

bool AdvanceStalls(State& s, Job& job) {
  if (job.progress.state != JobState::kRunning ||
      TrainingIslands(s, job) < job.spec().outer.min_islands) {
    for (auto& [id, watch] : job.watches) watch.since = s.now;  // islands are to be idle
    return false;
  }
  if (!job.rounds.window) return false;
  bool changed = false;
  std::vector<IslandId> anew;
  for (auto& [id, watch] : job.watches) {
    const auto island = job.islands.find(id);
    if (island == job.islands.end() || watch.generation != island->second.generation ||
        !IsActive(job, island->second)) {
      continue;
    }
    if (s.options.last_progress && s.now - watch.since >= GetStallLimit(job)) {
      watch.since = std::max(watch.since, s.options.last_progress(island->second.worker));
    }
    const Duration still = s.now - watch.since;
    if (still < GetStallLimit(job)) continue;
    const bool contributes = std::any_of(
        job.rounds.complete.begin(), job.rounds.complete.end(),
        [&, island = id](const ContributionId& complete) { return complete.island == island; });
    if (contributes) continue;
    const Duration limit =
        IsEvaluating(job, id) ? s.options.final_evaluation_limit : kBeginsAnewAfter;
    if (still >= limit) anew.push_back(id);
    if (watch.stalled) continue;
    watch.stalled = changed = true;
    s.Log(job.id(), Severity::kWarning,
          absl::StrCat("island ", id, " (worker ", island->second.worker,
                       ") is not waited for: ", StallReason(s, job, id)));
  }
  for (const IslandId id : anew) {
    const std::string reason = StallReason(s, job, id);
    if (IsEvaluating(job, id)) GiveUpTasks(s, job, id);
    job.watches.erase(id);
    RenewIsland(s, job, id, reason);
    changed = true;
  }
  return changed;
}

bool IsStalled(const Job& job, IslandId id) {
  const auto watch = job.watches.find(id);
  return watch != job.watches.end() && watch->second.stalled &&
         watch->second.generation == job.islands.at(id).generation;
}

std::string StallReason(const State& s, const Job& job, IslandId id) {
  if (!IsStalled(job, id)) return "";
  const IslandRecord& island = job.islands.at(id);
  const Worker* worker = s.FindWorker(island.worker);
  const char* what = IsPushing(job, island) ? "nothing of its contribution has reached a server"
                                            : "it has made no step and pulled nothing";
  std::string reason =
      absl::StrCat("its heartbeats come, but for ",
                   static_cast<int64_t>(Seconds(s.now - job.watches.at(id).since)), " s ", what);
  if (worker != nullptr && worker->progress && !worker->progress->activity.empty()) {
    absl::StrAppend(&reason, "; it says: ", CleanText(worker->progress->activity, 300));
  }
  return reason;
}

}  // namespace atl::coord
