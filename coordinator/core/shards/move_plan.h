// Load balancing of parameter servers: which shards of a job are to move, and where. Pure.

#ifndef ATOLL_COORDINATOR_CORE_SHARDS_MOVE_PLAN_H_
#define ATOLL_COORDINATOR_CORE_SHARDS_MOVE_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/protocol/control.h"
#include "coordinator/core/shards/placement.h"

namespace atl {

// `to` is to hold the shard, in the place of server `replaces`; empty: it is one replica more.
struct ReplicaMove {
  ShardId shard = 0;
  NodeId to, replaces;
};

struct MovePlan {
  std::vector<ReplicaMove> moves;
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
// Each shard gets the replicas that it lacks of `replicas` (1 or 2), the second one on another
// server than the first and at another site where there is one; moves leave it so.
MovePlan PlanShardMoves(const std::vector<ShardDescriptor>& shards, int64_t replicas,
                        const std::vector<PlacementServer>& servers, int64_t bytes_per_element,
                        bool balanced = false);

inline constexpr double kImbalance = 1.25;
inline constexpr double kUrgentImbalance = 4;

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CORE_SHARDS_MOVE_PLAN_H_
