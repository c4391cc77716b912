// Rows of the planner's tables.

#ifndef ATOLL_BENCH_PLANNER_ROWS_H_
#define ATOLL_BENCH_PLANNER_ROWS_H_

#include <map>
#include <string>
#include <vector>

#include "bench/planner/clusters.h"

namespace atl::bench {

// How far the plans shown so far are from their bounds.
struct BoundRatios {
  double worst_free = 1;  // where memory does not bind
  double worst_bound = 1;
  int rows = 0;
};

struct Row {
  absl::StatusOr<plan::Plan> plan = absl::UnknownError("not planned");
  double seconds = 0;            // of the clock
  double processor_seconds = 0;  // of all threads
};

double MeasureCpuSeconds(const std::function<void()>& work);

// Plans with as many threads as a coordinator searches with. `ran`: the layouts that ran before.
absl::StatusOr<plan::Plan> PlanSetting(const Setting& setting,
                                       const std::vector<plan::Layout>& ran = {});

// Plans and prints: time to plan by the clock and of the processor, layout, step, ratio to the
// bound with the reason where it is above 1.05.
Row PlanRow(const Setting& setting, BoundRatios* ratios);

// Each baseline's step over the plan's (0: does not fit).
std::map<std::string, double> ComputeStepRatios(const Setting& setting, const plan::Plan& plan,
                                                const std::vector<std::string>& baselines);

// The same, printed.
std::map<std::string, double> CompareRow(const Setting& setting, const plan::Plan& plan,
                                         const std::vector<std::string>& baselines);

// Geometric mean of those above 0.
double MeanRatio(const std::vector<double>& ratios);

// Against what AutoHet and SpanTrain publish.
void PrintPublished(BoundRatios* ratios);

// The two scenarios of the multi-edge paper (`004`): unlike devices, and changing networks.
void PrintScenarios(BoundRatios* ratios);

// The local search against branch and bound.
void PrintSearches();

// Unlike devices over sites, against subsets of them.
void PrintMixes();

// Over so many generated clusters: plans with less freedom, and the steps of all.
void PrintFreedom(int generated);
void PrintSteps(int generated);

// Large clusters at one site and at four; all sizes, or these.
void PrintSites(const std::vector<int>& sizes);

}  // namespace atl::bench

#endif  // ATOLL_BENCH_PLANNER_ROWS_H_
