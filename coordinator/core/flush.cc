#include "coordinator/core/flush.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/crash_scope.h"
#include "common/protocol/outer_optimizer.h"
#include "common/status.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/members.h"
#include "coordinator/core/rounds/signed_rounds.h"
#include "coordinator/core/rounds/site_jobs.h"
#include "coordinator/core/shards/servers.h"

namespace atl::coord {
namespace {

// Writes what a map of records has under a key; nothing: deletes the record of `key`.
template <class Records, class Key, class Record>
void FlushOne(const Records& records, const Key& at, const Record& key,
              std::vector<StoreWrite>& writes) {
  const auto found = records.find(at);
  const bool deleted = found == records.end();
  writes.push_back({deleted ? key : Record(found->second), deleted});
}

void FlushRounds(const JobId& job, Rounds& rounds, std::vector<StoreWrite>& writes) {
  const RoundsDirty dirty = std::exchange(rounds.dirty, RoundsDirty());
  for (const ContributionId& id : dirty.contributions) {
    FlushOne(rounds.contributions, id, ContributionRecord{.job = job, .contribution = id}, writes);
  }
  for (int64_t round : dirty.decisions) {
    FlushOne(rounds.decisions, round, DecisionRecord{.job = job, .round = round}, writes);
  }
  for (IslandId id : dirty.penalties) {
    writes.push_back({PenaltyRecord{job, id, rounds.penalties.at(id)}, false});
  }
}

void FlushJob(State& s, Job& job, std::vector<StoreWrite>& writes) {
  SealDecisions(job);
  const Dirty dirty = std::exchange(job.dirty, Dirty());
  for (const IslandId id : dirty.islands) {
    s.IndexAssignments(job, id);
    job.plan_is_whole.erase(id);
  }
  for (const IslandId id : dirty.plans) job.plan_is_whole.erase(id);
  if (dirty.record) {
    writes.push_back({job.record, false});
    NoteServerUse(s, job);
  }
  if (dirty.progress) writes.push_back({job.progress, false});
  for (IslandId id : dirty.islands) writes.push_back({job.islands.at(id), false});
  FlushRounds(job.id(), job.rounds, writes);
  for (IslandId id : dirty.plans) {
    auto it = job.plans.find(id);
    const bool deleted = it == job.plans.end();
    writes.push_back({PlanRecord{job.id(), id, deleted ? IslandPlan() : it->second}, deleted});
  }
  if (job.record.site) return;
  for (StoreWrite& write : job.ledger->TakeChanges(job.id())) writes.push_back(std::move(write));
}

absl::Status Damaged(const StoreRecord& record, absl::string_view why) {
  return absl::DataLossError(
      absl::StrCat("the coordinator's store is damaged: ", MakeRecordKey(record), ": ", why));
}

struct Loader {
  State& s;
  bool jobs_pass;  // JobRecords and members first: the others belong to them
  const StoreRecord& record;

