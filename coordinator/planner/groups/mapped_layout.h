// The devices of a layout's replicas, mapped to stages by branch and bound. Internal to the
// planner.

#ifndef ATOLL_COORDINATOR_PLANNER_GROUPS_MAPPED_LAYOUT_H_
#define ATOLL_COORDINATOR_PLANNER_GROUPS_MAPPED_LAYOUT_H_

#include <optional>

#include "coordinator/planner/candidates.h"
#include "coordinator/planner/groups/stage_mapping.h"

namespace atl::plan {

struct MappedLayout {
  Layout layout;
  // The time of the slowest pipeline by the cost model of stage_mapping.h, and what it takes at
  // least, whichever of its replica's devices form it.
  double seconds = 0;
  double bound_s = 0;
  int64_t nodes = 0;  // of all searches
};

// Every replica's own devices in the best order, with the best cuts; some may be left idle.
// options.max_nodes is of all searches together.
// Replicas that are alike are searched once. Where memory does not allow 1F1B's micro-batches in
// flight, half as many, and so on. Nothing for layouts that are not plainly placed, or where no
// mapping was found.
std::optional<MappedLayout> Mapped(const Cluster& cluster, const Costs& costs, const Layout& layout,
                                   const MappingOptions& options);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_GROUPS_MAPPED_LAYOUT_H_
