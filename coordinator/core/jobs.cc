#include "coordinator/core/jobs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/plural.h"
#include "coordinator/core/adoption.h"
#include "coordinator/core/drain.h"
#include "coordinator/core/islands/grouping.h"
#include "coordinator/core/islands/islands.h"
#include "coordinator/core/islands/plans.h"
#include "coordinator/core/preparation.h"
#include "coordinator/core/removal.h"
#include "coordinator/core/rounds/rounds.h"
#include "coordinator/core/rounds/site_exchange.h"
#include "coordinator/core/rounds/site_jobs.h"
#include "coordinator/core/rounds/validation.h"
#include "coordinator/core/shards/failover.h"
#include "coordinator/core/shards/move_orders.h"
#include "coordinator/core/shards/moves.h"
#include "coordinator/core/shards/refill.h"
#include "coordinator/core/shards/servers.h"
#include "coordinator/core/sharing/spares.h"
#include "coordinator/core/view_makers.h"

namespace atl::coord {
namespace {

// Workers that may get the job into an island, as leader or follower.
void StopWorkers(State& s, Job& job, const std::string& reason) {
  for (const NodeId& name : std::set(s.candidates)) {
    Worker& member = *s.FindWorker(name);
    if (member.candidate_for != job.id()) continue;
    s.SetCandidate(member, "");
    // It may be busy with the job's files for long, and another job may need it.
    SendStop<IslandOrder>(s, member, job.id(), IslandOrder().island, job.progress.plan_generation,
                          reason);
  }
  for (const auto& [id, order] : job.orders) {
    const IslandRecord& island = job.islands.at(id);
    const Worker* worker = s.FindWorker(island.worker);
    if (worker == nullptr || !worker->attached) continue;
    // Its heartbeats show whether this was lost.
    SendStop<IslandOrder>(s, *worker, job.id(), id, island.generation, reason);
  }
  for (const auto& [name, sent] : job.member_orders) {
    const Worker* worker = s.FindWorker(name);
    if (worker == nullptr || !worker->attached) continue;
    SendStop<MemberOrder>(s, *worker, job.id(), sent.island, sent.generation, reason);
  }
  job.orders.clear();
  job.member_orders.clear();
}

void Start(State& s, Job& job) {
  IslandId first = -1;
  for (const auto& [id, island] : job.islands) {
    const Worker* worker = s.FindWorker(island.worker);
    if (island.incarnation != 0 && worker != nullptr && worker->attached && first < 0) first = id;
  }
  if (first < 0) return;
  job.EditProgress().initializer = first;
  s.Log(job.id(), Severity::kInfo, absl::StrCat("island ", first, " makes the initial weights"));
}

// The time that is left to the last validation. No worker joins any more: without an island the
// time for tasks, which none scores, is not waited for.
Duration LastValidationLimit(const State& s, const Job& job) {
  return job.spec().evaluation.empty() || (job.occupied_islands() == 0 && !job.spare)
             ? s.options.final_validation_limit
             : s.options.final_evaluation_limit;
}

// True if the state changed.
bool AdvanceFinishing(State& s, Job& job) {
  const ProgressRecord& progress = job.progress;
  if (!progress.validated_final) {
    if (job.validating_since == kNever) job.validating_since = s.now;
    const Duration limit = LastValidationLimit(s, job);
    const bool given_up = s.now >= job.validating_since + limit;
    if (progress.validate_version != kNoVersion && !given_up) {
      if (!progress.validators.empty() || SpareEvaluates(job) || job.occupied_islands() == 0) {
        return false;
      }
      ChooseValidators(s, job);
      return progress.validate_version == kNoVersion;
    }
    if (given_up && progress.validate_version != kNoVersion) {
      s.Log(job.id(), Severity::kWarning,
            absl::StrCat("the validation of version ", job.progress.version, " timed out after ",
                         Seconds(limit), " s"));
    }
    job.EditProgress().validated_final = true;
    RetryServersNow(s, job);
    return true;
  }
  const bool saved = std::all_of(
      job.rounds.links.begin(), job.rounds.links.end(),
      [&](const auto& entry) { return entry.second.snapshot_version >= job.progress.version; });
  if (!saved) return false;
  StopJob(s, job, JobState::kDone,
          absl::StrCat("all ", job.progress.tokens_committed, " ", TokenUnit(job),
                       " are committed in ", CountText(job.progress.version, "round")));
  return true;
}

bool WasGiven(const State& s, const JobId& id) {
  return s.FindJob(id) != nullptr || s.removed.contains(id) || s.held.contains(id) ||
         std::any_of(s.workers.begin(), s.workers.end(), [&](const auto& entry) {
           const std::vector<JobId>& held = entry.second.held;
           return std::find(held.begin(), held.end(), id) != held.end();
         });
}

// The first id from the drawn number on that was never given.
absl::StatusOr<JobId> FreeId(const State& s, const SubmitJob& request) {
  constexpr int64_t kNumbersTried = 100;
  for (int64_t i = 0; i < kNumbersTried; ++i) {
    JobId id = absl::StrCat(request.spec.name, "-", request.number + i);
    if (!WasGiven(s, id)) return id;
  }
  return absl::AbortedError(absl::StrCat("the ids from ", request.spec.name, "-", request.number,
                                         " on were given before: submit the job again"));
}

// All of it is there; its islands are vacant.
void ResumeFailed(State& s, Job& job) {
  for (auto& [name, worker] : s.workers) worker.refused.erase(job.id());
  if (job.record.shards.empty()) return s.SetState(job, JobState::kQueued, "resumed by a user");
  ProgressRecord& progress = job.EditProgress();
  progress.initializer = -1;
  progress.validators.clear();
  job.validating_since = kNever;
  job.rounds.fences_changed = true;
  for (auto& [server, link] : job.rounds.links) link.assigned = false;
  RetryServersNow(s, job);
  s.SetState(job, job.progress.version < 0 ? JobState::kInitializing : JobState::kRunning,
             "resumed by a user");
}

// Controls a job that this coordinator does not know.
absl::Status ControlOrphan(State& s, const ControlJob& request) {
  if (request.command == JobCommand::kAdopt) return Adopt(s, request.job);
  const auto orphans = Orphans(s);
  const bool known = std::any_of(orphans.begin(), orphans.end(), [&](const OrphanView& orphan) {
    return orphan.job == request.job;
  });
  if (!known) {
    return absl::NotFoundError(
        absl::StrCat("there is no job ", CleanText(request.job, 100), ": see atoll ls"));
  }
  if (request.command != JobCommand::kRemove) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", request.job, " is orphaned: take it over first, by atoll adopt ", request.job));
  }
  RemoveOrphan(s, request.job);
  return absl::OkStatus();
}

absl::Status Control(State& s, Job& job, const ControlJob& request) {
  const auto refuse = [&](absl::string_view rule) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", request.job, " is ", Name(job.progress.state), ": ", rule));
  };
  const JobState state = job.progress.state;
  if (job.record.site) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", request.job, " is what site ", job.record.site->site,
                     " trains of job ", job.spec().outer.contributes_to, ": name that one"));
  }
  switch (request.command) {
    case JobCommand::kAdopt:
      return job.progress.outdated.empty()
                 ? refuse("only an orphaned or outdated job can be adopted")
                 : Adopt(s, request.job);
    case JobCommand::kPause:
      if (state != JobState::kRunning) return refuse("only a running job can be paused");
      s.SetState(job, JobState::kPaused, "paused by a user");
      break;
    case JobCommand::kResume:
      if (!job.progress.outdated.empty()) return refuse(OutdatedText(job));
      if (state == JobState::kPaused) {
        s.SetState(job, JobState::kRunning, "resumed by a user");
      } else if (state == JobState::kFailed) {
        ResumeFailed(s, job);
      } else {
        return refuse("only a job that is paused or has failed can be resumed");
      }
      break;
    case JobCommand::kNoteExport:
      if (request.version < 0 || request.version > job.progress.version) {
        return refuse(
            absl::StrCat("version ", request.version, " is not one of its committed versions"));
      }
      if (request.version > job.progress.exported_version) {
        job.EditProgress().exported_version = request.version;
      }
      break;
    case JobCommand::kRefill:
      return RefillShards(s, job, request.server);
    case JobCommand::kRemove:
      if (!job.ended() && request.force) {
        StopJob(s, job, JobState::kCancelled, "cancelled by a user who removes it");
      }
      if (!job.ended()) {
        return refuse("only a job that has ended can be removed: cancel it first, or add --force");
      }
      RemoveTheJob(s, job);
      break;
    case JobCommand::kCancel:
      if (job.ended()) return refuse("it has ended already");
      StopJob(s, job, JobState::kCancelled, "cancelled by a user");
      break;
  }
  return absl::OkStatus();
}

}  // namespace

