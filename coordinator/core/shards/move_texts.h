// Human-readable texts about shards that move and where they are. Private to the core.

#ifndef ATOLL_COORDINATOR_CORE_SHARDS_MOVE_TEXTS_H_
#define ATOLL_COORDINATOR_CORE_SHARDS_MOVE_TEXTS_H_

#include <string>

#include "coordinator/core/state.h"

namespace atl::coord {

// "" or which shards move, how far they are, and why they wait.
std::string MovesText(const Job& job);
// Returns which server holds how much, and what it takes islands to reach it: what placement
// weighs.
std::string PlacementText(const State& s, const Job& job);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_SHARDS_MOVE_TEXTS_H_
