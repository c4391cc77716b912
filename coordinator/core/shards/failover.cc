#include "coordinator/core/shards/failover.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/shards/moves.h"
#include "coordinator/core/shards/server_holdings.h"

namespace atl::coord {
namespace {

constexpr size_t kNamedMost = 8;  // shards, in human-readable text

// The server is there and has the shard at the newest decided version, though it may lack others.
bool Has(const State& s, const Job& job, const NodeId& server, ShardId shard) {
  const auto found = job.rounds.links.find(server);
  if (found == job.rounds.links.end()) return false;
  const ServerLink& link = found->second;
  if (link.known) return true;
  const Server* member = s.FindServer(server);
  return member != nullptr && member->attached && !link.ahead && !link.lacking.empty() &&
         !link.lacking.contains(shard) && link.version == job.decided_version();
}

// Calls what(shard, other) for the shards of the server that another one holds, too.
template <class Do>
void ForEachHeldTwice(const Job& job, const NodeId& server, const Do& what) {
  for (const ShardId id : job.ShardsOn(server)) {
    const ShardDescriptor& shard = job.shard(id);
    if (const ShardReplica* other = FindOtherHolder(shard, server)) what(shard, *other);
  }
}

// Shards of the server that another one has.
std::set<ShardId> ListRedundant(const State& s, const Job& job, const NodeId& server) {
  std::set<ShardId> redundant;
  ForEachHeldTwice(job, server, [&](const ShardDescriptor& shard, const ShardReplica& other) {
    if (Has(s, job, other.server, shard.shard)) redundant.insert(shard.shard);
  });
  return redundant;
}

bool IsLost(const State& s, const NodeId& server, const ServerLink& link) {
  if (link.known || link.ahead) return false;
  const Server* member = s.FindServer(server);
  if (member == nullptr) return false;
  if (member->attached) return !link.problem.empty();
  return s.now - member->detached_at >= s.options.copy_grace;
}

// Standbys of these shards that are active on the server become active in its place. True if there
// were any.
bool ActivateStandbys(Job& job, const NodeId& server, const std::set<ShardId>& shards) {
  bool changed = false;
  for (const ShardId id : shards) {
    if (GetActiveServer(job.shard(id)) != server) continue;
    ShardDescriptor& shard = job.EditRecord().shards[static_cast<size_t>(id)];
    std::swap(FindReplica(shard, ReplicaRole::kStandby)->role, shard.replicas.front().role);
    SortByRole(shard);
    changed = true;
  }
  if (changed) ++job.placement_revision;
  return changed;
}

// Drops the server as a holder of the shards, and what was to join them.
void Drop(State& s, Job& job, const NodeId& server, const std::set<ShardId>& shards,
          const std::string& why) {
  ActivateStandbys(job, server, shards);
  ChangePlacement(job);
  s.Log(job.id(), Severity::kWarning,
        absl::StrCat("failover from parameter server ", server, " (", why, "): copies on other ",
                     "servers take over its ", shards.size(), " shards, which have one copy until ",
                     "new ones are made"));
  OnHoldersDropped(
      s, job, DropReplicas(job, [&](const ShardDescriptor& shard, const ShardReplica& replica) {
        return shards.contains(shard.shard) &&
               (replica.role == ReplicaRole::kJoining || replica.server == server);
      }));
}

}  // namespace

bool DropLostHolders(State& s, Job& job) {
  if (job.spec().outer.shard_copies == 1) return false;
  for (const auto& [server, link] : job.rounds.links) {
    if (!IsLost(s, server, link)) continue;
    const std::set<ShardId> shards = ListRedundant(s, job, server);
    if (job.active() && !shards.empty()) {
      const std::string why = link.problem.empty() ? s.FindServer(server)->reason : link.problem;
      Drop(s, job, NodeId(server), shards, why);
      return true;
    }
    // A job that has ended loses no copy: only the server that sends it changes.
    if (ActivateStandbys(job, server, shards)) return true;
  }
  return false;
}

void DropHolder(State& s, Job& job, const NodeId& server) {
  const std::set<ShardId> shards = ListRedundant(s, job, server);
  if (!shards.empty()) Drop(s, job, server, shards, "a user says that it has lost its shards");
}

NodeId FindUnavailableCounterpart(const State& s, const Job& job, const NodeId& server) {
  NodeId unavailable;
  ForEachHeldTwice(job, server, [&](const ShardDescriptor&, const ShardReplica& other) {
    const Server* member = s.FindServer(other.server);
    if (member != nullptr && !member->attached) unavailable = other.server;
  });
  return unavailable;
}

void ForgetStandbys(State& s, Job& job, const NodeId& server) {
  std::set<ReplicaId> standbys;
  ForEachHeldTwice(job, server, [&](const ShardDescriptor& shard, const ShardReplica&) {
    standbys.insert({shard.shard, FindReplica(shard, ReplicaRole::kStandby)->server});
  });
  if (standbys.empty()) return;
  ChangePlacement(job);
  // With those that were to replace them.
  const std::set<NodeId> servers =
      DropReplicas(job, [&](const ShardDescriptor& shard, const ShardReplica& replica) {
        return replica.role == ReplicaRole::kStandby
                   ? standbys.contains({shard.shard, replica.server})
                   : standbys.contains({shard.shard, replica.replaces});
      });
  OnHoldersDropped(s, job, servers);
  for (const NodeId& holder : servers) OnLackedShardsForgotten(s, job, holder);
}

Instant NextFailoverDeadline(const State& s, const Job& job) {
  Instant next = kNever;
  if (job.spec().outer.shard_copies == 1) return next;
  for (const auto& [server, link] : job.rounds.links) {
    const Server* member = s.FindServer(server);
    if (link.known || member == nullptr || member->attached) continue;
    const Instant lost_at = member->detached_at + s.options.copy_grace;
    if (lost_at > s.now) next = std::min(next, lost_at);
  }
  return next;
}

std::string StandbysText(const Job& job) {
  if (job.spec().outer.shard_copies == 1) return "";
  std::vector<ShardId> without;
  for (const ShardDescriptor& shard : job.record.shards) {
    if (FindReplica(shard, ReplicaRole::kStandby) == nullptr) without.push_back(shard.shard);
  }
  if (without.empty()) return "";
  const size_t named = std::min(without.size(), kNamedMost);
  return absl::StrCat(
      without.size() == 1 ? "shard " : "shards ",
      absl::StrJoin(without.begin(), without.begin() + named, ", "),
      named == without.size() ? "" : absl::StrCat(" and ", without.size() - named, " more"),
      without.size() == 1 ? " has" : " have", " one copy");
}

}  // namespace atl::coord