void StopJob(State& s, Job& job, JobState state, const std::string& reason) {
  s.SetState(job, state, reason);
  StopWorkers(s, job, reason);
  ReleaseSpareFrom(s, job, reason);
  job.planning.clear();
  job.switches.clear();
  job.called.clear();
  job.rounds.window.reset();
  job.rounds.collecting.reset();
  const auto contributions = job.rounds.contributions;
  for (const auto& [id, record] : contributions) {
    job.ledger->Return(id);
    job.rounds.EraseContribution(id);
    for (const auto& [server, link] : job.rounds.links) {
      s.SendToServer(server, DropContributions{job.id(), {id}, "the job has ended"});
    }
  }
  for (const auto& [id, island] : std::map(job.islands)) {
    job.ledger->Release(id);
    if (island.incarnation == 0) continue;
    IslandRecord& record = job.EditIsland(id);
    NoteSteps(s, record, /*lost=*/false);
    record.incarnation = 0;
    record.followers.clear();
    record.ready = false;
    job.vacant_since[id] = s.now;
    job.ErasePlan(id);
    record.reason = absl::StrCat("the job is ", Name(state));
  }
  RetryServersNow(s, job);
}

int64_t ComputeSequenceBudget(const JobSpec& spec) {
  const int64_t length = spec.data.sequence_length;
  return (spec.schedule.train_tokens + length - 1) / length;
}

