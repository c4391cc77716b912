#include "absl/strings/str_cat.h"
#include "common/version.h"
#include "common/wall_clock.h"
#include "coordinator/clients/client_answers.h"
#include "coordinator/measurements/live_profile.h"
#include "coordinator/wire.h"

namespace atl {

absl::Status NoSuchJob(const JobId& job) {
  return absl::NotFoundError(absl::StrCat("there is no job ", job, ": see atoll ls"));
}

void AddTimes(const CoordinatorLoop& loop, JobSummary& view) {
  const JobHistory* history = loop.observations().history().Find(view.job);
  if (history == nullptr) return;
  view.submitted_unix_ms = history->submitted_ms();
  view.started_unix_ms = history->started_ms();
  view.ended_unix_ms = history->ended_ms();
  view.final_loss = history->newest_loss();
  if (view.started_unix_ms == 0) return;
  const int64_t now_ms = UnixTimeMs();
  const int64_t end_ms = view.ended_unix_ms != 0 ? view.ended_unix_ms : now_ms;
  view.paused_ms = history->PausedMs(now_ms);
  const int64_t ran_ms = end_ms - view.started_unix_ms - view.paused_ms;
  if (ran_ms > 0) {
    view.mean_tokens_per_s =
        1e3 * static_cast<double>(view.tokens_committed) / static_cast<double>(ran_ms);
  }
}

void EncodeSummary(const CoordinatorLoop& loop, const JobId& job, v1::JobSummary* wire) {
  std::optional<JobSummary> view = loop.core().Summary(job);
  if (!view) return;
  AddTimes(loop, *view);
  EncodeView(*view, wire);
}

void EncodeJob(Instant now, const CoordinatorLoop& loop, JobView view, v1::Job* wire) {
  AddTimes(loop, view.summary);
  const JobHistory* history = loop.observations().history().Find(view.summary.job);
  for (IslandView& island : view.islands) {
    const ProgressWatch::Standing standing = loop.observations().progress().Of(now, view, island);
    island.since_step_s = standing.since_step_s;
    island.stalled = standing.stalled;
    if (history == nullptr) continue;
    // This remains to be shown of it when its job has ended.
    const JobHistory::Pushed pushed = history->PushedBy(island.island);
    island.pushed_steps = pushed.steps;
    island.pushed_loss = pushed.loss;
  }
  EncodeView(view, wire);
}

void EncodeCluster(Instant now, const CoordinatorLoop& loop, v1::ClusterStatus* status) {
  const CoordinatorCore& core = loop.core();
  status->set_epoch(core.epoch());
  status->set_cluster(core.cluster());
  status->set_store_age(core.StoreAge());
  for (const OrphanView& job : core.Orphans()) EncodeView(job, status->add_orphans());
  for (const ForeignMemberView& member : core.ForeignMembers(now)) {
    EncodeView(member, status->add_foreign_members());
  }
  status->set_unix_ms(UnixTimeMs());
  status->set_software_version(kSoftwareVersion);
  for (const MemberView& member : core.Members(now)) {
    EncodeView(member, status->add_members());
  }
  for (std::string& text : loop.measurements().ListTroubles(now)) {
    status->add_troubles(std::move(text));
  }
  for (const auto& [id, state] : core.JobStates()) {
    if (HasEnded(state)) continue;
    auto view = core.Job(now, id);
    auto& decisions = view->decisions;
    if (decisions.size() > 1) decisions.erase(decisions.begin(), decisions.end() - 1);
    EncodeJob(now, loop, *std::move(view), status->add_jobs());
  }
}

absl::Status EncodeProfile(Instant now, const CoordinatorLoop& loop,
                           const v1::ProfileRequest& request, v1::ClusterProfile* reply) {
  const CoordinatorCore& core = loop.core();
  std::optional<JobView> job;
  if (!request.job().empty()) {
    job = core.Job(now, request.job());
    if (!job) return NoSuchJob(request.job());
  } else {
    const auto states = core.JobStates();
    for (auto newest = states.rbegin(); newest != states.rend() && !job; ++newest) {
      auto view = core.Job(now, newest->first);
      if (view->facts) job = std::move(view);
    }
  }
  ATOLL_ASSIGN_OR_RETURN(
      *reply, LiveProfile(now, core.Members(now), job ? &*job : nullptr, loop.measurements()));
  return absl::OkStatus();
}

}  // namespace atl
