// Quick estimates of many layouts' steps.

#ifndef ATOLL_COORDINATOR_PLANNER_ESTIMATE_H_
#define ATOLL_COORDINATOR_PLANNER_ESTIMATE_H_

#include <map>
#include <tuple>
#include <vector>

#include "coordinator/planner/cluster/cluster_index.h"
#include "coordinator/planner/layout.h"
#include "coordinator/planner/replica_problem.h"

namespace atl::plan {

// REQUIRES: what it is made from outlives it and does not change.
class Estimator {
 public:
  Estimator(const Cluster& cluster, const Costs& costs, const Job& job)
      : cluster_(cluster), costs_(costs), job_(job), index_(cluster) {}

  // Slowest replica by the cost model (fill and drain, bottleneck stage or link per micro-batch)
  // plus synchronisation. Never simulates.
  double Seconds(const Layout& layout);

 private:
  double ReplicaSeconds(const Layout& layout, const Replica& replica);
  const StageCosts& GetStageCosts(const Stage& stage, int micro_batch);
  void CountSharing(const Layout& layout);
  // Returns the index of what messages from a stage to another share (LinkSharing::Id); -1 within a
  // node.
  int GetSharedLinkIndex(const Stage& from, const Stage& to) const;

  const Cluster& cluster_;
  const Costs& costs_;
  const Job& job_;
  const ClusterIndex index_;
  std::map<std::tuple<int, size_t, int>, StageCosts> alike_;  // by type, devices, micro-batch
  // Shared links of the layout in question: from site to site, then nodes' cards.
  std::vector<LinkSharing::SharedLink> shared_links_;
};

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_ESTIMATE_H_
