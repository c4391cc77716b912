#include "coordinator/core/reconcile.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "common/crash_scope.h"
#include "coordinator/core/drain.h"
#include "coordinator/core/islands/islands.h"
#include "coordinator/core/islands/plans.h"
#include "coordinator/core/islands/switching.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/members.h"
#include "coordinator/core/removal.h"
#include "coordinator/core/rounds/rounds.h"
#include "coordinator/core/rounds/site_exchange.h"
#include "coordinator/core/rounds/site_jobs.h"
#include "coordinator/core/shards/servers.h"
#include "coordinator/core/sharing/scheduling.h"
#include "coordinator/core/sharing/spares.h"

namespace atl::coord {
namespace {

constexpr Duration kGatheredOfEach = std::chrono::microseconds(50);
constexpr Duration kTouchedOfEach = std::chrono::microseconds(10);

template <class... Kinds, class Variant>
bool HoldsAny(const Variant& value) {
  return (std::holds_alternative<Kinds>(value) || ...);
}

constexpr Duration kBetweenTurns = std::chrono::milliseconds(1);

// True if the job is another one to the scheduler: it has ended, begun, or let workers in or out.
bool Advance(State& s, Job& job) {
  constexpr int kMostTurns = 1000;  // in one Step; each turn decides, drops or admits something
  const CrashScope scope(job.id());
  bool advanced = false;
  for (int turn = 0;; ++turn) {
    if (turn == kMostTurns) {
      s.unfinished.insert(job.record.number);  // the next Step goes on
      return advanced;
    }
    if (AdvanceDrains(s, job) || AdvanceSiteJobs(s, job) || AdvanceJob(s, job) ||
        AdvanceSpare(s, job)) {
      advanced = true;
    } else if (!AdvanceRound(s, job, job.rounds)) {
      return advanced;
    }
  }
}

void SetDeadline(State& s, Job& job, Instant deadline) {
  const int64_t number = job.record.number;
  if (deadline == job.deadline && s.job_deadlines.contains({deadline, number})) return;
  s.job_deadlines.erase({job.deadline, number});
  job.deadline = deadline;
  if (deadline != kNever) s.job_deadlines.insert({deadline, number});
}

void Order(State& s, Job& job) {
  const CrashScope scope(job.id());
  job.touched.insert(job.dirty.islands.begin(), job.dirty.islands.end());
  job.touched.insert(job.dirty.plans.begin(), job.dirty.plans.end());
  if (job.active() && !job.stale()) {
    AdvanceSwitches(s, job);
    AdvancePlans(s, job);
    RefreshOrders(s, job);
    RefreshSpareOrder(s, job);
  }
  PumpServers(s, job);
  PumpExchange(s, job);
  job.touched.clear();
  SetDeadline(s, job, NextJobDeadline(s, job));
  job.reconciled_state = job.progress.state;
  // A job of a site ends for good with the one above.
  const bool may_archive = job.ended() && !job.stale() && !job.record.removed && !job.record.site;
  if (may_archive && job.deadline == kNever) s.jobs.Archive(job.record.number);
}

void ReconcileAll(State& s) {
  s.reconcile_by = kNever;
  s.lost_member = false;
  Schedule(s);
  s.jobs.ForEachLive([&](Job& job) { Advance(s, job); });
  Schedule(s);  // a job may have ended and freed its workers
  s.jobs.ForEachLive([&](Job& job) {
    for (const auto& [id, island] : job.islands) job.touched.insert(id);
    Order(s, job);
  });
  PumpCandidates(s);
  ForgetRemoved(s);
}

// A deadline of the job's own.
void ReconcileDue(State& s) {
  for (const auto& [deadline, number] : s.job_deadlines) {
    if (s.now < deadline) break;
    Job* job = s.jobs.Find(number);
    if (job != nullptr && job->deadline == deadline) s.TouchWhole(*job);
  }
}

bool IsChanged(const Job& job) {
  const Dirty& dirty = job.dirty;
  const RoundsDirty& rounds = job.rounds.dirty;
  return dirty.record || dirty.progress || !dirty.islands.empty() || !dirty.plans.empty() ||
         !rounds.contributions.empty() || !rounds.decisions.empty();
}

// Counts changed jobs as touched.
void NoteTouched(State& s) {
  s.jobs.ForEachOpened([&](Job& job) {
    if (!IsChanged(job)) return;
    s.Touch(job);
    job.touched.insert(job.dirty.islands.begin(), job.dirty.islands.end());
    job.touched.insert(job.dirty.plans.begin(), job.dirty.plans.end());
  });
}

Instant NextDeadlineOfJobs(State& s) {
  while (!s.job_deadlines.empty()) {
    const auto [deadline, number] = *s.job_deadlines.begin();
    const Job* job = std::as_const(s.jobs).Find(number);
    if (job != nullptr && job->deadline == deadline) return deadline;
    s.job_deadlines.erase(s.job_deadlines.begin());
  }
  return kNever;
}

// False: there is more to look at than these jobs.
bool ReconcileTouched(State& s) {
  TouchRelatedJobs(s);
  ReconcileDue(s);
  // Idle workers may take the place of one that is lost.
  if (std::exchange(s.lost_member, false)) {
    if (s.unplaced.empty()) ScheduleTouched(s);
    // Others' workers may, once it is unlikely that the lost one comes back.
    if (s.shares) s.reconcile_by = std::min(s.reconcile_by, s.now + s.options.vacant_island_grace);
  }
  for (const int64_t number : s.touched) {
    Job* job = s.jobs.Find(number);
    if (job == nullptr) return false;
    if (Advance(s, *job) || job->progress.state != job->reconciled_state) return false;
    Order(s, *job);
  }
  return true;
}

}  // namespace

Affected AffectedBy(const CoordinatorEvent& event) {
  if (const auto* from = std::get_if<FromWorker>(&event)) {
    return HoldsAny<WorkerHello, JobPrepared, JobRefused>(from->message) ? Affected::kMembers
                                                                         : Affected::kTouched;
  }
  if (const auto* from = std::get_if<FromServer>(&event)) {
    return HoldsAny<ServerHello, ServerFault, JobRemoved, JobDescribed>(from->message)
               ? Affected::kEverything
               : Affected::kTouched;
  }
  return HoldsAny<ConnectionLost, PlanMade, Stalled, Tick>(event) ? Affected::kTouched
                                                                  : Affected::kEverything;
}

Instant Reconcile(State& s, Affected affected) {
  const int64_t members = s.CountMembers();
  const bool gathers = s.HasManyMembers();
  ExpireMembers(s);
  // A job that waits for members may have fewer to wait for, and others no more for it.
  if (s.lost_member && !s.unplaced.empty()) affected = std::max(affected, Affected::kMembers);
  bool all = affected == Affected::kEverything || s.now >= s.reconcile_by;
  if (affected == Affected::kMembers && !all) {
    all = !gathers;
    if (gathers) s.reconcile_by = std::min(s.reconcile_by, s.now + kGatheredOfEach * members);
  }
  NoteTouched(s);
  if (!s.touched.empty()) {
    s.touched_by =
        std::min(s.touched_by, s.now + (gathers ? kTouchedOfEach * members : Duration()));
  }
  const bool due = s.now >= s.touched_by || s.now >= NextDeadlineOfJobs(s);
  if (!all && due) all = !ReconcileTouched(s);
  if (all) ReconcileAll(s);
  if (all || due) {
    s.touched_by = s.unfinished.empty() ? kNever : s.now + kBetweenTurns;
    s.touched = std::exchange(s.unfinished, {});
  }
  return std::min({s.reconcile_by, NextMemberDeadline(s), s.touched_by, NextDeadlineOfJobs(s)});
}

}  // namespace atl::coord
