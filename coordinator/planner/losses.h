// Plans kept ready for the loss of any 1 to k nodes.
//
// Nodes are alike when they are in one site, have the same device types in the same order and,
// where device pairs were measured, mean latencies and bandwidths to every site within about a
// quarter. What counts is only how many nodes of each class are lost, so with c classes there are
// C(c + k, k) - 1 cases whatever the number of nodes. A case's plan is made without the class's
// first nodes and handed out for the nodes that are really left, in order.

#ifndef ATOLL_COORDINATOR_PLANNER_LOSSES_H_
#define ATOLL_COORDINATOR_PLANNER_LOSSES_H_

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/planner/planner.h"

namespace atl::plan {

using NodeName = std::pair<std::string, std::string>;  // site, node

struct LossOptions {
  int losses = 1;   // k
  int plans = 500;  // at most; fewer losses come first
  Options search;   // its stop ends the making, too
};

class LossPlans {
 public:
  LossPlans(const Cluster& cluster, const Costs& costs, const Job& job, const LossOptions& options);

  // What to run without these nodes. `plan` belongs to the LossPlans; its predicted time and
  // programs hold, its layout's devices are another node's where alike ones were lost.
  struct Ready {
    const Plan* plan = nullptr;
    Layout layout;  // devices as indices into the whole cluster
  };
  // The error says that the loss leaves nothing that fits, or that no plan was made for it.
  absl::StatusOr<Ready> Find(const std::set<NodeName>& lost) const;

  size_t plans() const { return plans_.size(); }
  size_t classes() const { return classes_.size(); }

 private:
  struct NodeClass {
    std::vector<NodeName> nodes;            // in order
    std::vector<std::vector<int>> devices;  // of each node
  };
  using Counts = std::vector<int>;  // nodes lost of each class

  void MakePlans(const Cluster& cluster, const Costs& costs, const Job& job,
                 const LossOptions& options);

  std::vector<NodeClass> classes_;
  std::map<NodeName, int> class_of_;
  std::map<Counts, absl::StatusOr<Plan>> plans_;
};

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_LOSSES_H_
