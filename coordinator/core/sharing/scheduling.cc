#include "coordinator/core/sharing/scheduling.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/islands/grouping.h"
#include "coordinator/core/islands/island_members.h"
#include "coordinator/core/islands/islands.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/preparation.h"
#include "coordinator/core/rounds/round_length.h"
#include "coordinator/core/rounds/site_data.h"
#include "coordinator/core/rounds/site_jobs.h"
#include "coordinator/core/sharing/divide.h"
#include "coordinator/core/sharing/spares.h"

namespace atl::coord {
namespace {

// "; left out: w3: layout.exclude names it", of attached workers.
std::string LeftOut(const State& s, const Job& job) {
  constexpr int64_t kNamed = 8;
  std::string text;
  int64_t count = 0;
  for (const auto& [name, worker] : s.workers) {
    const std::string why = worker.attached ? WhyLeftOut(s, job, worker) : "";
    if (why.empty() || ++count > kNamed) continue;
    absl::StrAppend(&text, text.empty() ? "; left out: " : "; ", name, ": ", why);
  }
  if (count > kNamed) absl::StrAppend(&text, "; and ", count - kNamed, " more");
  return text;
}

// Workers without work, in the order of names; found once for all jobs.
using IdleList = std::vector<Worker*>;
IdleList ListIdle(State& s) {
  IdleList idle;
  for (auto& [name, worker] : s.workers) {
    if (worker.attached && !worker.leaves() && worker.candidate_for.empty() &&
        std::as_const(s).FindAssignment(worker).job == nullptr) {
      idle.push_back(&worker);
    }
  }
  return idle;
}

// Returns whether the job may have the worker, if no other one has it.
bool CanUse(const State& s, const Job& job, const Worker& worker) {
  return worker.attached && !worker.leaves() && !worker.refused.contains(job.id()) &&
         WhyLeftOut(s, job, worker).empty();
}

// The same of a worker of an island, which may not be known.
bool CanUse(const State& s, const Job& job, const NodeId& name) {
  const Worker* worker = s.FindWorker(name);
  return worker != nullptr && CanUse(s, job, *worker);
}

// The same of one of IdleList, which another job may have by now.
bool IsIdleFor(const State& s, const Worker& worker, const Job& job) {
  return worker.candidate_for.empty() && CanUse(s, job, worker);
}

void RefuseWithoutData(State& s, Job& job, const IdleList& workers) {
  for (Worker* worker : workers) {
    if (!IsIdleFor(s, *worker, job)) continue;
    const std::string why = WhyNoData(job.spec(), *worker);
    if (!why.empty()) RefuseWorker(s, job, *worker, why);
  }
}

void MakeCandidate(State& s, const Job& job, Worker& worker) {
  const std::string reason = absl::StrCat("job ", job.id(), " has it for an island");
  if (worker.spare_for == job.id()) {
    DropSpare(s, worker, reason);  // what it has opened is of use
  } else {
    ReleaseSpare(s, worker, reason);
  }
  s.SetCandidate(worker, job.id());
  worker.requested_at = worker.request_again_at = s.now;
}

void TakeIdleWorkers(State& s, Job& job, const IdleList& workers) {
  if (workers.empty()) return;
  IslandCapacity capacity(s, job);
  for (Worker* worker : workers) {
    if (!IsIdleFor(s, *worker, job) || !capacity.Take(*worker)) continue;
    MakeCandidate(s, job, *worker);
  }
}

// A job that waits for workers has none of a site's to wait for.
void ScheduleSiteJob(State& s, Job& job, const IdleList& workers) {
  if (job.record.site && job.active() && !job.stale()) TakeIdleWorkers(s, job, workers);
}

// All that is divided, with what divide.h has to know of it.
struct Sharing {
  // Where a unit is: an island of a job, a candidate (island -1), or idle (no job).
  struct Place {
    Job* job = nullptr;
    IslandId island = -1;
  };
  std::vector<Job*> jobs;
  std::vector<SharingJob> sharing;
  std::vector<SharingUnit> units;
  std::vector<Place> places;               // by unit
  std::vector<IslandCapacity> capacities;  // by job
  int described = 0;                       // waiting jobs, with what keeps each worker from them

