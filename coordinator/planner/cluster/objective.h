// The objective of a plan: a short step, or a cheap one, within limits of both.
//
// A step costs what the participating devices cost for its duration, and what its messages cost:
// over stage links, and in all-reduces between replicas. Idle devices cost nothing: the user
// releases them.
//
// A rank orders layouts: the less the better. Within the limits it is the step's seconds or its
// price; beyond them it is by how much the worse limit is missed, and more than any within.

#ifndef ATOLL_COORDINATOR_PLANNER_CLUSTER_OBJECTIVE_H_
#define ATOLL_COORDINATOR_PLANNER_CLUSTER_OBJECTIVE_H_

#include "coordinator/planner/layout.h"

namespace atl::plan {

// The price of a step of so many seconds: per_s * seconds + messages.
struct StepPrice {
  double per_s = 0;
  double messages = 0;

  double Of(double step_s) const { return per_s * step_s + messages; }
};
StepPrice ComputePrice(const Cluster& cluster, const Costs& costs, const Layout& layout);

double Rank(const Objective& objective, const StepPrice& price, double step_s);
// The longest step that still ranks better than `rank`; at most 0: none does.
double LongestStepBetter(const Objective& objective, const StepPrice& price, double rank);

// Ranks the layouts of one search.
class Ranking {
 public:
  // They must outlive it.
  Ranking(const Cluster& cluster, const Costs& costs, const Job& job);

  // Returns whether prices decide anything. Otherwise a rank is the step's seconds.
  bool by_price() const { return by_price_; }
  StepPrice ComputePrice(const Layout& layout) const;
  double Rank(const Layout& layout, double step_s) const;
  // Returns the rank of devices of so much power that cost so much: `step_s` if nothing is sent.
  double Rank(double price_per_hour, double step_s) const;
  double LongestStepBetter(const Layout& layout, double rank) const;

 private:
  const Cluster& cluster_;
  const Costs& costs_;
  const Job& job_;
  bool by_price_;
};

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_CLUSTER_OBJECTIVE_H_
