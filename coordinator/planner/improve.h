// Improvements of a layout, once it has been simulated. Internal to the planner.

#ifndef ATOLL_COORDINATOR_PLANNER_IMPROVE_H_
#define ATOLL_COORDINATOR_PLANNER_IMPROVE_H_

#include <optional>
#include <vector>

#include "coordinator/planner/layout.h"

namespace atl::plan {

// The layout with the groups of equal devices of every replica in the order and with the cuts that
// SpanTrain's search (OrderByBeam) likes best. Nothing if there is but one group, or if nothing
// changes.
std::optional<Layout> Reordered(const Cluster& cluster, const Costs& costs, const Layout& layout);

// A small change of all replicas of the slowest kind.
struct Change {
  enum class What {
    kLayer,    // moves from one stage to another
    kDevices,  // two neighbouring stages swap theirs, and layers are cut anew
  } what = What::kLayer;
  size_t from = 0, to = 0;  // stages
};

// All of them, those that relieve the busiest devices most first; devices change places in plainly
// placed layouts alone.
std::vector<Change> ListChanges(const Cluster& cluster, const Layout& layout,
                                const Outcome& outcome);

// False if it cannot be.
bool Apply(const Cluster& cluster, const Costs& costs, const Outcome& outcome, const Change& change,
           Layout& layout);

// Every replica lies in one site and has at least two entities.
bool StaysInSites(const Cluster& cluster, const Layout& layout);

// Returns the share of a step beyond its slowest kind's slowest entity working all the time.
double ComputeBubbleFraction(const Outcome& outcome);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_IMPROVE_H_
