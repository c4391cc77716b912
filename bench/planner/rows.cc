#include "bench/planner/rows.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "bench/planner/baselines.h"

namespace atl::bench {

double ProcessorSecondsOf(const std::function<void()>& work) {
  const std::clock_t start = std::clock();
  work();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

Row PlanRow(const Setting& setting, const plan::Options& options, BoundRatios* ratios) {
  const plan::Costs costs = setting.costs();
  Row row;
  row.seconds = ProcessorSecondsOf(
      [&] { row.plan = plan::PlanJob(setting.cluster, costs, setting.job, options); });
  if (!row.plan.ok()) {
    std::printf("%-46s %s\n", setting.name.c_str(), row.plan.status().ToString().c_str());
    return row;
  }
  const plan::Outcome& outcome = row.plan->outcome;
  const double ratio = outcome.step_s / outcome.bound_s;
  std::printf("%-46s %7.0f ms | %s: %.4g s/step, bound x%.3f\n", setting.name.c_str(),
              1e3 * row.seconds, plan::Describe(row.plan->layout).c_str(), outcome.step_s, ratio);
  const std::string reason = plan::GapReason(row.plan->layout, outcome);
  if (!reason.empty()) std::printf("    above 1.05: %s\n", reason.c_str());
  if (ratios == nullptr) return row;
  ++ratios->rows;
  double& worst = reason.rfind("memory", 0) == 0 ? ratios->worst_bound : ratios->worst_free;
  worst = std::max(worst, ratio);
  return row;
}

std::map<std::string, double> RatiosOf(const Setting& setting, const plan::Plan& plan,
                                       const std::vector<std::string>& baselines) {
  std::map<std::string, double> ratios;
  const plan::Costs costs = setting.costs();
  for (const std::string& name : baselines) {
    ratios[name] = 0;
    const auto layout = plan::Baseline(setting.cluster, costs, setting.job, name);
    if (!layout.ok()) continue;
    const auto outcome = plan::EvaluateLayout(setting.cluster, costs, setting.job, *layout, {});
    if (outcome.ok()) ratios[name] = outcome->step_s / plan.outcome.step_s;
  }
  return ratios;
}

std::map<std::string, double> CompareRow(const Setting& setting, const plan::Plan& plan,
                                         const std::vector<std::string>& baselines) {
  const std::map<std::string, double> ratios = RatiosOf(setting, plan, baselines);
  std::printf("   ");
  for (const std::string& name : baselines) {
    const double ratio = ratios.at(name);
    ratio > 0 ? std::printf(" %s x%.2f", name.c_str(), ratio)
              : std::printf(" %s does not fit", name.c_str());
  }
  std::printf("\n");
  return ratios;
}

double MeanRatio(const std::vector<double>& ratios) {
  double sum = 0;
  int count = 0;
  for (const double ratio : ratios) {
    if (ratio <= 0) continue;
    sum += std::log(ratio);
    ++count;
  }
  return count == 0 ? 0 : std::exp(sum / count);
}

}  // namespace atl::bench
