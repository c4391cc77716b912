// Quick estimates of many layouts' steps.

#ifndef ATOLL_COORDINATOR_PLANNER_GROUPS_ESTIMATE_H_
#define ATOLL_COORDINATOR_PLANNER_GROUPS_ESTIMATE_H_

#include <map>
#include <tuple>

#include "coordinator/planner/layout.h"
#include "coordinator/planner/replica_problem.h"

namespace atl::plan {

// REQUIRES: what it is made from outlives it and does not change.
class Estimator {
 public:
  Estimator(const Cluster& cluster, const Costs& costs)
      : cluster_(cluster), costs_(costs), sharing_(cluster) {}

  // Slowest replica by the cost model (fill and drain, bottleneck stage or link per micro-batch)
  // plus synchronisation. Never simulates.
  double Seconds(const Layout& layout);

 private:
  double ReplicaSeconds(const Layout& layout, const Replica& replica);
  const StageCosts& GetStageCosts(const Stage& stage, int micro_batch);

  const Cluster& cluster_;
  const Costs& costs_;
  std::map<std::tuple<int, size_t, int>, StageCosts> alike_;  // by type, devices, micro-batch
  LinkSharing sharing_;                                       // of the layout in question
};

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_GROUPS_ESTIMATE_H_
