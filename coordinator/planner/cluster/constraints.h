// Selects what takes part in a plan at all: the filter between a cluster and the search. What the
// operator fixes of the layout itself (stages, replicas, schedule), and limits of traffic, hold for
// every candidate (layout.h, traffic.h).

#ifndef ATOLL_COORDINATOR_PLANNER_CLUSTER_CONSTRAINTS_H_
#define ATOLL_COORDINATOR_PLANNER_CLUSTER_CONSTRAINTS_H_

#include <string>

#include "absl/status/status.h"
#include "coordinator/planner/layout.h"

namespace atl::plan {

// Takes out of the cluster the devices that are excluded, that are at other sites than the pinned
// ones, or whose memory is kept back; takes that memory from the others; and adds the limits of
// links to those that the cluster has, of two limits the lower one. Notes in `fixed` which devices
// are too small, and leaves no sites in it where they are those of all devices. FAILED_PRECONDITION
// says which constraint has left no device; nothing is changed then.
absl::Status Constrain(Constraints& fixed, Cluster& cluster);

// Returns the error that no device is left by what is excluded and pinned.
absl::Status NothingLeft(const Constraints& fixed, size_t devices);

// INVALID_ARGUMENT names an excluded worker or device, a pinned site or a limited link's end that
// the cluster does not have. For clusters that are described in full: of one that grows, such a
// name may come later.
absl::Status CheckNames(const Constraints& fixed, const Cluster& cluster);

// Describes for reasons what is left out and kept back, each with the key that says so. Empty:
// nothing.
std::string ConstraintsText(const Constraints& fixed);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_CLUSTER_CONSTRAINTS_H_
