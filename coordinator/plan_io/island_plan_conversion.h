// Between the planner's plan and the form that workers run (common/protocol/island_plan.h).

#ifndef ATOLL_COORDINATOR_PLAN_IO_ISLAND_PLAN_CONVERSION_H_
#define ATOLL_COORDINATOR_PLAN_IO_ISLAND_PLAN_CONVERSION_H_

#include <set>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/island_plan.h"
#include "coordinator/planner/planner.h"

namespace atl {

// Replicas, programs (by CompleteProgram from the simulated order), tensor shares, link orders,
// times, schedule and reason; number, members and recomputed layers are the caller's. Stages of a V
// or interleaved placement appear as several stages of one device.
IslandPlan ToIslandPlan(const plan::Cluster& cluster, const plan::Plan& plan);

// Writes recomputed_layers of the plan's stages as the layout and the costs have them.
void ListRecomputed(const plan::Costs& costs, const plan::Layout& layout, IslandPlan* island);

// Stages of the program whose every W follows its B at once: it does both in one operation, before
// B sends.
std::set<int32_t> UnsplitStages(const PlanProgram& program);

// The order of F, B and W in the programs, by replica. The layout is that of the plan
// (LayoutFromIslandPlan). NOT_FOUND names a device without a program.
absl::StatusOr<std::vector<plan::ReplicaOrder>> OrdersFromIslandPlan(const IslandPlan& island,
                                                                     const plan::Layout& layout);

// Devices that hold several stages each show how these lie.
plan::Shape GetReplicaShape(const plan::Replica& replica);

// Converts back: where the plan's stages lie, with the shape that their devices show, what they
// save of memory, and (where layers are shared evenly) each stage's slowest device first, as things
// are now; the schedule is in its programs. NOT_FOUND names a device that the cluster does not
// have; UNIMPLEMENTED: replicas with micro-batches of different sizes, which the planner never
// makes.
absl::StatusOr<plan::Layout> LayoutFromIslandPlan(const plan::Cluster& cluster,
                                                  const plan::Costs& costs,
                                                  const IslandPlan& island);

// ---- in which order messages use a link that several senders share; link_orders.cc ----

// One send order for each direction between two sites that messages of several stage links use, of
// all replicas, by the time at which they leave when all are simulated together. Links that carry a
// message in less than kMinMessageTime have none: passing the link to the next sender would take as
// long.
std::vector<PlanLinkOrder> ComputeSendOrders(const plan::Cluster& cluster, const plan::Plan& plan);

// Passing the link costs two messages within the site and three threads' waking: some 0.2 ms.
inline constexpr sim::Nanos kMinMessageTime = 2'000'000;

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLAN_IO_ISLAND_PLAN_CONVERSION_H_
