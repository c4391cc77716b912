#include "coordinator/core/settings.h"

#include "absl/strings/str_cat.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/rounds/round_length.h"
#include "coordinator/core/rounds/round_steps.h"
#include "coordinator/core/shards/servers.h"

namespace atl::coord {
namespace {

absl::Status Refuse(const Job& job, absl::string_view rule) {
  return absl::FailedPreconditionError(
      absl::StrCat("job ", job.id(), " is ", Name(job.progress.state), ": ", rule));
}

// Where H is chosen, the statistics of pushes are kept by length.
bool ChoosesSteps(const JobSpec& spec) { return spec.outer.steps_per_round == 0; }

absl::Status Check(const Job& job, const JobSpec& spec) {
  if (job.record.site) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job.id(), " is what site ", job.record.site->site, " trains of job ",
                     job.spec().outer.contributes_to, ": its settings are that job's"));
  }
  if (job.ended()) return Refuse(job, "it has ended already");
  if (!job.progress.outdated.empty() || job.stale()) {
    return Refuse(job, "its parameter servers have not all come back yet");
  }
  if (job.progress.state == JobState::kFinishing) return Refuse(job, "all tokens are committed");
  if (job.spec().outer.site.rounds > 0) {
    return Refuse(job, "settings of a job with [outer.site] cannot change while it runs");
  }
  if (ChoosesSteps(spec) != ChoosesSteps(job.spec())) {
    return Refuse(job,
                  "outer.steps_per_round can change between numbers above 0, not from or to 0");
  }
  // One more than is committed: the last version is evaluated when it is made.
  const int64_t least =
      std::max(job.ledger->LeastBudget(), job.ledger->Count(LedgerUse::kCommitted) + 1);
  if (ComputeSequenceBudget(spec) < least) {
    return Refuse(job, absl::StrCat("schedule.train_tokens must be at least ",
                                    least * spec.data.sequence_length,
                                    ", more than islands have or have trained on"));
  }
  return absl::OkStatus();
}

// Rounds that are under way have the new settings, too.
void ApplyToRound(State& s, Job& job, const JobSpec& before) {
  const OuterSpec& outer = job.spec().outer;
  if (outer.steps_per_round != before.outer.steps_per_round) {
    const int64_t most = GetStepsBetweenPushes(job);
    for (const auto& [id, island] : std::map(job.islands)) {
      if (island.steps_this_round > most) job.EditIsland(id).steps_this_round = most;
    }
    // Norms of pushes of another length are of another scale.
    for (const auto& [id, penalty] : std::map(job.rounds.penalties)) {
      job.rounds.EditPenalty(id).norm_statistics.clear();
    }
  }
  if (job.rounds.window) {
    job.rounds.window->grace = GraceFor(s, job, job.rounds.window->opened_by);
  }
}

}  // namespace

void ReplaceSpec(State& s, Job& job, const JobSpec& spec) {
  job.EditRecord().spec = spec;
  ++job.settings_revision;
  if (job.record.shards.empty()) return;
  ++job.EditRecord().placement;  // its holders stay; see NextPlacement
  for (auto& [server, link] : job.rounds.links) link.assigned = false;
  RetryServersNow(s, job);
}

void OnChangeSettings(State& s, const ChangeSettings& request) {
  Reply reply{request.request_id, absl::OkStatus(), request.job};
  Job* job = s.FindJob(request.job);
  if (job == nullptr || job->record.removed) {
    reply.status = absl::NotFoundError(
        absl::StrCat("there is no job ", CleanText(request.job, 100), ": see atoll ls"));
  } else {
    reply.status = Check(*job, request.spec);
  }
  if (reply.status.ok() && request.spec != job->spec()) {
    const JobSpec before = job->spec();
    ReplaceSpec(s, *job, request.spec);
    // Steps beside the next version's commit may still be made at the old rates.
    job->former_rates = {before.inner, before.schedule.train_tokens, job->decided_version() + 1};
    ApplyToRound(s, *job, before);
    job->ledger->SetBudget(ComputeSequenceBudget(request.spec));
    s.Log(job->id(), Severity::kInfo, absl::StrCat("changed by a user: ", request.changes));
  }
  s.out.replies.push_back(std::move(reply));
}

}  // namespace atl::coord
