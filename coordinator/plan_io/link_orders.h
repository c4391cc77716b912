// In which order messages use what several senders share.

#ifndef ATOLL_COORDINATOR_PLAN_IO_LINK_ORDERS_H_
#define ATOLL_COORDINATOR_PLAN_IO_LINK_ORDERS_H_

#include <vector>

#include "common/protocol/island_plan.h"
#include "coordinator/planner/planner.h"

namespace atl {

// One send order for each direction between two sites that messages of several stage links use, of
// all replicas, by the time at which they leave when all are simulated together. Lines that carry a
// message in less than kLeastTurn have none: passing the turn to the next sender would take as
// long.
std::vector<PlanLinkOrder> LinkOrdersOf(const plan::Cluster& cluster, const plan::Plan& plan);

// A turn costs two messages within the site and three threads' waking: some 0.2 ms.
inline constexpr sim::Nanos kLeastTurn = 2'000'000;

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLAN_IO_LINK_ORDERS_H_
