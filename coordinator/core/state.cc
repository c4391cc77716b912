#include "coordinator/core/state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/utf8.h"

namespace atl::coord {

bool Job::stale() const {
  if (record.removed) return false;  // its servers delete it, however far it was
  return !progress.outdated.empty() || progress.restored ||
         std::any_of(rounds.links.begin(), rounds.links.end(),
                     [](const auto& entry) { return entry.second.ahead; });
}

Version Job::decided_version() const {
  const auto& decisions = rounds.decisions;
  const auto newest = std::find_if(decisions.rbegin(), decisions.rend(), [](const auto& entry) {
    return entry.second.version != kNoVersion;
  });
  return newest == decisions.rend() ? progress.version
                                    : std::max(newest->second.version, progress.version);
}

bool Job::ended() const { return HasEnded(progress.state); }

bool Job::active() const {
  return progress.state == JobState::kInitializing || progress.state == JobState::kRunning ||
         progress.state == JobState::kPaused || progress.state == JobState::kFinishing;
}

int64_t Job::occupied_islands() const {
  return std::count_if(islands.begin(), islands.end(),
                       [](const auto& entry) { return entry.second.incarnation != 0; });
}

ReplicaIndex& Job::replicas() const {
  if (index) return *index;
  index.emplace();
  ForEachReplica(record.shards, [&](const ShardDescriptor& shard, const ShardReplica& replica) {
    const NodeId& server = replica.server;
    if (IsHolder(replica)) index->held[server].push_back(shard.shard);
    if (replica.role == ReplicaRole::kActive) index->active.insert(server);
    if (replica.role == ReplicaRole::kJoining) {
      index->joining.push_back({shard.shard, server});
      index->targets.insert(server);
      index->fills = index->fills || replica.fill;
    } else if (replica.role == ReplicaRole::kLeaving) {
      int64_t& since = index->leaving[server];
      since = std::max(since, replica.since);
    }
  });
  return *index;
}

const std::vector<ShardId>& Job::ShardsOn(const NodeId& server) const {
  static const std::vector<ShardId>& none = *new std::vector<ShardId>();
  const auto held = replicas().held.find(server);
  return held == replicas().held.end() ? none : held->second;
}

int64_t Job::StagedBytes(const NodeId& server) const {
  // The initial weights always travel as fp32.
  const OuterSpec& outer = spec().outer;
  const Encoding later =
      outer.average_moments_steps > 0 ? WithMoments(outer.push_encoding) : outer.push_encoding;
  const Encoding encoding = progress.version == kNoVersion ? Encoding::kFloat32 : later;
  const auto [known, is_new] = replicas().staged_bytes.try_emplace({server, encoding}, 0);
  if (!is_new) return known->second;
  for (const ShardId shard : ShardsOn(server)) {
    known->second += EncodedBytes(encoding, record.shards[static_cast<size_t>(shard)].elements);
  }
  return known->second;
}

Member* State::FindMember(const MemberId& id) {
  if (id.kind == MemberKind::kWorker) return FindWorker(id.name);
  return FindServer(id.name);
}

const Member* State::FindMember(const MemberId& id) const {
  if (id.kind == MemberKind::kWorker) return FindWorker(id.name);
  return FindServer(id.name);
}

Member& State::AddMember(const MemberId& id) {
  Member& member = id.kind == MemberKind::kWorker ? static_cast<Member&>(workers[id.name])
                                                  : static_cast<Member&>(servers[id.name]);
  member.record.kind = id.kind;
  member.record.name = id.name;
  return member;
}

Job* State::FindJob(const JobId& id) { return jobs.Find(id); }
const Job* State::FindJob(const JobId& id) const { return jobs.Find(id); }

namespace {

// `at`: of the followers, where it was.
bool IsIn(const IslandRecord& island, const NodeId& worker, size_t at) {
  if (island.incarnation == 0) return false;
  if (at < island.followers.size() && island.followers[at].worker == worker) return true;
  return island.worker == worker ||
         std::any_of(island.followers.begin(), island.followers.end(),
                     [&](const IslandMember& follower) { return follower.worker == worker; });
}

template <class J>
State::AssignmentIn<J> AssignmentAt(J& job, IslandId id, const NodeId& worker, size_t follower) {
  const auto found = job.islands.find(id);
  if (found == job.islands.end() || !IsIn(found->second, worker, follower)) return {};
  return {&job, id, found->second.worker == worker};
}

// `find(number)`: hands the job out.
template <class J, class S, class Find>
State::AssignmentIn<J> FindAssignmentIn(S& s, const Worker& worker, Find find) {
  const NodeId& name = worker.record.name;
  const NotedAssignment& noted = worker.assigned;
  // It may have ended long ago: that opens it not.
  const Job* const known = noted.job == 0 ? nullptr : std::as_const(s.jobs).Find(noted.job);
  if (known != nullptr && known->active()) {
    // Another job may have the number of one that is removed.
    const auto assignment = AssignmentAt(*find(noted.job), noted.island, name, noted.follower);
    if (assignment.job != nullptr) return assignment;
  }
  // Since assignments were indexed, at the end of the Step before.
  State::AssignmentIn<J> changed;
  s.jobs.ForEachOpened([&](J& job) {
    if (changed.job != nullptr || !job.active()) return;
    for (const IslandId id : job.dirty.islands) {
      const auto assignment = AssignmentAt(job, id, name, 0);
      if (assignment.job == nullptr) continue;
      changed = assignment;
      return;
    }
  });
  return changed;
}

}  // namespace

State::Assignment State::FindAssignment(const Worker& worker) {
  return FindAssignmentIn<Job>(*this, worker, [&](int64_t number) { return jobs.Find(number); });
}
State::Assignment State::PeekAssignment(const Worker& worker) {
  return FindAssignmentIn<Job>(*this, worker, [&](int64_t number) { return jobs.Peek(number); });
}
State::AssignmentIn<const Job> State::FindAssignment(const Worker& worker) const {
  return FindAssignmentIn<const Job>(*this, worker,
                                     [&](int64_t number) { return jobs.Find(number); });
}
State::Assignment State::FindAssignment(const NodeId& worker) {
  const Worker* found = FindWorker(worker);
  return found == nullptr ? Assignment() : FindAssignment(*found);
}
State::AssignmentIn<const Job> State::FindAssignment(const NodeId& worker) const {
  const Worker* found = FindWorker(worker);
  return found == nullptr ? AssignmentIn<const Job>() : FindAssignment(*found);
}

void State::IndexAssignments(const Job& job, IslandId id) {
  const IslandRecord& island = job.islands.at(id);
  if (island.incarnation == 0 || !island.site.empty()) return;
  const auto note = [&](const NodeId& name, size_t follower) {
    if (Worker* worker = FindWorker(name)) worker->assigned = {job.record.number, id, follower};
  };
  note(island.worker, 0);
  for (size_t i = 0; i < island.followers.size(); ++i) note(island.followers[i].worker, i);
}

void State::SetCandidate(Worker& worker, const JobId& job) {
  worker.candidate_for = job;
  worker.prepared.reset();
  if (job.empty()) {
    candidates.erase(worker.record.name);
  } else {
    candidates.insert(worker.record.name);
    worker.candidature = NextSequence();
  }
}

void State::SetFollowing(Worker& worker, const std::optional<MemberProgress>& following) {
  const auto key = [](const MemberProgress& progress) {
    return std::pair(progress.job, progress.island);
  };
  const std::optional<MemberProgress>& before = worker.following;
  const bool same =
      before && following && before->job == following->job && before->island == following->island;
  if (before && !same) {
    const auto members = followed.find(key(*before));
    members->second.erase(worker.record.name);
    if (members->second.empty()) followed.erase(members);
  }
  if (following && !same) followed[key(*following)].insert(worker.record.name);
  worker.following = following;
}

void State::Send(const Worker& worker, ToWorkerMessage message) {
  out.to_workers.push_back(
      {worker.record.name, worker.record.incarnation, epoch, std::move(message), cluster});
}

void State::SendToServer(const NodeId& server, ToServerMessage message) {
  const Server* member = FindServer(server);
  if (member == nullptr || !member->attached) return;  // its next hello brings it up to date
  out.to_servers.push_back(
      {server, member->record.incarnation, epoch, std::move(message), cluster});
}

void State::Log(const JobId& job, Severity severity, std::string text) {
  out.persist.push_back({EventRecord{NextSequence(), job, severity, std::move(text)}, false});
}

void State::SetState(Job& job, JobState state, std::string reason) {
  ProgressRecord& progress = job.EditProgress();
  progress.state = state;
  progress.reason = CleanText(reason, 10'000);
  Log(job.id(), state == JobState::kFailed ? Severity::kError : Severity::kInfo,
      absl::StrCat(Name(state), ": ", progress.reason));
}

std::string WhoMeasures(const State& s, const std::vector<NodeId>& workers) {
  constexpr int kNamed = 3;
  int measuring = 0;
  std::string text;
  for (const NodeId& name : workers) {
    const Worker* worker = s.FindWorker(name);
    if (worker == nullptr || worker->measuring.empty() || ++measuring > kNamed) continue;
    absl::StrAppend(&text, "; ", name, " ", worker->measuring);
  }
  if (measuring > kNamed) absl::StrAppend(&text, "; so do ", measuring - kNamed, " others");
  return text;
}

std::string CleanText(const std::string& text, size_t limit_bytes) {
  std::string clean = WellFormed(text, limit_bytes);
  for (char& c : clean) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return clean;
}

}  // namespace atl::coord
