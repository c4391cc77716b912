// The planner: the best known layout of a job on a cluster, why, and how far it can be from the
// best.
//
//   auto plan = PlanJob(cluster, costs, job, {});
//   if (plan.ok()) use(plan->layout, plan->outcome, plan->reason);
//
// For every tensor-parallel size, micro-batch and number of replicas it forms groups of devices in
// three ways (AutoHet's by type counts over the whole cluster, the same within each site, and equal
// shares of everything), orders the sites and within a site weak devices first, balances the layers
// under memory, shares the samples by speed, and ranks by the cost model. The best are simulated
// with searched schedules; the winner is improved by moving boundaries and swapping stages.
// Deterministic in the seed; a time budget, if any, is the caller's through Options::stop.

#ifndef ATOLL_COORDINATOR_PLANNER_PLANNER_H_
#define ATOLL_COORDINATOR_PLANNER_PLANNER_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/layout.h"

namespace atl::plan {

struct Options {
  int simulate = 6;       // candidates to simulate
  int restarts = 32;      // simulations per kind of replica and candidate
  int improvements = 24;  // boundary moves to try on the winner
  uint64_t seed = 1;
  std::function<bool()> stop;  // asked between candidates; what is best by then is returned
};

struct Alternative {
  std::string what;
  double step_s = 0;
  bool simulated = false;  // otherwise the estimate
};

struct Plan {
  Layout layout;
  Outcome outcome;
  std::vector<Alternative> alternatives;  // what lost, best first
  double cluster_bound_s = 0;             // all devices busy all the time, each at its best
  std::string reason;                     // what was compared and what won by how much
  std::string times_from;  // "measured", "interpolated", "roofline at 45% of the datasheet"
  int candidates = 0;
  int simulated = 0;
  uint64_t seed = 0;
};

// The error says what does not fit, where, and what would.
absl::StatusOr<Plan> PlanJob(const Cluster& cluster, const Costs& costs, const Job& job,
                             const Options& options);

// Layouts that others would use, for comparison; all run 1F1B with an unsplit backward:
//   megatron       the best uniform 3D layout: equal layers, equal stages, equal samples
//   whale          the same structure, layers in proportion to speed
//   data-parallel  every entity a replica of its own, equal samples
absl::StatusOr<Layout> Baseline(const Cluster& cluster, const Costs& costs, const Job& job,
                                absl::string_view name);
std::vector<std::string> BaselineNames();

// Every device trains on its own, without communication, at its best size: no plan is faster.
double ClusterBoundSeconds(const Cluster& cluster, const Costs& costs, const Job& job);

// Sites named after the groups, for a cluster whose sites are not declared.
void NameSites(const Grouping& grouping, Cluster& cluster);

// The cluster without a node's devices.
Cluster WithoutNode(const Cluster& cluster, absl::string_view site, absl::string_view node);

// Plans kept ready for the loss of any one node, by "site/node". A node whose loss leaves no layout
// that fits has an error as its plan.
std::map<std::string, absl::StatusOr<Plan>> PlansForLoss(const Cluster& cluster, const Costs& costs,
                                                         const Job& job, const Options& options);

// "2 replicas x 3 stages, TP 2, micro-batch 4 samples": for tables and reasons.
std::string Describe(const Layout& layout);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_PLANNER_H_
