// Send orders: in which order messages use a link that several senders share.

#ifndef ATOLL_COORDINATOR_PLAN_IO_LINK_ORDERS_H_
#define ATOLL_COORDINATOR_PLAN_IO_LINK_ORDERS_H_

#include <vector>

#include "common/protocol/island_plan.h"
#include "coordinator/planner/planner.h"

namespace atl {

// One send order for each direction between two sites that messages of several stage links use, of
// all replicas, by the time at which they leave when all are simulated together. Links that carry a
// message in less than kMinMessageTime have none: passing the link to the next sender would take as
// long.
std::vector<PlanLinkOrder> ComputeSendOrders(const plan::Cluster& cluster, const plan::Plan& plan);

// Passing the link costs two messages within the site and three threads' waking: some 0.2 ms.
inline constexpr sim::Nanos kMinMessageTime = 2'000'000;

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLAN_IO_LINK_ORDERS_H_
