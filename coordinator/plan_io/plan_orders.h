// The order of operations in a plan's JSON (its programs), edited or not. What follows from it is
// made anew: messages, all-reduces and the optimizer.

#ifndef ATOLL_COORDINATOR_PLAN_IO_PLAN_ORDERS_H_
#define ATOLL_COORDINATOR_PLAN_IO_PLAN_ORDERS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/layout.h"
#include "proto/plan.pb.h"

namespace atl {

// Gives `kept`, which has the island's replicas, one program for each set of devices that share
// layers, of F, B and W alone. Where W follows each B of a stage at once, both are one operation
// and W is left out. Programs that are such already stay as they are. Refuses two programs of a
// device, one of a device without a stage, and different orders on devices that share layers.
absl::Status KeepOrders(const v1::PlannedIsland& island, v1::PlannedIsland& kept);

// Reads the orders by replica; empty: the island has no programs. The layout is that of the
// island's replicas. The error names device, stage and operation of what is missing, doubled, not
// the device's, or before what it needs on the same device.
absl::StatusOr<std::vector<plan::ReplicaOrder>> ReadOrders(const v1::PlannedIsland& island,
                                                           const plan::Cluster& cluster,
                                                           const plan::Layout& layout);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLAN_IO_PLAN_ORDERS_H_