  void Add(const State& s, const Place& place, std::optional<size_t> job,
           std::vector<NodeId> workers) {
    int64_t devices = 0;
    for (const NodeId& name : workers) {
      const Worker* worker = s.FindWorker(name);
      devices += worker == nullptr ? 1 : std::max<int64_t>(1, std::ssize(worker->devices));
    }
    units.push_back({std::move(workers), job, devices});
    places.push_back(place);
  }
};

// Returns when the island's worker, which was lost, is not expected any more; nothing: it is not
// now. Meanwhile no other job's workers take its place.
std::optional<Instant> AwaitedUntil(const State& s, const Job& job, IslandId id) {
  const auto since = job.vacant_since.find(id);
  if (since == job.vacant_since.end()) return std::nullopt;
  const Instant until = since->second + s.options.vacant_island_grace;
  return until > s.now ? std::optional(until) : std::nullopt;
}

double CountRoundsLeft(const Job& job) {
  const int64_t of_island = std::max<int64_t>(1, GetStepsPerRound(job)) *
                            std::max<int64_t>(1, job.spec().inner.batch_sequences);
  return static_cast<double>(job.ledger->free()) /
         (static_cast<double>(of_island) *
          static_cast<double>(std::max<int64_t>(1, job.occupied_islands())));
}

// Estimates the arithmetic that the job has left, as parameters that a token uses times tokens; 0:
// its layers are not known yet.
double EstimateWorkLeft(const Job& job) {
  if (!job.record.facts) return 0;
  const int64_t used = job.record.facts->model.experts_per_token;
  double elements = 0;
  for (const LayerSize& layer : job.record.facts->layers) {
    const int64_t idle = std::max<int64_t>(0, layer.experts - used);
    elements += static_cast<double>(layer.elements - idle * layer.expert_elements);
  }
  return elements * static_cast<double>(job.ledger->free()) *
         static_cast<double>(job.spec().data.sequence_length);
}

// Adds a job that can have workers, and those that it has.
void AddJob(State& s, Job& job, const std::vector<NodeId>& candidates, Sharing& all) {
  const size_t at = all.jobs.size();
  const ScheduleSpec& schedule = job.spec().schedule;
  SharingJob sharing{.id = job.id(),
                     .priority = schedule.priority,
                     .weight = static_cast<double>(std::max<int64_t>(1, schedule.weight)),
                     .needed = NeededWorkers(job.spec()),
                     .started = job.active(),
                     .rounds_left = CountRoundsLeft(job),
                     .work_left = EstimateWorkLeft(job),
                     .idles = job.stale(),
                     .quota = FindQuota(s.options.quotas, job.record.owner)};
  int64_t workers = 0;
  for (const auto& [id, island] : job.islands) {
    if (!island.site.empty()) continue;
    if (island.incarnation == 0) {
      if (sharing.idles) continue;
      const std::optional<Instant> until = AwaitedUntil(s, job, id);
      if (until) s.reconcile_by = std::min(s.reconcile_by, *until);
      if (until) ++sharing.away;
      continue;
    }
    std::vector<NodeId> names = {island.worker};
    for (const IslandMember& follower : island.followers) names.push_back(follower.worker);
    workers += std::ssize(names);
    all.Add(s, {&job, id}, at, std::move(names));
  }
  // An island that has lost one of its workers goes on: it is no reason to take any from others.
  if (job.active() && TrainingIslands(s, job) >= job.spec().outer.min_islands) {
    sharing.needed = std::min(sharing.needed, workers);
  }
  for (const NodeId& name : candidates) all.Add(s, {&job, -1}, at, {name});
  all.jobs.push_back(&job);
  all.sharing.push_back(std::move(sharing));
  all.capacities.emplace_back(s, job);
}

// `all.described` bounds the work: looking at all workers for each of many jobs would take long.
std::string WaitsForWorkers(const State& s, const Job& job, int64_t idle, Sharing& all) {
  constexpr int kDescribed = 16;
  if (++all.described > kDescribed) return "waiting for workers; other jobs wait before it";
  return absl::StrCat("waiting for workers: ", NeededWorkers(job.spec()), " needed, ", idle,
                      " idle", RefusedBy(s, job), LeftOut(s, job));
}

Sharing Collect(State& s, const IdleList& idle) {
  std::map<JobId, std::vector<NodeId>> candidates;
  for (const NodeId& name : s.candidates) {
    candidates[s.FindWorker(name)->candidate_for].push_back(name);
  }
  Sharing all;
  s.jobs.ForEachLive([&](Job& job) {
    const bool stale = job.stale();
    if (job.record.site || job.ended() || (job.progress.state == JobState::kFinishing && !stale)) {
      return job.called.clear();  // nothing is divided anew while it is so
    }
    if (stale) return AddJob(s, job, candidates[job.id()], all);
    if (!job.spec().data.sites.empty()) RefuseWithoutData(s, job, idle);
    if (job.progress.state == JobState::kQueued && !TooFewServers(s, job).empty()) {
      const int64_t there = std::count_if(idle.begin(), idle.end(), [&](const Worker* worker) {
        return IsIdleFor(s, *worker, job);
      });
      job.waiting_for = WaitsForWorkers(s, job, there, all);
      if (there >= NeededWorkers(job.spec())) job.waiting_for = TooFewServers(s, job);
      return;
    }
    AddJob(s, job, candidates[job.id()], all);
  });
  for (const Worker* worker : idle) {
    if (worker->candidate_for.empty()) all.Add(s, {}, std::nullopt, {worker->record.name});
  }
  s.shares = all.jobs.size() > 1;
  return all;
}

// "; job b-2 (priority 5) has 3", of workers that the job at `waiting` could use.
std::string WhoHasThem(const State& s, const Sharing& all, size_t waiting) {
  constexpr int kNamed = 8;
  std::map<size_t, int64_t> counts;
  for (const SharingUnit& unit : all.units) {
    if (!unit.job || *unit.job == waiting) continue;
    for (const NodeId& name : unit.workers) {
      if (CanUse(s, *all.jobs[waiting], name)) ++counts[*unit.job];
    }
  }
  std::string text;
  int named = 0;
  for (const auto& [job, count] : counts) {
    if (++named > kNamed) break;
    absl::StrAppend(&text, "; job ", all.sharing[job].id, " (priority ", all.sharing[job].priority,
                    ") has ", count);
  }
  return text;
}

// Returns until when workers are expected that have not come back since the coordinator's restart:
// until then an island that was not called before it may seem to be the one to call.
std::optional<Instant> ReattachingUntil(const State& s) {
  std::optional<Instant> until;
  for (const auto& [name, worker] : s.workers) {
    if (worker.reattach_by && *worker.reattach_by > s.now) {
      until = std::max(until.value_or(s.now), *worker.reattach_by);
    }
  }
  return until;
}

void SetCalled(State& s, Job& job, IslandId id, const std::string& reason) {
  const auto called = job.called.find(id);
  if (called != job.called.end() && called->second.reason == reason) return;
  if (called == job.called.end() && reason.empty()) return;
  s.Touch(job, id);
  if (reason.empty()) {
    job.called.erase(called);
    s.Log(job.id(), Severity::kInfo, absl::StrCat("island ", id, " stays: no job needs it now"));
    return;
  }
  if (called == job.called.end()) {
    s.Log(job.id(), Severity::kInfo,
          absl::StrCat("island ", id, " leaves when it has pushed what it has trained: ", reason));
  }
  job.called.try_emplace(id, CalledIsland{"", s.now}).first->second.reason = reason;
}

void Release(State& s, Job& job, Worker& worker, const std::string& reason) {
  s.SetCandidate(worker, "");
  SendStop<IslandOrder>(s, worker, job.id(), IslandOrder().island, job.progress.plan_generation,
                        reason);
}

void AppendQuota(const std::string& beyond, std::string& waiting_for) {
  if (!beyond.empty()) absl::StrAppend(&waiting_for, "; ", beyond);
}

// A job whose gang is complete in idle workers begins.
void ScheduleQueued(State& s, Sharing& all, const Division& division, size_t at) {
  Job& job = *all.jobs[at];
  int64_t idle = 0, leaving = 0;
  std::vector<Worker*> workers;
  for (size_t unit = 0; unit < all.units.size(); ++unit) {
    const bool own = division.shares[unit].job == at;
    for (const NodeId& name : all.units[unit].workers) {
      if (!own && all.units[unit].job) break;
      if (!CanUse(s, job, name)) continue;
      ++(all.units[unit].job ? leaving : idle);
      if (own && !all.units[unit].job) workers.push_back(s.FindWorker(name));
    }
  }
  const int64_t needed = all.sharing[at].needed;
  if (std::ssize(workers) >= needed) {
    s.SetState(job, JobState::kPreparing, "workers open the model and the data");
    for (Worker* worker : workers) MakeCandidate(s, job, *worker);
    return;
  }
  job.waiting_for = WaitsForWorkers(s, job, idle, all);
  if (leaving > 0) absl::StrAppend(&job.waiting_for, "; ", leaving, " are to leave other jobs");
  job.waiting_for += WhoHasThem(s, all, at);
  AppendQuota(division.beyond_quota[at], job.waiting_for);
}

// The workers of a job that prepares are taken from it: it waits for others.
void Unschedule(State& s, Job& job, const std::string& reason) {
  for (const NodeId& name : std::set(s.candidates)) {
    Worker& worker = *s.FindWorker(name);
    if (worker.candidate_for == job.id()) Release(s, job, worker, reason);
  }
  s.SetState(job, JobState::kQueued, absl::StrCat("its workers are taken: ", reason));
}

// Returns whether the job is left enough workers to begin.
bool KeepsGang(const Sharing& all, const Division& division, size_t at) {
  int64_t left = 0;
  for (size_t unit = 0; unit < all.units.size(); ++unit) {
    if (all.units[unit].job == at && division.shares[unit].job == at) {
      left += std::ssize(all.units[unit].workers);
    }
  }
  return left >= all.sharing[at].needed;
}

// True if candidates were taken from their jobs: they are idle now.
bool CarryOut(State& s, Sharing& all, const Division& division) {
  bool released = false;
  const std::optional<Instant> reattaching = ReattachingUntil(s);
  if (reattaching) s.reconcile_by = std::min(s.reconcile_by, *reattaching);
  for (size_t at = 0; at < all.jobs.size(); ++at) {
    Job& job = *all.jobs[at];
    if (all.sharing[at].idles) continue;
    if (job.progress.state == JobState::kQueued) {
      ScheduleQueued(s, all, division, at);
    } else if (job.active()) {
      job.waiting_for = division.whole[at] ? "" : WhoHasThem(s, all, at);
      if (!division.whole[at]) AppendQuota(division.beyond_quota[at], job.waiting_for);
    }
  }
  for (size_t unit = 0; unit < all.units.size(); ++unit) {
    const Sharing::Place& place = all.places[unit];
    const Share& share = division.shares[unit];
    const std::optional<size_t>& from = all.units[unit].job;
    const bool moves = share.job != from;
    if (place.island >= 0) {
      if (!moves || !reattaching) {
        SetCalled(s, *place.job, place.island, moves ? share.reason : "");
      }
      continue;
    }
    Worker& worker = *s.FindWorker(all.units[unit].workers.front());
    if (!moves) continue;
    if (place.job == nullptr) {
      Job& job = *all.jobs[*share.job];
      const bool started = job.progress.state != JobState::kQueued;
      if (started && worker.candidate_for.empty()) MakeCandidate(s, job, worker);
    } else if (worker.candidate_for == place.job->id()) {
      released = true;
      const bool prepares = place.job->progress.state == JobState::kPreparing;
      if (prepares && !all.sharing[*from].idles && !KeepsGang(all, division, *from)) {
        Unschedule(s, *place.job, share.reason);
      } else {
        Release(s, *place.job, worker, share.reason);
      }
    }
  }
  return released;
}

class Capacities : public Rooms {
 public:
  // Both outlive it.
  Capacities(const State& s, std::vector<IslandCapacity>& by_job) : s_(s), by_job_(by_job) {}
  bool Take(size_t job, const NodeId& name) override {
    const Worker* worker = s_.FindWorker(name);
    return worker != nullptr && by_job_[job].Take(*worker);
  }
  void Save(size_t job) override { saved_.emplace(by_job_[job]); }
  void Restore(size_t job) override { by_job_[job].Restore(*saved_); }

