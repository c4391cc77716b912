#include "coordinator/history/round_log.h"

#include <algorithm>
#include <utility>

namespace atl {
namespace {

constexpr size_t kGrantedMax = 65536;  // of a job; later pushes have no beginning

// The kind of the event that evicted a member.
const char* EvictionReason(const CoordinatorEvent& event) {
  if (std::holds_alternative<ConnectionLost>(event)) return "connection_lost";
  if (std::holds_alternative<Tick>(event)) return "silent";
  if (const auto* from = std::get_if<FromWorker>(&event)) {
    if (std::holds_alternative<WorkerHello>(from->message)) return "restarted";
  }
  return "other";
}

}  // namespace

RoundLog::Job* RoundLog::Find(const JobId& job) {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : &found->second;
}

std::vector<JobEvent> RoundLog::Recover(const std::vector<StoreRecord>& records) {
  std::vector<JobEvent> events;
  for (const StoreRecord& record : records) {
    const auto* job = std::get_if<JobRecord>(&record);
    if (job != nullptr && !job->removed) jobs_[job->job];
  }
  for (const StoreRecord& record : records) {
    if (const auto* island = std::get_if<IslandRecord>(&record)) {
      Job* job = Find(island->job);
      if (job != nullptr)
        job->islands[island->island] = {island->incarnation, island->evictions,
                                        island->members_lost};
    } else if (const auto* progress = std::get_if<ProgressRecord>(&record)) {
      Job* job = Find(progress->job);
      if (job == nullptr) continue;
      job->state = progress->state;
      events.push_back({progress->job, 0, JobProgressed{progress}});
    } else if (const auto* decision = std::get_if<DecisionRecord>(&record)) {
      Job* job = Find(decision->job);
      if (job != nullptr) job->last_round = std::max(job->last_round, decision->round);
    }
  }
  return events;
}

std::vector<JobEvent> RoundLog::Read(int64_t unix_ms, const CoordinatorEvent& event,
                                     const std::vector<StoreWrite>& writes) {
  std::vector<JobEvent> events;
  const auto add = [&](const JobId& job, auto what) {
    events.push_back({job, unix_ms, std::move(what)});
  };
  for (const StoreWrite& write : writes) {
    const auto* job = std::get_if<JobRecord>(&write.record);
    if (job == nullptr) continue;
    if (!write.erase && !job->removed) {
      jobs_[job->job];
      add(job->job, JobStored{job});
    } else if (jobs_.erase(job->job) > 0) {
      add(job->job, RemovedJob());
    }
  }
  for (const StoreWrite& write : writes) {
    if (write.erase) continue;
    if (const auto* granted = std::get_if<ContributionRecord>(&write.record)) {
      Job* job = Find(granted->job);
      if (job == nullptr) continue;
      if (granted->dropped) {
        job->granted_ms.erase(granted->contribution);
      } else if (job->granted_ms.size() < kGrantedMax) {
        job->granted_ms.try_emplace(granted->contribution, unix_ms);
      }
    } else if (const auto* decision = std::get_if<DecisionRecord>(&write.record)) {
      Job* job = Find(decision->job);
      if (job == nullptr || decision->round <= job->last_round) continue;  // stored again
      job->last_round = decision->round;
      RoundDecided decided{decision, {}};
      for (const DecisionParticipant& p : decision->participants) {
        const auto granted = job->granted_ms.extract(p.contribution);
        decided.granted_ms.push_back(granted.empty() ? 0 : granted.mapped());
      }
      for (const ContributionId& dropped : decision->dropped) job->granted_ms.erase(dropped);
      add(decision->job, std::move(decided));
    } else if (const auto* progress = std::get_if<ProgressRecord>(&write.record)) {
      Job* job = Find(progress->job);
      if (job == nullptr) continue;
      add(progress->job, JobProgressed{progress, job->state != progress->state});
      job->state = progress->state;
    } else if (const auto* record = std::get_if<IslandRecord>(&write.record)) {
      Job* job = Find(record->job);
      if (job == nullptr) continue;
      Island& island = job->islands[record->island];
      const int64_t evictions = record->evictions - island.evictions;
      if (evictions > 0) add(record->job, WorkersEvicted{evictions, EvictionReason(event)});
      if (island.leader != record->incarnation) add(record->job, LeaderChanged());
      const auto lost =
          static_cast<size_t>(std::max<int64_t>(0, record->members_lost - island.members_lost));
      if (lost > 0) {
        const auto first =
            record->lost.end() - static_cast<ptrdiff_t>(std::min(lost, record->lost.size()));
        add(record->job, MembersLost{record->island, {first, record->lost.end()}});
      }
      island = {record->incarnation, record->evictions, record->members_lost};
    }
  }
  return events;
}

}  // namespace atl
