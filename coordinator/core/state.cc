#include "coordinator/core/state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/utf8.h"
#include "coordinator/core/shards/copies.h"

namespace atl::coord {

bool Job::stale() const {
  if (record.removed) return false;  // its servers delete it, however far it was
  return !progress.outdated.empty() || progress.restored ||
         std::any_of(rounds.links.begin(), rounds.links.end(),
                     [](const auto& entry) { return entry.second.ahead; });
}

bool Job::ended() const {
  return progress.state == JobState::kDone || progress.state == JobState::kFailed ||
         progress.state == JobState::kCancelled;
}

bool Job::active() const {
  return progress.state == JobState::kInitializing || progress.state == JobState::kRunning ||
         progress.state == JobState::kPaused || progress.state == JobState::kFinishing;
}

int64_t Job::occupied_islands() const {
  return std::count_if(islands.begin(), islands.end(),
                       [](const auto& entry) { return entry.second.incarnation != 0; });
}

int64_t Job::StagedBytes(const NodeId& server) const {
  // The initial weights always travel as fp32.
  const Encoding encoding =
      rounds.progress.version == kNoVersion ? Encoding::kFloat32 : spec().outer.push_encoding;
  int64_t bytes = 0;
  ForEachSlotOn(record, server, [&](SlotId, const ShardPlacement& shard) {
    bytes += EncodedBytes(encoding, shard.elements);
  });
  return bytes;
}

Member* State::FindMember(MemberKind kind, const NodeId& name) {
  auto it = members.find({kind, name});
  return it == members.end() ? nullptr : &it->second;
}

const Member* State::FindMember(MemberKind kind, const NodeId& name) const {
  return const_cast<State*>(this)->FindMember(kind, name);
}

Job* State::FindJob(const JobId& id) {
  for (auto& [number, job] : jobs) {
    if (job.id() == id) return &job;
  }
  return nullptr;
}

const Job* State::FindJob(const JobId& id) const { return const_cast<State*>(this)->FindJob(id); }

namespace {

// `at`: of the followers, where it was.
bool IsIn(const IslandRecord& island, const NodeId& worker, size_t at) {
  if (island.incarnation == 0) return false;
  if (at < island.followers.size() && island.followers[at].worker == worker) return true;
  return island.worker == worker ||
         std::any_of(island.followers.begin(), island.followers.end(),
                     [&](const IslandMember& follower) { return follower.worker == worker; });
}

}  // namespace

State::Assignment State::FindAssignment(const NodeId& worker) {
  const auto at = [&](Job& job, IslandId id, size_t follower) {
    const auto found =
        job.islands.find(id);  // another job may have the number of one that is removed
    if (found == job.islands.end() || !IsIn(found->second, worker, follower)) return Assignment{};
    return Assignment{&job, id, found->second.worker == worker};
  };
  if (const auto noted = assignments.find(worker); noted != assignments.end()) {
    const auto job = jobs.find(noted->second.job);
    if (job != jobs.end() && job->second.active()) {
      const Assignment assignment = at(job->second, noted->second.island, noted->second.follower);
      if (assignment.job != nullptr) return assignment;
    }
  }
  // Since assignments were indexed, at the end of the Step before.
  for (auto& [number, job] : jobs) {
    if (!job.active()) continue;
    for (const IslandId id : job.dirty.islands) {
      const Assignment assignment = at(job, id, 0);
      if (assignment.job != nullptr) return assignment;
    }
  }
  return {};
}

void State::IndexAssignments(const Job& job, IslandId id) {
  const IslandRecord& island = job.islands.at(id);
  if (island.incarnation == 0 || !island.site.empty()) return;
  assignments[island.worker] = {job.record.number, id, 0};
  for (size_t i = 0; i < island.followers.size(); ++i) {
    assignments[island.followers[i].worker] = {job.record.number, id, i};
  }
}

void State::SetCandidate(Member& worker, const JobId& job) {
  worker.candidate_for = job;
  worker.prepared.reset();
  if (job.empty()) {
    candidates.erase(worker.record.name);
  } else {
    candidates.insert(worker.record.name);
  }
}

void State::SetFollowing(Member& worker, const std::optional<MemberProgress>& following) {
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

void State::Send(const Member& worker, ToWorkerMessage message) {
  out.to_workers.push_back(
      {worker.record.name, worker.record.incarnation, epoch, std::move(message), cluster});
}

void State::SendToServer(const NodeId& server, ToServerMessage message) {
  const Member* member = FindMember(MemberKind::kServer, server);
  if (member == nullptr || !member->attached) return;  // its next hello brings it up to date
  out.to_servers.push_back(
      {server, member->record.incarnation, epoch, std::move(message), cluster});
}

void State::Log(const JobId& job, Severity severity, std::string text) {
  out.persist.push_back({EventRecord{NextSequence(), job, severity, std::move(text)}, false});
}

void State::SetState(Job& job, JobState state, std::string reason) {
  JobProgress& progress = job.EditProgress();
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
    const Member* worker = s.FindMember(MemberKind::kWorker, name);
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