 private:
  const State& s_;
  std::vector<IslandCapacity>& by_job_;
  std::optional<IslandCapacity> saved_;
};

// True if there is more to divide.
bool DivideOnce(State& s) {
  const IdleList idle = ListIdle(s);
  s.jobs.ForEachLive([&](Job& job) { ScheduleSiteJob(s, job, idle); });
  Sharing all = Collect(s, idle);
  Capacities rooms(s, all.capacities);
  const Division division = Divide(
      all.sharing, s.options.quotas, all.units,
      [&](size_t at, const NodeId& name) {
        const Job& job = *all.jobs[at];
        return CanUse(s, job, name) && (job.spec().data.sites.empty() ||
                                        WhyNoData(job.spec(), *s.FindWorker(name)).empty());
      },
      rooms);
  return CarryOut(s, all, division);
}

}  // namespace

std::string WhyLeftOut(const State& s, const Job& job, const Worker& worker) {
  const std::string& at = GetWorkerSite(worker);
  if (!job.record.site && job.spec().outer.site.rounds > 0) {
    const Job* site = FindSiteJob(s, job, at);
    if (site != nullptr) return absl::StrCat("its site trains as job ", site->id());
  }
  return WhyNoPart(job.spec().layout, worker.record.name, at, worker.devices.size());
}

void Schedule(State& s) {
  if (DivideOnce(s)) DivideOnce(s);
  const IdleList idle = ListIdle(s);
  if (idle.empty()) return;
  s.jobs.ForEachLive([&](Job& job) { TakeSpare(s, job, idle); });
}

void ScheduleTouched(State& s) {
  const IdleList workers = ListIdle(s);
  if (workers.empty()) return;
  for (const int64_t number : s.touched) {
    Job* job = s.jobs.Find(number);
    if (job == nullptr) continue;
    const bool takes = job->progress.state != JobState::kFinishing && job->active();
    if (takes && !job->stale()) TakeIdleWorkers(s, *job, workers);
    TakeSpare(s, *job, workers);
  }
  PumpCandidates(s);
}

}  // namespace atl::coord
