// Orders to servers and islands for moves (moves.h): to receive the shards of the batch, to
// fill them, to delete what has moved away. Private to the core.

#ifndef ATOLL_COORDINATOR_CORE_SHARDS_MOVE_ORDERS_H_
#define ATOLL_COORDINATOR_CORE_SHARDS_MOVE_ORDERS_H_

#include "coordinator/core/state.h"

namespace atl::coord {

// Sends what is to be done now; again, where nothing answers.
void PumpMoves(State& s, Job& job);
// Returns when PumpMoves is to be called again, or AdvanceMoves has more to do.
Instant NextMoveDeadline(const State& s, const Job& job);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_SHARDS_MOVE_ORDERS_H_