void OnSubmit(State& s, const SubmitJob& request) {
  Reply reply{request.request_id, Validate(request.spec), ""};
  int64_t open = 0;
  std::as_const(s.jobs).ForEachLive(
      [&](const Job& job) { open += !job.ended() && !job.record.site; });
  if (reply.status.ok() && open >= s.options.max_jobs) {
    reply.status = absl::ResourceExhaustedError(
        absl::StrCat(open, " jobs have not ended, the coordinator keeps at most ",
                     s.options.max_jobs, ": cancel some or wait"));
  }
  if (reply.status.ok()) reply.status = CheckOrigin(s, request.spec);
  absl::StatusOr<JobId> id = FreeId(s, request);
  reply.status.Update(id.status());
  if (reply.status.ok()) {
    const int64_t number = s.jobs.next_number();
    Job& job = s.jobs.Add(number, *id);
    JobRecord& record = job.EditRecord();
    record.job = *std::move(id);
    record.number = number;
    record.spec = request.spec;
    record.owner = CleanText(request.owner, 256);
    job.EditProgress().job = record.job;
    job.ledger = std::make_shared<Ledger>(ComputeSequenceBudget(request.spec));
    s.SetState(job, JobState::kQueued, "submitted");
    reply.job = record.job;
  }
  s.out.replies.push_back(std::move(reply));
}

void OnControl(State& s, const ControlJob& request) {
  Job* job = s.FindJob(request.job);
  const bool adopts = request.command == JobCommand::kAdopt;
  const bool orphaned =
      job == nullptr || job->record.removed || (adopts && job->record.shards.empty());
  s.out.replies.push_back({request.request_id,
                           orphaned ? ControlOrphan(s, request) : Control(s, *job, request),
                           request.job});
}

void FailJob(State& s, Job& job, const std::string& reason) {
  if (!job.ended()) StopJob(s, job, JobState::kFailed, reason);
}

void FailCrashed(State& s) {
  Job* job = s.FindJob(std::exchange(s.crashed, ""));
  if (job == nullptr || job->record.removed) return;
  FailJob(s, *job,
          "the coordinator crashed while it handled this job: its log says where; report that, and "
          "resume the job with a coordinator in which it is mended");
}

