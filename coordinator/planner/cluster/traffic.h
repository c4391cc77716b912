// Counts what a plan sends from site to site, and checks the limits that a link has for a day of it
// (Cluster::bytes_per_day).
//
// Counted are the messages between stages, the all-reduces of gradients, and the pushes and pulls
// of outer rounds. Not counted: checkpoints, the transfer of state after a new plan, control.

#ifndef ATOLL_COORDINATOR_PLANNER_CLUSTER_TRAFFIC_H_
#define ATOLL_COORDINATOR_PLANNER_CLUSTER_TRAFFIC_H_

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "coordinator/planner/layout.h"

namespace atl::plan {

// Bytes from one site's network to another's (NetworkSite).
using SiteBytes = std::map<std::pair<std::string, std::string>, double>;

inline constexpr double kSecondsPerDay = 86'400;

// Calls `visit` with what devices of rank 0 send to each other in a step. Activations go in one
// direction and their gradients in the other; gradients are summed as gradient_sync.h has it, and
// what sites exchange for that is said of one device of each.
using SendVisitor = std::function<void(int from, int to, double bytes)>;
void VisitSends(const Cluster& cluster, const Costs& costs, const Layout& layout,
                const SendVisitor& visit);

// Counts the bytes of one step.
SiteBytes CountStepBytes(const Cluster& cluster, const Costs& costs, const Layout& layout);

// The share of the model's parameters that owners at each site have, push and pull: of replicas
// that hold a layer each owns an even part.
std::map<std::string, double> OwnedShares(const Cluster& cluster, const Costs& costs,
                                          const Layout& layout);

// FAILED_PRECONDITION names the link that so much a day would go over by the largest factor.
absl::Status CheckLimits(const Cluster& cluster, const SiteBytes& per_day);

// Checks that the layout's steps keep to the limits, one after the other without a pause.
absl::Status CheckTraffic(const Cluster& cluster, const Costs& costs, const Layout& layout,
                          double step_s);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_CLUSTER_TRAFFIC_H_
