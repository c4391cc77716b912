// Which shards of a job are to move, and where. Pure.

#ifndef ATOLL_COORDINATOR_CORE_MOVE_PLAN_H_
#define ATOLL_COORDINATOR_CORE_MOVE_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/protocol/control.h"
#include "coordinator/core/records.h"

namespace atl {

struct MoveServer {
  NodeId name;
  std::string site;        // empty: not known
  int64_t free_bytes = 0;  // beside what it holds
  bool takes = false;      // may get shards
  bool leaves = false;     // is to hold none
};

struct MovePlan {
  std::vector<ShardMove> moves;
  std::string reason;   // why these
  std::string trouble;  // not empty: what should move and cannot, and why
};

// All shards of servers that leave go to others: to a server at a site of the islands, if that does
// not make it the fullest by far, else to the emptiest. After that, if the fullest server holds
// more than kImbalance times the mean of all that take shards, shards go from it to the emptiest as
// long as that lowers the maximum. `sites`: of the islands, one each.
MovePlan PlanShardMoves(const std::vector<ShardPlacement>& shards,
                        const std::vector<MoveServer>& servers,
                        const std::vector<std::string>& sites, int64_t bytes_per_element);

inline constexpr double kImbalance = 1.25;

// How much dearer it is to push to and pull from a server at `site`, as the share of the islands
// that are elsewhere: 0 where all are at its site or nothing is known.
double RemoteShare(const std::string& site, const std::vector<std::string>& sites);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CORE_MOVE_PLAN_H_