  absl::Status operator()(const EpochRecord& r) const {
    if (!r.cluster.empty() && r.cluster != s.cluster) {
      return Damaged(record, absl::StrCat("cluster ", r.cluster, " is not ", s.cluster));
    }
    s.opened_at = r.sequence;
    s.restored = r.restored;
    s.sequence = std::max(s.sequence, r.sequence);
    if (r.epoch < s.epoch) return absl::OkStatus();
    return Damaged(record, absl::StrCat("epoch ", r.epoch, " is not before ", s.epoch));
  }
  absl::Status operator()(const MemberRecord& r) const {
    if (!jobs_pass) return absl::OkStatus();
    Member& member = s.AddMember({r.kind, r.name});
    member.record = r;
    member.detached_at = s.now;
    if (r.draining && r.kind == MemberKind::kWorker) s.drained_workers.insert(r.name);
    return absl::OkStatus();
  }
  absl::Status operator()(const JobRecord& r) const {
    if (!jobs_pass) return absl::OkStatus();
    if (std::as_const(s.jobs).Find(r.number) != nullptr) {
      return Damaged(record, "two jobs of one number");
    }
    Job& job = s.jobs.Add(r.number, r.job);
    job.recovered = true;
    job.record = r;
    job.ledger = std::make_shared<Ledger>(ComputeSequenceBudget(r.spec));
    return absl::OkStatus();
  }
  absl::Status operator()(const ProgressRecord& r) const {
    return Into(r.job, [&](Job& job) {
      job.progress = r;
      return true;
    });
  }
  absl::Status operator()(const IslandRecord& r) const {
    return Into(r.job, [&](Job& job) { return job.islands.emplace(r.island, r).second; });
  }
  absl::Status operator()(const ContributionRecord& r) const {
    return Into(r.job, [&](Job& job) {
      return job.rounds.contributions.emplace(r.contribution, r).second;
    });
  }
  absl::Status operator()(const DecisionRecord& r) const {
    return Into(r.job, [&](Job& job) { return job.rounds.decisions.emplace(r.round, r).second; });
  }
  absl::Status operator()(const PenaltyRecord& r) const {
    return Into(r.job,
                [&](Job& job) { return job.rounds.penalties.emplace(r.island, r.state).second; });
  }
  absl::Status operator()(const LedgerRecord& r) const {
    return Into(r.job, [&](Job& job) { return job.ledger->Restore(r); });
  }
  absl::Status operator()(const PlanRecord& r) const {
    return Into(r.job, [&](Job& job) { return job.plans.emplace(r.island, r.plan).second; });
  }
  absl::Status operator()(const RemovedRecord& r) const {
    s.removed[r.job] = r.sequence;
    return absl::OkStatus();
  }
  absl::Status operator()(const EventRecord&) const { return absl::OkStatus(); }
  absl::Status operator()(const LinkRecord&) const { return absl::OkStatus(); }    // the shell's
  absl::Status operator()(const DeviceRecord&) const { return absl::OkStatus(); }  // likewise

