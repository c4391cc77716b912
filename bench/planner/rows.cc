#include "bench/planner/rows.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "bench/measure.h"
#include "bench/planner/baselines.h"
#include "coordinator/planning/request.h"

namespace atl::bench {

double MeasureCpuSeconds(const std::function<void()>& work) {
  const std::clock_t start = std::clock();
  work();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

absl::StatusOr<plan::Plan> PlanSetting(const Setting& setting,
                                       const std::vector<plan::Layout>& ran) {
  ThreadPool pool(SearchThreads());
  plan::Options options;
  options.pool = &pool;
  options.starts = ran;
  return plan::PlanJob(setting.cluster, setting.costs(), setting.job, options);
}

Row PlanRow(const Setting& setting, BoundRatios* ratios) {
  Row row;
  row.processor_seconds = MeasureCpuSeconds(
      [&] { row.seconds = MeasureSeconds([&] { row.plan = PlanSetting(setting); }); });
  if (!row.plan.ok()) {
    std::printf("%-46s %s\n", setting.name.c_str(), row.plan.status().ToString().c_str());
    return row;
  }
  const plan::Outcome& outcome = row.plan->outcome;
  const double ratio = outcome.step_s / outcome.bound_s;
  std::printf("%-46s %7.0f ms (%.0f of the processor) | %s: %.4g s/step, bound x%.3f\n",
              setting.name.c_str(), 1e3 * row.seconds, 1e3 * row.processor_seconds,
              plan::Describe(row.plan->layout).c_str(), outcome.step_s, ratio);
  const std::string reason = plan::GapReason(row.plan->layout, outcome);
  if (!reason.empty()) std::printf("    above 1.05: %s\n", reason.c_str());
  if (ratios == nullptr) return row;
  ++ratios->rows;
  double& worst = reason.rfind("memory", 0) == 0 ? ratios->worst_bound : ratios->worst_free;
  worst = std::max(worst, ratio);
  return row;
}

std::map<std::string, double> ComputeStepRatios(const Setting& setting, const plan::Plan& plan,
                                                const std::vector<std::string>& baselines) {
  std::map<std::string, double> ratios;
  const plan::Costs costs = setting.costs();
  for (const std::string& name : baselines) {
    ratios[name] = 0;
    const auto layout = plan::Baseline(setting.cluster, costs, setting.job, name);
    if (!layout.ok()) continue;
    const auto outcome = plan::EvaluateLayout(setting.cluster, costs, *layout, {});
    if (outcome.ok()) ratios[name] = outcome->step_s / plan.outcome.step_s;
  }
  return ratios;
}

std::map<std::string, double> CompareRow(const Setting& setting, const plan::Plan& plan,
                                         const std::vector<std::string>& baselines) {
  const std::map<std::string, double> ratios = ComputeStepRatios(setting, plan, baselines);
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
