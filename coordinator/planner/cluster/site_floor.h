// The least time that links between sites add to a step, whatever the cuts, so that groups whose
// messages or gradients they cannot carry are dropped before they are cut. Internal to the planner.
//
// Where every group stays within a site, each layer's gradient is summed between all sites in use,
// after the step's work. Where every group spans sites, its activations cross one inter-site link
// less than it has sites, and all groups share these links.

#ifndef ATOLL_COORDINATOR_PLANNER_CLUSTER_SITE_FLOOR_H_
#define ATOLL_COORDINATOR_PLANNER_CLUSTER_SITE_FLOOR_H_

#include <vector>

#include "coordinator/planner/cluster/entities.h"
#include "coordinator/planner/groups/grouping.h"
#include "coordinator/planner/layout.h"

namespace atl::plan {

class SiteFloor {
 public:
  SiteFloor(const Cluster& cluster, const Costs& costs, const Job& job,
            const std::vector<EntityPool>& pools, int micro_batch);

  // The least seconds of a step of these groups, which takes `compute_s` if nothing is sent.
  double EstimateStepSeconds(const std::vector<Composition>& groups, double compute_s) const;

 private:
  double SyncSeconds(const std::vector<int>& groups_at) const;

  std::vector<int> site_of_;  // by pool
  int sites_ = 0;
  double fastest_bytes_per_s_ = 0;  // of all links between two sites
  double gradient_bytes_ = 0;       // of the whole model
  double message_bytes_ = 0;        // the smallest of a micro-batch
  double micro_batches_ = 0;        // of a step
};

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_CLUSTER_SITE_FLOOR_H_