  template <typename Add>
  absl::Status Into(const JobId& id, Add add) const {
    if (jobs_pass) return absl::OkStatus();
    Job* job = s.FindJob(id);
    if (job == nullptr) return Damaged(record, "it belongs to no job");
    return add(*job) ? absl::OkStatus() : Damaged(record, "it contradicts another record");
  }
};

// Checks that what the job's shards and their replicas name exists.
absl::Status CheckShards(const State& s, const Job& job) {
  const StoreRecord record = job.record;
  if (job.record.removed) return absl::OkStatus();
  ShardId next = 0;
  for (const ShardDescriptor& shard : job.record.shards) {
    if (shard.shard != next++) return Damaged(record, "its shards are not numbered in order");
    const bool is_of_model = job.record.facts && shard.elements > 0 &&
                             shard.layer < std::ssize(job.record.facts->layers);
    if (!is_of_model) return Damaged(record, "it has a shard of no layer");
    const auto count = [&](ReplicaRole role) {
      return std::count_if(shard.replicas.begin(), shard.replicas.end(),
                           [&](const ShardReplica& replica) { return replica.role == role; });
    };
    const bool is_placed = count(ReplicaRole::kActive) == 1 && count(ReplicaRole::kStandby) < 2 &&
                           shard.replicas.front().role == ReplicaRole::kActive;
    if (!is_placed) return Damaged(record, "it has a shard that no server is active for");
    for (const ShardReplica& replica : shard.replicas) {
      if (s.servers.contains(replica.server)) continue;
      return Damaged(record, "a server that is not known has a shard of it");
    }
  }
  return absl::OkStatus();
}

// Checks that what its progress and its records name exists.
absl::Status CheckIslands(const State& s, const Job& job) {
  if (job.record.removed) return absl::OkStatus();  // with its islands
  const StoreRecord progress = job.progress;
  const auto is_island = [&](IslandId id) { return job.islands.contains(id); };
  if (job.progress.initializer >= 0 && !is_island(job.progress.initializer)) {
    return Damaged(progress, "no island is to make the initial weights");
  }
  if (!std::all_of(job.progress.validators.begin(), job.progress.validators.end(), is_island)) {
    return Damaged(progress, "no island is to validate");
  }
  for (const auto& [id, contribution] : job.rounds.contributions) {
    if (!is_island(id.island)) return Damaged(contribution, "it has no island");
  }
  for (const auto& [id, plan] : job.plans) {
    auto island = job.islands.find(id);
    if (island == job.islands.end() || island->second.plan_number < plan.number) {
      return Damaged(PlanRecord{job.id(), id, plan}, "no island has made it");
    }
  }
  const Job* above = job.record.site ? JobAbove(s, job) : nullptr;
  if (above != nullptr && !above->islands.contains(job.record.site->island)) {
    return Damaged(job.record, "the job above has no island of its site");
  }
  return absl::OkStatus();
}

absl::Status CheckJob(const State& s, const Job& job) {
  const StoreRecord record = job.record;
  if (job.progress.job != job.id()) return Damaged(record, "the job has no progress record");
  if (job.record.removed && !job.ended()) return Damaged(record, "it was removed while it ran");
  const bool no_islands = job.islands.empty() && !job.record.site;
  if (job.active() && (!job.record.facts || job.record.shards.empty() || no_islands)) {
    return Damaged(record, "the job runs without facts, shards or islands");
  }
  if (!ValidateOuterChoice(job.spec().outer).ok()) {
    return Damaged(record, "it has an outer optimizer or merge that there is not");
  }
  if (const absl::Status counts = ValidateCounts(job.spec()); !counts.ok()) {
    return Damaged(record, counts.message());
  }
  if (const auto initial = ParseInitialJob(job.spec().model.initial_job); !initial.ok()) {
    return Damaged(record, initial.status().message());
  }
  ATOLL_RETURN_IF_ERROR(CheckShards(s, job));
  return CheckIslands(s, job);
}

void Resume(State& s, Job& job) {
  ForEachReplica(job.record.shards, [&](const ShardDescriptor&, const ShardReplica& replica) {
    if (IsHolder(replica) || job.record.removed) job.rounds.links[replica.server];
  });
  const bool over = job.progress.state == JobState::kDone || job.record.removed ||
                    job.progress.state == JobState::kCancelled;
  if (s.restored && !over && !job.rounds.links.empty()) job.EditProgress().restored = true;
  for (const auto& [id, island] : job.islands) {
    if (island.incarnation == 0) {
      job.vacant_since[id] = s.now;
      continue;
    }
    const auto expect = [&](const NodeId& name) {
      Worker* worker = s.FindWorker(name);
      if (worker == nullptr) return;
      worker->reattach_by = s.now + s.options.reattach_grace;
      NoteMemberDeadline(s, *worker);
      worker->reason = "not back since the coordinator's restart";
    };
    expect(island.worker);
    for (const IslandMember& follower : island.followers) expect(follower.worker);
    // A leader that hands over and a source of a state transfer may be none of these any more.
    expect(island.takes_over_from);
    auto plan = job.plans.find(id);
    if (plan == job.plans.end()) continue;
    for (const IslandMember& member : plan->second.members) expect(member.worker);
  }
}

}  // namespace

void Flush(State& s) {
  std::vector<StoreWrite>& writes = s.out.persist;
  const auto is_line = [](const StoreWrite& write) {
    return std::holds_alternative<EventRecord>(write.record);
  };
  for (const MemberId& id : s.dirty_members) writes.push_back({s.FindMember(id)->record, false});
  s.dirty_members.clear();
  // A site's job changes the ledger of the job above.
  std::vector<JobId> above;
  s.jobs.ForEachOpened([&](const Job& job) {
    if (job.record.site) above.push_back(job.spec().outer.contributes_to);
  });
  for (const JobId& id : above) s.jobs.Find(id);
  s.jobs.ForEachOpened([&](Job& job) {
    FlushJob(s, job, writes);
    const int64_t number = job.record.number;
    const auto list = [&](std::set<int64_t>& jobs, bool is_in) {
      if (is_in) {
        jobs.insert(number);
      } else {
        jobs.erase(number);
      }
    };
    list(s.outdated, !job.progress.outdated.empty());
    list(s.unplaced, !job.record.removed && (job.progress.state == JobState::kQueued ||
                                             job.progress.state == JobState::kPreparing));
  });
  s.jobs.Close();
  if (!s.epoch_dirty && std::all_of(writes.begin(), writes.end(), is_line)) return;
  s.epoch_dirty = false;
  ++s.sequence;
  writes.push_back({EpochRecord{s.epoch, s.cluster, s.sequence}, false});
}

void AppendParts(const Job& job, std::vector<StoreRecord>* records) {
  for (const auto& [id, island] : job.islands) records->push_back(island);
  for (const auto& [id, contribution] : job.rounds.contributions) records->push_back(contribution);
  for (const auto& [round, decision] : job.rounds.decisions) records->push_back(decision);
  for (const auto& [id, penalty] : job.rounds.penalties) {
    records->push_back(PenaltyRecord{job.id(), id, penalty});
  }
  for (const auto& [id, plan] : job.plans) records->push_back(PlanRecord{job.id(), id, plan});
  if (job.record.site) return;
  for (LedgerRecord& record : job.ledger->Records(job.id())) records->push_back(std::move(record));
}

std::vector<StoreRecord> AllRecords(const State& s) {
  std::vector<StoreRecord> records;
  if (!s.epoch_dirty) records.push_back(EpochRecord{s.epoch, s.cluster, s.sequence});
  for (const auto& [job, sequence] : s.removed) records.push_back(RemovedRecord{job, sequence});
  s.ForEachMember([&](const Member& member) { records.push_back(member.record); });
  for (const auto& [number, job] : s.jobs) {
    records.push_back(job.record);
    records.push_back(job.progress);
    AppendParts(job, &records);
  }
  std::vector<std::pair<std::string, size_t>> order;
  for (size_t i = 0; i < records.size(); ++i) order.emplace_back(MakeRecordKey(records[i]), i);
  std::sort(order.begin(), order.end());
  std::vector<StoreRecord> sorted;
  for (const auto& [key, i] : order) sorted.push_back(std::move(records[i]));
  return sorted;
}

// ----------------------------------------------------------------------------------- recovery ----

absl::Status Load(State& s, const std::vector<StoreRecord>& records) {
  for (const bool jobs_pass : {true, false}) {
    for (const StoreRecord& record : records) {
      const absl::Status status = std::visit(Loader{s, jobs_pass, record}, record);
      if (!status.ok()) return status;
    }
  }
  for (auto& [number, job] : s.jobs) {
    const CrashScope scope(job.id());
    const absl::Status status = CheckJob(s, job);
    if (!status.ok()) return status;
    for (const auto& [id, island] : job.islands) {
      if (island.incarnation == 0 || !island.site.empty()) continue;
      const bool known =
          s.workers.contains(island.worker) &&
          std::all_of(island.followers.begin(), island.followers.end(),
                      [&](const IslandMember& m) { return s.workers.contains(m.worker); });
      if (!known) return Damaged(island, "its worker is not known");
    }
    if (const Job* above = job.record.site ? JobAbove(s, job) : nullptr) job.ledger = above->ledger;
    Resume(s, job);
    NoteServerUse(s, job);
    for (const auto& [id, island] : job.islands) s.IndexAssignments(job, id);
  }
  return absl::OkStatus();
}

}  // namespace atl::coord
