// The replicas of a job's shards (docs/decisions/moving-shards.md). Pure.
//
// One server of each shard is active: islands push to it and pull from it, and it reports the
// statistics. Where the job keeps two, the other server is a standby: the active one forwards the
// pushes to it, and it applies the same rounds. Replicas that join or leave hold nothing that a
// round waits for. They are in the order of their roles: the active one is the first.

#ifndef ATOLL_COORDINATOR_CORE_SHARDS_REPLICAS_H_
#define ATOLL_COORDINATOR_CORE_SHARDS_REPLICAS_H_

#include <algorithm>
#include <vector>

#include "common/protocol/control.h"
#include "coordinator/core/records.h"

namespace atl {

// Returns whether the server has the shard: it is active, or a standby.
inline bool IsHolder(const ShardReplica& replica) {
  return replica.role == ReplicaRole::kActive || replica.role == ReplicaRole::kStandby;
}

// The first replica of a ShardDescriptor, const or not, for which is(replica); null: there is none.
template <class Shard, class Is>
auto FindReplica(Shard& shard, Is is) {
  const auto found = std::find_if(shard.replicas.begin(), shard.replicas.end(), is);
  return found == shard.replicas.end() ? nullptr : &*found;
}
template <class Shard>
auto FindReplica(Shard& shard, ReplicaRole role) {
  return FindReplica(shard, [&](const ShardReplica& replica) { return replica.role == role; });
}
template <class Shard>
auto FindJoining(Shard& shard, const NodeId& server) {
  return FindReplica(shard, [&](const ShardReplica& replica) {
    return replica.role == ReplicaRole::kJoining && replica.server == server;
  });
}
template <class Shard>
auto FindHolder(Shard& shard, const NodeId& server) {
  return FindReplica(shard, [&](const ShardReplica& replica) {
    return IsHolder(replica) && replica.server == server;
  });
}
// The holder besides this server; null: there is none.
inline const ShardReplica* FindOtherHolder(const ShardDescriptor& shard, const NodeId& server) {
  return FindReplica(shard, [&](const ShardReplica& replica) {
    return IsHolder(replica) && replica.server != server;
  });
}

// JobRecord::placement counts the changes of holders, and below kChangesAPlacement those of
// settings since: a server that was not there when settings changed still holds what it held.
inline constexpr int64_t kChangesAPlacement = int64_t{1} << 20;
inline int64_t CountHolderChanges(int64_t placement) { return placement / kChangesAPlacement; }
inline int64_t NextPlacement(int64_t placement) {
  return (CountHolderChanges(placement) + 1) * kChangesAPlacement;
}

// Empty: the shard is not placed.
inline NodeId GetActiveServer(const ShardDescriptor& shard) {
  const ShardReplica* active = FindReplica(shard, ReplicaRole::kActive);
  return active == nullptr ? NodeId() : active->server;
}

// Calls what(shard, replica) for each of them.
template <class Shards, class Do>
void ForEachReplica(Shards& shards, const Do& what) {
  for (auto& shard : shards) {
    for (auto& replica : shard.replicas) what(shard, replica);
  }
}
template <class Shards, class Do>
void ForEachHolder(Shards& shards, const Do& what) {
  ForEachReplica(shards, [&](auto& shard, auto& replica) {
    if (IsHolder(replica)) what(shard, replica);
  });
}

// The server has nothing of the shard to delete any more.
inline void EraseLeaving(ShardDescriptor& shard, const NodeId& server) {
  std::erase_if(shard.replicas, [&](const ShardReplica& replica) {
    return replica.role == ReplicaRole::kLeaving && replica.server == server;
  });
}

inline void SortByRole(ShardDescriptor& shard) {
  std::stable_sort(shard.replicas.begin(), shard.replicas.end(),
                   [](const ShardReplica& a, const ShardReplica& b) { return a.role < b.role; });
}

inline OwnedShard ToOwnedShard(const ShardDescriptor& shard) {
  return {shard.shard, shard.layer, shard.elements, shard.begin, shard.expert};
}
// `replica`: null: no server's.
inline ShardPlacement ToPlacement(const ShardDescriptor& shard, const ShardReplica* replica) {
  ShardPlacement placement{shard.shard, shard.layer, shard.begin, shard.elements};
  placement.expert = shard.expert;
  if (replica == nullptr) return placement;
  placement.server = replica->server;
  placement.endpoint = replica->endpoint;
  placement.public_key = replica->public_key;
  return placement;
}
inline std::vector<ShardPlacement> ListPlacements(const std::vector<ShardDescriptor>& shards,
                                                  ReplicaRole role = ReplicaRole::kActive) {
  std::vector<ShardPlacement> placements;
  placements.reserve(shards.size());
  for (const ShardDescriptor& shard : shards) {
    placements.push_back(ToPlacement(shard, FindReplica(shard, role)));
  }
  return placements;
}

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CORE_SHARDS_REPLICAS_H_
