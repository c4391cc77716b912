// Takes replicas of shards from one role to the next (docs/decisions/moving-shards.md): a joining
// one receives the shard and takes over between two rounds; the one that it replaces leaves, until
// its server has deleted what it had. Private to the core.

#ifndef ATOLL_COORDINATOR_CORE_SHARDS_MOVES_H_
#define ATOLL_COORDINATOR_CORE_SHARDS_MOVES_H_

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/shards/replicas.h"
#include "coordinator/core/state.h"

namespace atl::coord {

void OnShardsReceived(State& s, Server& server, const ShardsReceived& message);
// Returns whether the server is to receive shards of the job, or to delete some.
bool TakesPartInMoves(const Job& job, const NodeId& server);
// A server has deleted what it had of the job, or said what it holds now, by this placement.
void OnReleased(Job& job, const NodeId& server, int64_t placement);

// The holders of shards change.
inline void ChangePlacement(Job& job) {
  job.EditRecord().placement = NextPlacement(job.record.placement);
}

// Plans moves, and lets replicas take over that have received their shards. True if anything
// changed. REQUIRES: the job is active and not stale, and nothing is decided that is not applied.
bool AdvanceMoves(State& s, Job& job);
// Drops replicas that join or hold a shard, for which which(shard, replica): a server that neither
// holds nor receives another one leaves the job. Returns their servers. What was to be received
// next is chosen anew.
std::set<NodeId> DropReplicas(
    Job& job, const std::function<bool(const ShardDescriptor&, const ShardReplica&)>& which);
// After holders of shards were dropped: links, orders of transfers and contributions.
void OnHoldersDropped(State& s, Job& job, const std::set<NodeId>& servers);

// Returns whether the server holds no shard of the job and has yet to delete what it had.
bool IsReleasing(const Job& job, const NodeId& server);
// The server is there, and may get shards.
bool MayReceive(const State& s, const NodeId& server);
// An earlier folder of it has come back: it holds shards that have been filled elsewhere since.
// They are kept, and would conflict with others.
bool HoldsOldShards(const State& s, const Job& job, const NodeId& server);
// Bytes of the replicas, as their servers keep them.
int64_t CountBytes(const Job& job, const std::vector<ReplicaId>& replicas);
bool IsReceived(const Job& job, const ReplicaId& replica);
// REQUIRES: it joins.
inline const ShardReplica& GetJoining(const Job& job, const ReplicaId& id) {
  return *FindJoining(job.shard(id.shard), id.server);
}
// Returns whether the round waits a moment for shards in transfer.
bool HoldsForMoves(const State& s, const Job& job);
// Returns whether all new holders of shards hold them durably, as they report: the old holders may
// then delete them. A coordinator that loses its store before that finds the shards at the old
// holders.
bool TakenOver(const Job& job);

// "" or, human-readable, which shards move, how far they are, and why they wait.
std::string MovesText(const Job& job);
// Returns which server holds how much, and what it takes islands to reach it: what placement
// weighs.
std::string PlacementText(const State& s, const Job& job);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_SHARDS_MOVES_H_
