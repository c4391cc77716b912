// Improvements of a layout, once it has been simulated. Internal to the planner.

#ifndef ATOLL_COORDINATOR_PLANNER_IMPROVE_H_
#define ATOLL_COORDINATOR_PLANNER_IMPROVE_H_

#include <optional>
#include <string>

#include "common/rng.h"
#include "coordinator/planner/layout.h"

namespace atl::plan {

// The layout with the groups of equal devices of every replica in the order and with the cuts that
// SpanTrain's search (OrderByBeam) likes best. Nothing if there is but one group, or if nothing
// changes.
std::optional<Layout> Reordered(const Cluster& cluster, const Costs& costs, const Layout& layout);

// A neighbour of a plainly placed layout: one layer from a stage to another in the slowest kind of
// replica, or two neighbouring stages' devices swapped. Of others: the first kind alone. False if
// this one cannot be.
bool Perturb(const Cluster& cluster, const Costs& costs, const Outcome& outcome, Rng& rng,
             Layout& layout);

// Every replica lies in one site and has at least two entities.
bool StaysInSites(const Cluster& cluster, const Layout& layout);

// Returns the share of a step beyond its slowest kind's slowest entity working all the time.
double ComputeBubbleFraction(const Outcome& outcome);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_IMPROVE_H_