bool AdvanceJob(State& s, Job& job) {
  const ProgressRecord& progress = job.progress;
  if (job.stale()) return !job.record.site && RebuildIfWhole(s, job);
  switch (progress.state) {
    case JobState::kPreparing:
      return AdvancePreparing(s, job);
    case JobState::kInitializing:
      if (FailIfRefused(s, job)) return true;
      if (job.progress.version >= 0) {
        s.SetState(job, JobState::kRunning,
                   job.record.site ? "its servers have the parameters"
                                   : "the initial weights are committed");
        return true;
      }
      if (IsBranching(job)) {
        // Once it is decided, nothing more comes from there.
        const absl::Status origin =
            job.decided_version() == kNoVersion ? CheckOrigin(s, job.spec()) : absl::OkStatus();
        if (!origin.ok()) {
          FailJob(s, job, std::string(origin.message()));
          return true;
        }
      } else if (progress.initializer < 0 && !job.record.site) {
        Start(s, job);
      }
      return AdmitLateWorkers(s, job);
    case JobState::kRunning:
    case JobState::kPaused:
      if (FailIfRefused(s, job)) return true;
      if (!job.record.site && job.ledger->Count(LedgerUse::kCommitted) == job.ledger->budget() &&
          job.decided_version() == job.progress.version) {
        s.SetState(job, JobState::kFinishing, "all tokens are committed");
        job.called.clear();  // its islands validate, which is short
        return true;
      }
      return AdmitLateWorkers(s, job);
    case JobState::kFinishing:
      return AdvanceFinishing(s, job);
    default:
      return false;
  }
}

Instant NextJobDeadline(const State& s, const Job& job) {
  // No window of a stale job closes, and no validation ends, until the job is known whole.
  if (job.stale()) {
    return std::min({NextServerRetry(s, job), NextSiteJobDeadline(s, job), NextCallDeadline(job)});
  }
  Instant next =
      std::min({NextServerRetry(s, job), NextPlanDeadline(s, job), NextMoveDeadline(s, job),
                NextFailoverDeadline(s, job), NextSiteJobDeadline(s, job),
                NextExchangeDeadline(s, job), NextCallDeadline(job), NextSpareDeadline(s, job)});
  // NextMoveDeadline has that of a round which is held for shards that move.
  const bool held = job.moving.held_since && HoldsForMoves(s, job);
  if (!held) next = std::min(next, WindowDeadline(job, job.rounds));
  if (job.progress.state == JobState::kFinishing && !job.progress.validated_final) {
    if (job.validating_since != kNever) {
      next = std::min(next, job.validating_since + LastValidationLimit(s, job));
    }
  }
  if (job.progress.state == JobState::kPreparing) {
    next = std::min({next, PreparingDeadline(s, job), GroupingDeadline(s, job)});
  }
  return next;
}

std::string WaitingFor(const State& s, const Job& job) {
  if (!job.progress.outdated.empty()) return OutdatedText(job);
  if (job.progress.restored) return RestoredText(s, job);
  switch (job.progress.state) {
    case JobState::kQueued:
    case JobState::kPreparing:
      return job.waiting_for;
    case JobState::kInitializing:
    case JobState::kRunning:
    case JobState::kFinishing: {
      const std::string servers = MissingServers(s, job);
      if (!servers.empty() && !job.replicas().joining.empty()) {
        return absl::StrCat(MovesText(job), "; ", servers);
      }
      if (!servers.empty()) return servers;
      const int64_t needed = job.spec().outer.min_islands;
      const int64_t islands = TrainingIslands(s, job);
      if (job.progress.state != JobState::kFinishing && islands < needed) {
        return absl::StrCat("waiting for islands: ", needed, " needed, ", islands, " with a worker",
                            RefusedBy(s, job), job.waiting_for);
      }
      const std::string plans = MissingPlans(s, job);
      if (!plans.empty()) return plans;
      std::string reason = "waiting for the last validation";
      if (job.progress.state != JobState::kFinishing) {
        reason = RoundReason(s, job, job.rounds);
      } else if (job.progress.validated_final) {
        reason = "waiting for the parameter servers' last snapshots";
      }
      return reason + ServerTroubles(job);
    }
    default:
      return "";
  }
}

}  // namespace atl::coord
