// All replicas of a layout at once. Where several cross between two sites, they use the inter-site
// link in send order (micro-batch, replica), each message at full bandwidth: what one replica takes
// depends on the others, so they are simulated together.

#ifndef ATOLL_COORDINATOR_PLANNER_TOGETHER_H_
#define ATOLL_COORDINATOR_PLANNER_TOGETHER_H_

#include <string>
#include <utility>
#include <vector>

#include "coordinator/planner/replica_problem.h"

namespace atl::plan {

struct Together {
  // Pipeline r is replica r with a chunk per stage; devices are its entities, one replica's after
  // the other's.
  sim::Problem problem;
  sim::Schedule schedule;
  std::vector<std::vector<int>> devices;       // of each entity: the cluster's, by rank
  std::vector<std::pair<int, int>> link_ends;  // of each link: the cluster's devices of rank 0
  std::vector<LinkSharing::Id> lanes;          // what each of the network's lanes is
};

// The schedules found for the kinds, together. REQUIRES: the outcome is of this layout.
Together PutTogether(const Cluster& cluster, const Layout& layout, const Outcome& outcome);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_TOGETHER_H_
