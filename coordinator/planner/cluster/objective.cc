#include "coordinator/planner/cluster/objective.h"

#include <algorithm>

#include "coordinator/planner/cluster/traffic.h"

namespace atl::plan {
namespace {

constexpr double kSecondsPerHour = 3600;
// More than any price or time: what a layout that misses a limit ranks behind.
constexpr double kMissed = 1e12;

double PricePerHour(const Cluster& cluster, const Layout& layout) {
  double price = 0;
  for (const int device : ListUsedDevices(layout))
    price += cluster.types[cluster.devices[device].type].price_per_hour;
  return price;
}

}  // namespace

StepPrice ComputePrice(const Cluster& cluster, const Costs& costs, const Layout& layout) {
  StepPrice price{PricePerHour(cluster, layout) / kSecondsPerHour};
  VisitSends(cluster, costs, layout, [&](int from, int to, double bytes) {
    price.messages += bytes * cluster.PricePerByte(from, to);
  });
  return price;
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
  return by_price_ ? plan::ComputePrice(cluster_, costs_, layout) : StepPrice();
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
