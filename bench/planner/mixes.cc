// Unlike devices over sites against subsets of them, and large clusters at one site and at four.

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "bench/measure.h"
#include "bench/planner/rows.h"

namespace atl::bench {
namespace {

double StepSeconds(const Setting& setting) {
  const auto plan = PlanSetting(setting);
  return plan.ok() ? plan->outcome.step_s : 0;
}

// The best plan of any subset tried: the fastest devices, each site alone, each site left out.
double BestSubset(const Setting& setting, int sites, std::string* which) {
  const std::vector<plan::Device>& devices = setting.cluster.devices;
  std::vector<int> order;
  for (size_t d = 0; d < devices.size(); ++d) order.push_back(static_cast<int>(d));
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    return setting.cluster.types[devices[a].type].flops_per_s >
           setting.cluster.types[devices[b].type].flops_per_s;
  });
  double best = 0;
  const auto offer = [&](const Setting& subset, const std::string& name) {
    const double step_s = StepSeconds(subset);
    if (step_s <= 0 || (best > 0 && step_s >= best)) return;
    best = step_s;
    *which = name;
  };
  const int count = static_cast<int>(devices.size());
  for (const int part : {4, 6, 8, 10, 12, 16, 20, 24}) {
    if (part >= count) break;
    const std::vector<int> kept(order.begin(), order.begin() + part);
    offer(Subset(setting, [&](int d) { return std::count(kept.begin(), kept.end(), d) > 0; }),
          absl::StrCat("the fastest ", part));
  }
  for (int site = 0; site < sites; ++site) {
    const std::string name = absl::StrCat("site", site);
    offer(Subset(setting, [&](int d) { return devices[d].site == name; }), name);
    offer(Subset(setting, [&](int d) { return devices[d].site != name; }),
          absl::StrCat("without ", name));
  }
  return best;
}

}  // namespace

void PrintMixes() {
  std::printf("\nUnlike devices, each of a type of its own: the plan over the best of a subset\n");
  double worst = 0, slowest_s = 0, worst_bound = 1;
  for (const int count : {13, 22, 28, 40}) {
    for (const uint64_t seed : {1, 2, 3}) {
      const int sites = count < 20 ? 3 : 6;
      const Setting setting = Unlike(count, sites, seed, "gpt3-1.3b", 64);
      const Row row = PlanRow(setting, nullptr);
      if (!row.plan.ok()) continue;
      std::string which;
      const double step_s = row.plan->outcome.step_s;
      const double ratio = step_s / BestSubset(setting, sites, &which);
      std::printf("    over %s: %.3f\n", which.c_str(), ratio);
      worst = std::max(worst, ratio);
      slowest_s = std::max(slowest_s, row.seconds);
      worst_bound = std::max(worst_bound, step_s / row.plan->outcome.bound_s);
    }
  }
  PrintFigureAtMost("unlike_over_best_subset_worst", worst, "ratio", 1);
  PrintFigureAtMost("unlike_planned_slowest", slowest_s, "s", 1);
  PrintFigureAtMost("unlike_over_bound_worst", worst_bound, "ratio", 1.10);
}

void PrintSites(const std::vector<int>& sizes) {
  std::printf("\nPlanning at one site and at four\n");
  const std::vector<std::string> three = {"a100-80", "h800", "h20"};
  const std::vector<std::string> four = {"a100-80", "h800", "h20", "l20"};
  struct Scale {
    int count;
    const char* model;
    int batch;
    double goal_s;
  };
  constexpr Scale kScales[] = {{64, "gpt3-6.7b", 512, 0.5},
                               {512, "gpt3-13b", 2048, 2},
                               {1024, "gpt3-22b", 2048, 5},
                               {4096, "gpt3-175b", 4096, 20},
                               {10'000, "gpt3-175b", 10'000, 60}};
  for (const Scale& scale : kScales) {
    if (!sizes.empty() && std::find(sizes.begin(), sizes.end(), scale.count) == sizes.end()) {
      continue;
    }
    for (const int sites : {1, 4}) {
      for (const auto& types : {three, four}) {
        if (scale.count > 64 && types.size() == 3) continue;
        const Setting setting = Sites(types, scale.count, sites, scale.model, scale.batch);
        const Row row = PlanRow(setting, nullptr);
        PrintFigureAtMost(
            absl::StrCat("plan_", scale.count, "_gpus_", types.size(), "_types_", sites, "_sites"),
            row.seconds, "s", scale.goal_s);
      }
    }
  }
}

}  // namespace atl::bench
