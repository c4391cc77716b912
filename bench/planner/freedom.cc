// Tests whether more freedom, another seed or another order of devices ever makes a plan worse;
// prints the steps of many plans, to compare two versions of the planner.

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "bench/measure.h"
#include "bench/planner/rows.h"
#include "common/rng.h"

namespace atl::bench {
namespace {

constexpr double kSame = 1e-6;

// Makes a setting of one to three types in nodes of one to eight, at one to three sites.
Setting Generated(uint64_t seed) {
  Rng rng(seed);
  const std::vector<std::string> types = {"v100", "a100-40", "a100-80", "h100",
                                          "h20",  "l20",     "rtx3090", "rtx4090"};
  Setting made;
  plan::Cluster& cluster = made.cluster;
  const size_t sites = 1 + rng.Below(3);
  const size_t kinds = 1 + rng.Below(3);
  for (size_t k = 0; k < kinds; ++k) {
    cluster.types.push_back(*plan::FindDeviceType(types[rng.Below(types.size())]));
    const size_t per_node = size_t{1} << rng.Below(4);
    const size_t nodes = 1 + rng.Below(per_node > 2 ? 2 : 4);
    for (size_t n = 0; n < nodes; ++n) {
      const std::string node = absl::StrCat("k", k, "n", n);
      const std::string site = absl::StrCat("s", rng.Below(sites));
      for (size_t d = 0; d < per_node; ++d) {
        cluster.devices.push_back({absl::StrCat(node, ".", d), node, site, static_cast<int>(k)});
      }
    }
  }
  const auto between = [&](double low, double high) {
    return low * std::pow(high / low, static_cast<double>(rng.Below(1000)) / 1000);
  };
  cluster.site_link = {20e-6, between(0.125e9, 50e9)};
  cluster.wan_link = {between(1e-3, 50e-3), between(12.5e6, 1.25e9)};
  const std::vector<std::string> models = {"gpt2-medium", "gpt2-xl", "gpt3-1.3b", "bert-large",
                                           "llama-7b"};
  made.model = models[rng.Below(models.size())];
  made.job.global_batch = 8 << rng.Below(5);
  if (rng.Chance(0.2)) made.job.tensor_parallel = {1, 2};
  made.name = absl::StrCat("generated #", seed);
  return made;
}

std::vector<Setting> Settings(int generated) {
  std::vector<Setting> settings;
  for (const int number : {1, 2}) {
    for (const auto& [model, batch] :
         {std::pair("resnet50", 256), std::pair("bert-large", 64), std::pair("gpt2-large", 64)}) {
      settings.push_back(SpanTrain(number, model, batch));
    }
  }
  settings.push_back(AutoHet({{"a100-80", 8}, {"h800", 4}}, "gpt3-6.7b", 64));
  settings.push_back(AutoHet({{"a100-80", 4}, {"h20", 8}}, "llama-7b", 64));
  settings.push_back(AutoHet({{"a100-80", 5}, {"h800", 3}}, "bert-large", 64));
  for (const uint64_t seed : {1, 2}) {
    settings.push_back(Unlike(13, 3, seed, "gpt3-1.3b", 64));
    settings.push_back(Unlike(22, 6, seed, "gpt3-1.3b", 64));
  }
  settings.push_back(Sites({"a100-80", "h800", "h20"}, 64, 4, "gpt3-6.7b", 128));
  settings.push_back(OneSite({"h100", "a100-80", "v100"}, 8, 8, "gpt3-2.7b", 64));
  for (int seed = 1; seed <= generated; ++seed) {
    settings.push_back(Generated(static_cast<uint64_t>(seed)));
  }
  return settings;
}

// Returns the seconds of a step; 0: nothing fits.
double StepSeconds(const Setting& setting, uint64_t seed = 1) {
  plan::Options options;
  options.seed = seed;
  const auto plan = plan::PlanJob(setting.cluster, setting.costs(), setting.job, options);
  return plan.ok() ? plan->outcome.step_s : 0;
}

}  // namespace

void PrintSteps(int generated) {
  std::printf("\nSteps in seconds\n");
  for (const Setting& setting : Settings(generated)) {
    std::printf("%-60s %.9g\n", setting.name.c_str(), StepSeconds(setting));
    std::fflush(stdout);
  }
}

// A plan that is free in something against those that are not, with all else the same.
void PrintFreedom(int generated) {
  std::printf("\nPlans with less freedom that are better\n");
  int violations = 0, compared = 0;
  double worst = 1, other_seed = 1;
  for (int seed = 1; seed <= generated; ++seed) {
    const Setting free = Generated(static_cast<uint64_t>(seed));
    const double free_s = StepSeconds(free);
    if (free_s <= 0) continue;
    Setting turned = free;
    std::reverse(turned.cluster.devices.begin(), turned.cluster.devices.end());
    for (const double other_s : {StepSeconds(free, 2), StepSeconds(turned)}) {
      other_seed = std::max({other_seed, free_s / other_s, other_s / free_s});
    }
    std::vector<Setting> fixed;
    for (const int replicas : {1, 2, 4}) {
      fixed.push_back(free);
      fixed.back().job.fixed.replicas = replicas;
      fixed.back().name = absl::StrCat(free.name, ", ", replicas, " replicas");
    }
    for (const int tp : {1, 2}) {
      fixed.push_back(free);
      fixed.back().job.tensor_parallel = {tp};
      fixed.back().name = absl::StrCat(free.name, ", TP ", tp);
    }
    fixed.push_back(free);
    fixed.back().job.fixed.stages = 2;
    fixed.back().name = absl::StrCat(free.name, ", 2 stages");
    for (size_t type = 0; free.cluster.types.size() > 1 && type < free.cluster.types.size();
         ++type) {
      fixed.push_back(Subset(
          free, [&](int d) { return free.cluster.devices[d].type != static_cast<int>(type); }));
      fixed.back().name = absl::StrCat(free.name, ", without type ", type);
    }
    for (const Setting& setting : fixed) {
      if (setting.cluster.devices.empty()) continue;
      const double fixed_s = StepSeconds(setting);
      if (fixed_s <= 0) continue;
      ++compared;
      if (fixed_s >= free_s * (1 - kSame)) continue;
      ++violations;
      worst = std::max(worst, free_s / fixed_s);
      std::printf("    %s: %.4f\n", setting.name.c_str(), free_s / fixed_s);
    }
  }
  std::printf("%d of %d compared\n", violations, compared);
  PrintFigureAtMost("plan_over_less_free_worst", worst, "ratio", 1);
  PrintFigureAtMost("plan_over_other_seed_worst", other_seed, "ratio", 1.003);
}

}  // namespace atl::bench
