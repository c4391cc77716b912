#include "coordinator/core/reconcile.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/check.h"
#include "coordinator/core/drain.h"
#include "coordinator/core/islands/islands.h"
#include "coordinator/core/islands/plans.h"
#include "coordinator/core/islands/switching.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/members.h"
#include "coordinator/core/preparation.h"
#include "coordinator/core/removal.h"
#include "coordinator/core/rounds/rounds.h"
#include "coordinator/core/rounds/site_exchange.h"
#include "coordinator/core/rounds/site_jobs.h"
#include "coordinator/core/shards/servers.h"

namespace atl::coord {
namespace {

constexpr Duration kGatheredOfEach = std::chrono::microseconds(50);
constexpr Duration kTouchedOfEach = std::chrono::microseconds(10);

struct AffectedByWorker {
  template <typename Message>
  Affected operator()(const Message&) const {
    return Affected::kTouched;
  }
  Affected operator()(const WorkerHello&) const { return Affected::kMembers; }
  Affected operator()(const JobPrepared&) const { return Affected::kMembers; }
  Affected operator()(const JobRefused&) const { return Affected::kMembers; }
  Affected operator()(const Leaving&) const { return Affected::kEverything; }
};

struct AffectedByServer {
  template <typename Message>
  Affected operator()(const Message&) const {
    return Affected::kEverything;
  }
  Affected operator()(const ServerHeartbeat&) const { return Affected::kTouched; }
  Affected operator()(const ShardsAssigned&) const { return Affected::kTouched; }
  Affected operator()(const PushStaged&) const { return Affected::kTouched; }
  Affected operator()(const ShardsReceived&) const { return Affected::kTouched; }
  Affected operator()(const BaseFetched&) const { return Affected::kTouched; }
  Affected operator()(const Statistics&) const { return Affected::kTouched; }
  Affected operator()(const RoundApplied&) const { return Affected::kTouched; }
};

struct AffectedByEvent {
  template <typename Event>
  Affected operator()(const Event&) const {
    return Affected::kEverything;
  }
  Affected operator()(const FromWorker& e) const {
    return std::visit(AffectedByWorker(), e.message);
  }
  Affected operator()(const FromServer& e) const {
    return std::visit(AffectedByServer(), e.message);
  }
  Affected operator()(const WorkerConnectionLost&) const { return Affected::kMembers; }
  Affected operator()(const PlanMade&) const { return Affected::kTouched; }
  Affected operator()(const Stalled&) const { return Affected::kTouched; }
  Affected operator()(const Tick&) const { return Affected::kTouched; }
};

// True if the job is another one to the scheduler: it has ended, begun, or let workers in or out.
bool Advance(State& s, Job& job) {
  constexpr int kMostTurns = 1000;  // each turn decides, drops or admits something
  bool advanced = false;
  for (int turn = 0;; ++turn) {
    ATOLL_CHECK(turn < kMostTurns, "job ", job.id(), " does not reach a fixed point");
    if (AdvanceDrains(s, job) || AdvanceSiteJobs(s, job) || AdvanceJob(s, job)) {
      advanced = true;
    } else if (!AdvanceRound(s, job, job.rounds)) {
      return advanced;
    }
  }
}

void Order(State& s, Job& job) {
  job.touched.insert(job.dirty.islands.begin(), job.dirty.islands.end());
  job.touched.insert(job.dirty.plans.begin(), job.dirty.plans.end());
  if (job.active() && !job.stale()) {
    AdvanceSwitches(s, job);
    AdvancePlans(s, job);
    RefreshOrders(s, job);
  }
  PumpServers(s, job);
  if (job.record.site) PumpExchange(s, job);
  job.touched.clear();
  job.deadline = NextJobDeadline(s, job);
  job.reconciled_state = job.progress.state;
}

void ReconcileAll(State& s) {
  s.reconcile_by = kNever;
  ExpireMembers(s);
  Schedule(s);
  for (auto& [number, job] : s.jobs) Advance(s, job);
  Schedule(s);  // a job may have ended and freed its workers
  for (auto& [number, job] : s.jobs) {
    for (const auto& [id, island] : job.islands) job.touched.insert(id);
    Order(s, job);
  }
  PumpCandidates(s);
  ForgetRemoved(s);
  s.member_deadline = NextMemberDeadline(s);
}

// A deadline of the job's own.
void ReconcileDue(State& s) {
  for (auto& [number, job] : s.jobs) {
    if (s.now < job.deadline) continue;
    for (const auto& [id, island] : job.islands) s.Touch(job, id);
    s.Touch(job);
  }
}

bool IsChanged(const Job& job) {
  const Dirty& dirty = job.dirty;
  const RoundsDirty& rounds = job.rounds.dirty;
  return dirty.record || dirty.progress || !dirty.islands.empty() || !dirty.plans.empty() ||
         rounds.progress || !rounds.contributions.empty() || !rounds.decisions.empty();
}

// What has changed counts as touched.
void NoteTouched(State& s) {
  for (auto& [number, job] : s.jobs) {
    if (!IsChanged(job)) continue;
    s.touched.insert(number);
    job.touched.insert(job.dirty.islands.begin(), job.dirty.islands.end());
    job.touched.insert(job.dirty.plans.begin(), job.dirty.plans.end());
  }
}

Instant NextDeadlineOfJobs(const State& s) {
  Instant next = kNever;
  for (const auto& [number, job] : s.jobs) next = std::min(next, job.deadline);
  return next;
}

// False: there is more to look at than these jobs.
bool ReconcileTouched(State& s) {
  for (const int64_t number : s.touched) {
    const auto found = s.jobs.find(number);
    if (found == s.jobs.end()) return false;
    Job& job = found->second;
    if (Advance(s, job) || job.progress.state != job.reconciled_state) return false;
    Order(s, job);
  }
  return true;
}

}  // namespace

Affected AffectedBy(const CoordinatorEvent& event) { return std::visit(AffectedByEvent(), event); }

Instant Reconcile(State& s, Affected affected) {
  const auto members = static_cast<int64_t>(s.members.size());
  const bool gathers = s.HasManyMembers();
  bool all =
      affected == Affected::kEverything || s.now >= std::min(s.reconcile_by, s.member_deadline);
  if (affected == Affected::kMembers && !all) {
    all = !gathers;
    if (gathers) s.reconcile_by = std::min(s.reconcile_by, s.now + kGatheredOfEach * members);
  }
  NoteTouched(s);
  TouchRelatedJobs(s);
  if (!s.touched.empty()) {
    s.touched_by =
        std::min(s.touched_by, s.now + (gathers ? kTouchedOfEach * members : Duration()));
  }
  const bool due = s.now >= s.touched_by || s.now >= NextDeadlineOfJobs(s);
  if (!all && due) {
    ReconcileDue(s);
    all = !ReconcileTouched(s);
  }
  if (all) ReconcileAll(s);
  if (all || due) {
    s.touched_by = kNever;
    s.touched.clear();
  }
  return std::min({s.reconcile_by, s.member_deadline, s.touched_by, NextDeadlineOfJobs(s)});
}

}  // namespace atl::coord
