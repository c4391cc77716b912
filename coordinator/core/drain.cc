#include "coordinator/core/drain.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "coordinator/core/islands/island_members.h"
#include "coordinator/core/rounds/site_jobs.h"
#include "coordinator/core/shards/servers.h"
#include "coordinator/core/stalls.h"

namespace atl::coord {
namespace {

absl::StatusOr<MemberId> FindNamed(const State& s, const std::string& name) {
  absl::string_view rest = name;
  const bool worker_only = absl::ConsumePrefix(&rest, "worker/");
  const bool server_only = !worker_only && absl::ConsumePrefix(&rest, "paramserver/");
  const NodeId id(rest);
  const bool worker = !server_only && s.workers.contains(id);
  const bool server = !worker_only && s.servers.contains(id);
  if (worker && server) {
    return absl::InvalidArgumentError(absl::StrCat("both a worker and a parameter server have the ",
                                                   "name ", id, ": write worker/", id,
                                                   " or paramserver/", id));
  }
  if (!worker && !server) {
    const char* kind = worker_only   ? "worker"
                       : server_only ? "parameter server"
                                     : "worker or parameter server";
    return absl::NotFoundError(absl::StrCat(
        "there is no ", kind, " ", CleanText(std::string(rest), 100), ": see atoll status"));
  }
  return MemberId{worker ? MemberKind::kWorker : MemberKind::kServer, id};
}

void DrainWorker(State& s, Worker& worker) {
  if (!worker.record.draining) {
    s.drained_workers.erase(worker.record.name);
    return;
  }
  s.drained_workers.insert(worker.record.name);
  s.SetCandidate(worker, "");
}

// Returns whether there is data that its island has leased, a contribution of it that is not
// decided, or steps that it has not said to be pushed. `waits`: also if the contribution is
// complete, so that the round has it without the island, and if no island of the job trains.
bool HasWork(const State& s, const Job& job, const IslandRecord& island, const Worker& leader,
             bool waits) {
  if (job.progress.state == JobState::kPaused) return false;
  if (!leader.has_beaten) return true;  // it has not said yet
  if (leader.progress && leader.progress->unpushed_steps > 0) return true;
  // In a job of too few islands it trains on no more data before a round that is not decided.
  const bool idles = !waits && TrainingIslands(s, job) < job.spec().outer.min_islands;
  if (!idles && job.ledger->Leased(island.island) > 0) return true;
  return std::any_of(
      job.rounds.contributions.begin(), job.rounds.contributions.end(), [&](const auto& entry) {
        const std::vector<ContributionId>& complete = job.rounds.complete;
        return entry.first.island == island.island && entry.first.generation == island.generation &&
               !entry.second.dropped &&
               (waits ||
                std::find(complete.begin(), complete.end(), entry.first) == complete.end());
      });
}

// Lets the called islands go that have pushed what they trained, and those that will not: data that
// they leased is free again. True if any was.
bool ReleaseCalled(State& s, Job& job) {
  bool changed = false;
  for (const auto& [id, call] : std::map(job.called)) {
    const IslandRecord& island = job.islands.at(id);
    const Worker* leader = s.FindWorker(island.worker);
    if (island.incarnation != 0) {
      const bool there = leader != nullptr && leader->attached;
      // The round may wait for an island that is paused for want of this one's workers.
      const bool done = there && !HasWork(s, job, island, *leader, /*waits=*/false);
      const bool stuck = IsStalled(job, id) || s.now >= call.since + kCalledIslandLimit;
      if (!done && !stuck) continue;
      LoseIsland(s, job, id,
                 {done ? call.reason : absl::StrCat(call.reason, ", and makes no progress"),
                  /*left=*/true});
      // None of its workers is about to return: another one may have the island at once.
      job.vacant_since[id] = s.now - s.options.vacant_island_grace;
      s.Touch(job, id);
      changed = true;
    }
    job.called.erase(id);
  }
  return changed;
}

// Describes what it still has; empty: nothing.
std::string ServerRest(const State& s, const NodeId& name) {
  std::string jobs;
  for (const int64_t number : ListJobsOn(s, name)) {
    const Job& job = *s.jobs.Find(number);
    if (!job.HoldsShards(name) && !job.replicas().leaving.contains(name)) continue;
    absl::StrAppend(&jobs, jobs.empty() ? "" : ", ", job.id(),
                    job.ended() ? " (ended: export it, then atoll rm)" : "");
  }
  return jobs.empty() ? "" : absl::StrCat("it still holds shards of ", jobs);
}

std::string WorkerRest(const State& s, const Worker& worker) {
  const auto assignment = s.FindAssignment(worker);
  if (assignment.job != nullptr && assignment.leads) {
    const bool alone = assignment.job->islands.at(assignment.island).followers.empty();
    return absl::StrCat(alone ? "it trains on the data that it has leased of "
                              : "another worker is to lead its island of ",
                        assignment.job->id());
  }
  if (assignment.job != nullptr || worker.following) {
    return absl::StrCat("it still serves an island of ",
                        assignment.job != nullptr ? assignment.job->id() : worker.following->job);
  }
  if (worker.progress) return absl::StrCat("it is to stop ", worker.progress->job);
  return "";
}

// `rest`: what it still has; empty: nothing.
DrainProgress MakeProgress(const Member& member, const std::string& rest, absl::string_view does) {
  if (!member.record.draining) return {};
  if (!rest.empty()) return {absl::StrCat("draining: ", rest)};
  return {absl::StrCat("drained: it ", does, " nothing and can be stopped"), /*drained=*/true};
}

}  // namespace

absl::Status SetDraining(State& s, const std::string& name, bool drain) {
  const absl::StatusOr<MemberId> found = FindNamed(s, name);
  if (!found.ok()) return found.status();
  MemberRecord& record = s.FindMember(*found)->record;
  if (record.draining == drain) return absl::OkStatus();
  record.draining = drain;
  s.dirty_members.insert(*found);
  const bool worker = record.kind == MemberKind::kWorker;
  if (worker) DrainWorker(s, *s.FindWorker(found->name));
  s.jobs.ForEachLive([&](Job& job) {
    if (!worker) {
      job.moving.plan_again_at = s.now;
      job.moving.balanced_at.reset();
    }
    s.Touch(job);
  });
  s.Log("", Severity::kInfo,
        absl::StrCat(worker ? "worker " : "parameter server ", record.name,
                     drain    ? worker ? " is drained: it leaves its island and gets no work"
                                       : " is drained: its shards go to other servers"
                     : worker ? " gets work again"
                              : " takes shards again"));
  return absl::OkStatus();
}

bool AdvanceDrains(State& s, Job& job) {
  if (!job.active()) return false;
  bool changed = ReleaseCalled(s, job);
  if (job.stale()) return changed;
  for (const NodeId& name : s.drained_workers) {
    const State::Assignment assignment = s.FindAssignment(name);
    const Worker& worker = *s.FindWorker(name);
    if (assignment.job != &job || !worker.attached) continue;
    const IslandRecord& island = job.islands.at(assignment.island);
    if (assignment.leads &&
        (!island.followers.empty() || HasWork(s, job, island, worker, /*waits=*/true)))
      continue;
    s.Touch(job, assignment.island);
    LoseWorker(s, assignment, name, {"it is drained"});
    changed = true;
  }
  return changed;
}

Instant NextCallDeadline(const Job& job) {
  Instant next = kNever;
  for (const auto& [id, call] : job.called) next = std::min(next, call.since + kCalledIslandLimit);
  return next;
}

bool IsRunningOut(const State& s, const Job& job, const IslandRecord& island) {
  return (island.followers.empty() && s.drained_workers.contains(island.worker)) ||
         job.called.contains(island.island);
}

DrainProgress DescribeDrain(const State& s, const Worker& worker) {
  return MakeProgress(worker, WorkerRest(s, worker), "runs");
}

DrainProgress DescribeDrain(const State& s, const Server& server) {
  return MakeProgress(server, ServerRest(s, server.record.name), "holds");
}

}  // namespace atl::coord
