#include "coordinator/planner/cluster/objective.h"

#include <algorithm>
#include <set>
#include <vector>

#include "coordinator/planner/replica_problem.h"

namespace atl::plan {
namespace {

constexpr double kSecondsPerHour = 3600;
// More than any price or time: what a layout that misses a limit ranks behind.
constexpr double kMissed = 1e12;

double PricePerHour(const Cluster& cluster, const Layout& layout) {
  std::set<int> used;
  for (const Replica& replica : layout.replicas) {
    for (const Stage& stage : replica.stages) {
      used.insert(stage.devices.begin(), stage.devices.end());
    }
  }
  double price = 0;
  for (const int device : used) price += cluster.types[cluster.devices[device].type].price_per_hour;
  return price;
}

// Activations in one direction and their gradients in the other.
double StageLinksPrice(const Cluster& cluster, const Costs& costs, const Layout& layout) {
  double price = 0;
  for (const Replica& replica : layout.replicas) {
    for (size_t s = 0; s + 1 < replica.stages.size(); ++s) {
      const int from = replica.stages[s].devices[0];
      const int to = replica.stages[s + 1].devices[0];
      if (from == to) continue;
      const double bytes =
          static_cast<double>(StageLinkBytes(costs, replica.stages[s], layout.micro_batch));
      price += replica.micro_batches * bytes *
               (cluster.PricePerByte(from, to) + cluster.PricePerByte(to, from));
    }
  }
  return price;
}

// Around a ring of all replicas, layer by layer (gradient_sync.h).
double EstimateAllReducePrice(const Cluster& cluster, const Costs& costs, const Job& job,
                              const Layout& layout) {
  const size_t n = layout.replicas.size();
  if (n < 2) return 0;
  const double ring_share = 2.0 * static_cast<double>(n - 1) / static_cast<double>(n);
  const std::vector<Layer>& layers = costs.model().layers;
  double price = 0;
  for (size_t r = 0; r < n; ++r) {
    size_t from = 0, to = 0;
    const std::vector<Stage>& own = layout.replicas[r].stages;
    const std::vector<Stage>& next = layout.replicas[(r + 1) % n].stages;
    for (size_t l = 0; l < layers.size(); ++l) {
      while (from + 1 < own.size() && own[from].last_layer <= static_cast<int>(l)) ++from;
      while (to + 1 < next.size() && next[to].last_layer <= static_cast<int>(l)) ++to;
      const double bytes = static_cast<double>(layers[l].parameters) * job.gradient_bytes;
      price += ring_share * bytes * cluster.PricePerByte(own[from].devices[0], next[to].devices[0]);
    }
  }
  return price;
}

}  // namespace

StepPrice ComputePrice(const Cluster& cluster, const Costs& costs, const Job& job,
                       const Layout& layout) {
  return {PricePerHour(cluster, layout) / kSecondsPerHour,
          StageLinksPrice(cluster, costs, layout) +
              EstimateAllReducePrice(cluster, costs, job, layout)};
}

double Rank(const Objective& objective, const StepPrice& price, double step_s) {
  const double costs = price.Of(step_s);
  const double missed = std::max(step_s / objective.step_s_max, costs / objective.price_max);
  if (missed > 1) return kMissed * missed;
  return objective.cheapest ? costs : step_s;
}

double LongestStepBetter(const Objective& objective, const StepPrice& price, double rank) {
  const auto affordable = [&](double most) {
    if (price.messages >= most) return 0.0;
    return price.per_s == 0 ? INFINITY : (most - price.messages) / price.per_s;
  };
  const double may_miss = std::max(1.0, rank / kMissed);
  const double within = std::min(
      may_miss * objective.step_s_max,
      std::isinf(objective.price_max) ? INFINITY : affordable(may_miss * objective.price_max));
  if (rank > kMissed) return within;
  return std::min(within, objective.cheapest ? affordable(rank) : rank);
}

Ranking::Ranking(const Cluster& cluster, const Costs& costs, const Job& job)
    : cluster_(cluster),
      costs_(costs),
      job_(job),
      by_price_((job.objective.cheapest || !std::isinf(job.objective.price_max)) &&
                cluster.HasPrices()) {}

StepPrice Ranking::ComputePrice(const Layout& layout) const {
  return by_price_ ? plan::ComputePrice(cluster_, costs_, job_, layout) : StepPrice();
}

double Ranking::Rank(const Layout& layout, double step_s) const {
  return plan::Rank(job_.objective, ComputePrice(layout), step_s);
}

double Ranking::Rank(double price_per_hour, double step_s) const {
  return plan::Rank(job_.objective, {price_per_hour / kSecondsPerHour, 0}, step_s);
}

double Ranking::LongestStepBetter(const Layout& layout, double rank) const {
  return plan::LongestStepBetter(job_.objective, ComputePrice(layout), rank);
}

}  // namespace atl::plan
