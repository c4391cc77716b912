#include "coordinator/core/removal.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "coordinator/core/flush.h"
#include "coordinator/core/shards/moves.h"
#include "coordinator/core/shards/servers.h"

namespace atl::coord {

namespace {

constexpr size_t kRemovedKept = 4096;

// Who holds something of it, now or when it comes back, deletes that.
void MarkRemoved(State& s, const JobId& job) {
  const auto put = [&](const JobId& id, int64_t sequence, bool erase) {
    s.out.persist.push_back({RemovedRecord{id, sequence}, erase});
  };
  put(job, s.removed[job] = s.NextSequence(), false);
  if (s.removed.size() > kRemovedKept) {
    const auto oldest =
        std::min_element(s.removed.begin(), s.removed.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    put(oldest->first, oldest->second, true);
    s.removed.erase(oldest);
  }
  for (auto& [name, worker] : s.workers) {
    if (worker.attached) s.Send(worker, ForgetJob{job});
    std::erase(worker.held, job);
  }
}

}  // namespace

void RemoveOrphan(State& s, const JobId& job, absl::string_view how) {
  s.Log("", Severity::kInfo, absl::StrCat("the orphaned job ", job, " ", how));
  MarkRemoved(s, job);
  const auto held = s.held.find(job);
  if (held != s.held.end()) {
    for (const auto& [server, what] : held->second) s.SendToServer(server, RemoveJob{job});
    s.held.erase(held);
  }
  RemoveOrphansBelow(s, job);
}

void RemoveOrphansBelow(State& s, const JobId& above, absl::string_view how) {
  std::vector<JobId> below;
  for (const auto& [id, holders] : s.held) {
    const bool is_below = std::any_of(holders.begin(), holders.end(), [&](const auto& entry) {
      const std::optional<JobDescribed>& described = entry.second.described;
      return described && described->assignment.definition.spec.outer.contributes_to == above;
    });
    if (is_below && s.FindJob(id) == nullptr) below.push_back(id);
  }
  for (const JobId& id : below) RemoveOrphan(s, id, how);
}

void RemoveTheJob(State& s, Job& job, absl::string_view how) {
  ATOLL_CHECK(job.ended() && !job.record.removed, job.id());
  MarkRemoved(s, job.id());
  RemoveOrphansBelow(s, job.id());
  s.Log("", Severity::kInfo,
        absl::StrCat("job ", job.id(), " (", Name(job.progress.state), ": ", job.progress.reason,
                     ") ", how));
  std::vector<StoreWrite>& writes = s.out.persist;
  if (!job.record.site) {
    // Positions that this very Step has freed are still in the store.
    for (StoreWrite& write : job.ledger->TakeChanges(job.id())) writes.push_back(std::move(write));
  }
  std::vector<StoreRecord> parts;
  AppendParts(job, &parts);
  for (StoreRecord& part : parts) writes.push_back({std::move(part), true});
  for (const ContributionId& id : job.rounds.dirty.contributions) {
    writes.push_back({ContributionRecord{.job = job.id(), .contribution = id}, true});
  }
  for (IslandId id : job.dirty.plans) writes.push_back({PlanRecord{job.id(), id, {}}, true});

  Job kept;
  kept.record = std::move(job.record);
  kept.record.removed = true;
  kept.record.facts.reset();
  kept.progress = std::move(job.progress);
  kept.rounds.links = std::move(job.rounds.links);
  // Who is to receive some, has yet to delete what it had, or has an old copy.
  if (const auto held = s.held.find(kept.id()); held != s.held.end()) {
    for (const auto& [server, what] : held->second) kept.rounds.links[server];
    s.held.erase(held);
  }
  ForEachReplica(kept.record.shards, [&](const ShardDescriptor&, ShardReplica& replica) {
    kept.rounds.links[replica.server];
    if (replica.role == ReplicaRole::kJoining) replica.role = ReplicaRole::kLeaving;
  });
  for (auto& [server, link] : kept.rounds.links) {
    const Server* member = s.FindServer(server);
    link.known = link.known || (member != nullptr && member->attached);
    link.problem.clear();  // a hello that comes twice would be one of a server with a problem
  }
  kept.bytes_held = std::move(job.bytes_held);
  kept.dirty.record = kept.dirty.progress = true;
  job = std::move(kept);
  RetryServersNow(s, job);
}

void OnJobRemoved(State& s, Server& server, const JobRemoved& message) {
  Job* job = s.FindJob(message.job);
  if (job == nullptr) return;
  if (!job->record.removed) return OnReleased(*job, server.record.name, message.placement);
  if (message.placement > 0) return;  // it answers an earlier request
  if (job->rounds.links.erase(server.record.name) == 0) return;
  const auto its = [&](const ShardReplica& r) { return r.server == server.record.name; };
  for (ShardDescriptor& shard : job->EditRecord().shards) std::erase_if(shard.replicas, its);
}

void ForgetRemoved(State& s) {
  std::vector<int64_t> removed;
  std::as_const(s.jobs).ForEachLive([&](const Job& job) {
    if (job.record.removed && job.rounds.links.empty()) removed.push_back(job.record.number);
  });
  for (const int64_t number : removed) {
    Job& job = *s.jobs.Find(number);
    s.out.persist.push_back({job.record, true});
    s.out.persist.push_back({job.progress, true});
    s.outdated.erase(number);
    s.unplaced.erase(number);
    ForgetServerUse(s, job);
    s.jobs.Erase(number, JobId(job.id()));
  }
}

}  // namespace atl::coord
