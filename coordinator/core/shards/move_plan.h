// Load balancing of parameter servers: which shards of a job are to move, and where. Pure.

#ifndef ATOLL_COORDINATOR_CORE_SHARDS_MOVE_PLAN_H_
#define ATOLL_COORDINATOR_CORE_SHARDS_MOVE_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/protocol/control.h"
#include "coordinator/core/records.h"
#include "coordinator/core/shards/placement.h"

namespace atl {

struct MovePlan {
  std::vector<ShardMove> moves;
  std::string reason;   // why these
  std::string trouble;  // not empty: what should move and cannot, and why
  bool balances = false;
};

// A server's load is its elements times their cost. All shards of servers that leave go to where
// the load is lowest then. After that, if the fullest server has more than kImbalance times the
// load that all would have alike, shards go from it to the emptiest as long as that lowers the
// maximum.
// That is done again within an hour (`balanced`: it was done) only if the fullest has more than
// kUrgentImbalance times its share: noise moves nothing back and forth.
// Copies (of all shards, or none are wanted) that no server has are made, on another server than
// the shard's and at another site where there is one; moves leave it so. Moves name slots: a copy's
// number follows those of all shards.
MovePlan PlanShardMoves(const std::vector<ShardPlacement>& shards,
                        const std::vector<ShardPlacement>& copies,
                        const std::vector<PlacementServer>& servers, int64_t bytes_per_element,
                        bool balanced = false);

inline constexpr double kImbalance = 1.25;
inline constexpr double kUrgentImbalance = 4;

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CORE_SHARDS_MOVE_PLAN_H_
