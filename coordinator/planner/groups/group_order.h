// In which order groups of devices form a pipeline, and which layers each takes: SpanTrain's
// search.
//
// A group is equal entities that follow each other. The cost of an order with its cuts is
//   T = max_s [ sum_{u<s} (F_u + B_u + 2 c_u) + m * tau_s ],  tau_s = max(F_s + B_s + W_s, x_s-1,
//   x_s)
// with c a stage link's transfer time and x its serialisation (SpanTrain, equation 1, with the
// unhidden latency never below 0). The best one is found by beam search.

#ifndef ATOLL_COORDINATOR_PLANNER_GROUPS_GROUP_ORDER_H_
#define ATOLL_COORDINATOR_PLANNER_GROUPS_GROUP_ORDER_H_

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/planner/cluster/cluster.h"
#include "coordinator/planner/cluster/costs.h"

namespace atl::plan {

struct OrderGroup {
  int members = 1;
  const StageCosts* costs = nullptr;  // of one member
  int64_t memory_bytes = 0;           // of one member's device
};

struct OrderProblem {
  std::vector<OrderGroup> groups;
  std::vector<std::vector<Link>> links;  // from group to group; to itself: between its members
  std::vector<double> out_bytes;         // per layer: what it sends on per micro-batch
  int micro_batches = 1;
};

// Groups, or single members of them, in the order of the pipeline; cuts[i] to cuts[i + 1] are the
// layers of groups[i]. What is better left idle is missing.
struct GroupOrder {
  std::vector<int> groups;
  std::vector<int> cuts;
  double seconds = 0;  // T
  int64_t nodes = 0;   // that branch and bound has expanded
};

// One part of T: what a group does itself, and what passing through it adds to all that follow.
struct PartTimes {
  double own_s = INFINITY;
  double pass_s = INFINITY;
};

// T of ever longer ends of a pipeline. REQUIRES: the problem outlives it and does not change.
class PipelineEnd {
 public:
  explicit PipelineEnd(const OrderProblem& problem)
      : problem_(problem), layers_(problem.out_bytes.size()) {}

  // T of a pipeline that begins with a group on layers that end at `cut`, which take `times`,
  // before one that begins with `next` and takes `rest_s`.
  double Prepend(const PartTimes& times, int group, int next, int cut, double rest_s) const;

 private:
  double SplitSeconds(const Link& link, int group, int next, int cut) const;

  const OrderProblem& problem_;
  const size_t layers_;
  mutable std::vector<double> split_s_;  // of transfers over several edges; below 0: not known
};

// T of an order. Infinite where a group's members together cannot hold their layers with the
// activations that 1F1B keeps (one micro-batch per stage from there to the end).
double OrderSeconds(const OrderProblem& problem, const GroupOrder& order);

// SpanTrain's algorithm 1; nothing if no order that it tries fits. Keeps 32 orders, expands each by
// swapping two groups (with or without their layers), by moving a cut 1 or 2 layers, half or all of
// the distance to its neighbours, drops repetitions, and stops after 5 rounds without gain.
std::optional<GroupOrder> OrderByBeam(const OrderProblem& problem);

// Cuts of layers [first, last) into `parts` stages on equal devices with the least bottleneck.
std::vector<int> SplitEvenly(const StageCosts& costs, int first, int last, int parts);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_GROUPS_GROUP_ORDER_H_
