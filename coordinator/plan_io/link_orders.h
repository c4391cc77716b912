// In which order messages use what several senders share.

#ifndef ATOLL_COORDINATOR_PLAN_IO_LINK_ORDERS_H_
#define ATOLL_COORDINATOR_PLAN_IO_LINK_ORDERS_H_

#include <vector>

#include "coordinator/planner/planner.h"
#include "proto/plan.pb.h"

namespace atl {

// One order for each direction between two sites, of all replicas' messages, and one for each pair
// of devices of one site between which several stages send. Messages are sorted by the moment at
// which they leave in their replica's simulated step, then by micro-batch and replica. A replica
// whose message is not ready is skipped at run time, so an order never blocks.
std::vector<v1::LinkOrder> LinkOrdersOf(const plan::Cluster& cluster, const plan::Plan& plan);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLAN_IO_LINK_ORDERS_H_
