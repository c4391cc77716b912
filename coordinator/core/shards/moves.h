// Shards that move between parameter servers (resharding): which ones, when, and the switch between
// two rounds (docs/decisions/moving-shards.md). Private to the core.

#ifndef ATOLL_COORDINATOR_CORE_SHARDS_MOVES_H_
#define ATOLL_COORDINATOR_CORE_SHARDS_MOVES_H_

#include <set>

#include "coordinator/core/state.h"

namespace atl::coord {

// `atoll refill`: the job's shards on this server are lost; they are filled from an island.
absl::Status RefillShards(State& s, Job& job, const NodeId& server);

// Forgets what a server had received before it attached: its folder may be another one.
void OnReceiverHello(State& s, const NodeId& server);
void OnShardsReceived(State& s, Member& server, const ShardsReceived& message);
// Returns whether the server holds none of the job's shards, and is to receive some or to delete
// what it has.
bool TakesPartInMoves(const Job& job, const NodeId& server);
// A server has deleted what it had of a job that goes on without it.
void OnReleased(Job& job, const NodeId& server, int64_t placement);

// Plans moves, and switches shards that have been received. True if anything changed. REQUIRES: the
// job is active and not stale, and nothing is decided that is not applied.
bool AdvanceMoves(State& s, Job& job);
// The server does not hold these slots any more, and moves of them are off.
void OnSlotsDropped(State& s, Job& job, const NodeId& server, const std::set<SlotId>& slots);
// Returns whether the round waits a moment for shards in transfer.
bool HoldsForMoves(const State& s, const Job& job);
// Returns whether all new holders of shards hold them durably, as they report: the old holders may
// then delete them. A coordinator that loses its store before that finds the shards at the old
// holders.
bool TakenOver(const Job& job);
// Sends what servers and islands are still to do for moves.
void PumpMoves(State& s, Job& job);
Instant NextMoveDeadline(const State& s, const Job& job);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_SHARDS_MOVES_H_
