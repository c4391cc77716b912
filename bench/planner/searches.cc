// The local search against branch and bound, on the same requests.

#include <algorithm>
#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/measure.h"
#include "bench/planner/rows.h"

namespace atl::bench {
namespace {

// Sites joined by two providers, of which each link has its own latency and bandwidth.
Setting TwoProviders(int count, int sites, uint64_t seed) {
  Setting made = Unlike(count, sites, seed, "gpt3-1.3b", 64);
  absl::StrAppend(&made.name, ", two providers");
  for (auto& [ends, link] : made.cluster.site_to_site) {
    link = *plan::MakeLink({{link.latency_s, link.bytes_per_s}, {2 * link.latency_s, 62.5e6}}, {});
  }
  return made;
}

std::vector<Setting> Requests() {
  std::vector<Setting> requests;
  for (const int count : {13, 22, 28, 40}) {
    for (const uint64_t seed : {1, 2, 3}) {
      requests.push_back(Unlike(count, count < 20 ? 3 : 6, seed, "gpt3-1.3b", 64));
    }
  }
  for (const uint64_t seed : {4, 5, 6}) requests.push_back(TwoProviders(16, 4, seed));
  for (const int setting : {1, 2}) {
    for (const char* model : {"gpt2", "bert-base"}) {
      requests.push_back(SpanTrain(setting, model, 128));
    }
  }
  requests.push_back(AutoHet({{"a100-80", 24}, {"h800", 24}, {"h20", 16}}, "gpt3-6.7b", 512));
  requests.push_back(OneSite({"rtx4090d", "v100"}, 8, 8, "gpt3-13b", 128));
  const std::vector<std::string> four = {"a100-80", "h800", "h20", "l20"};
  for (const int sites : {1, 4}) requests.push_back(Sites(four, 64, sites, "gpt3-6.7b", 512));
  return requests;
}

}  // namespace

void PrintSearches() {
  std::printf(
      "\nBranch and bound against local search: steps and planning times\n%-46s %9s %9s %7s %8s "
      "%8s\n",
      "request", "local s", "bounded s", "ratio", "local ms", "b. ms");
  std::vector<double> steps, times;
  double best = 1, worst = 1;
  for (Setting& setting : Requests()) {
    absl::StatusOr<plan::Plan> local = absl::UnknownError(""), bounded = local;
    const auto plan_into = [&](PlanSearch search, absl::StatusOr<plan::Plan>* plan) {
      setting.job.search = search;
      return MeasureCpuSeconds([&] { *plan = PlanSetting(setting); });
    };
    const double local_s = plan_into(PlanSearch::kLocal, &local);
    const double bounded_s = plan_into(PlanSearch::kBranchAndBound, &bounded);
    if (!local.ok() || !bounded.ok()) {
      std::printf("%-46s %s\n", setting.name.c_str(), local.status().ToString().c_str());
      continue;
    }
    const double ratio = bounded->outcome.step_s / local->outcome.step_s;
    std::printf("%-46s %9.3f %9.3f %7.3f %8.0f %8.0f\n", setting.name.c_str(),
                local->outcome.step_s, bounded->outcome.step_s, ratio, 1e3 * local_s,
                1e3 * bounded_s);
    std::fflush(stdout);
    steps.push_back(ratio);
    times.push_back(bounded_s / local_s);
    best = std::min(best, ratio);
    worst = std::max(worst, ratio);
  }
  std::printf("best ratio of steps %.3f, worst %.3f\n", best, worst);
  // Branch and bound is the default.
  PrintFigureAtMost("bounded_over_local_step_mean", MeanRatio(steps), "ratio", 0.99);
  PrintFigureAtMost("bounded_over_local_step_worst", worst, "ratio", 1.01);
  PrintFigureAtMost("bounded_over_local_planning_time", MeanRatio(times), "ratio", 1.5);
}

}  // namespace atl::bench
