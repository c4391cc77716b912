// How long planning takes, how good the plans are against published ones and baselines, and how
// fast the simulator is. One core.

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "bench/planner/clusters.h"
#include "bench/planner/jeeves.h"
#include "bench/planner/rounds.h"
#include "coordinator/simulator/schedules.h"

namespace atl::bench {
namespace {

void SimulatorSpeed() {
  const sim::Problem problem = sim::MakeUniform({.stages = 32,
                                                 .micro_batches = 256,
                                                 .forward_ns = 10'419,
                                                 .backward_ns = 10'207,
                                                 .weight_ns = 7'715,
                                                 .latency_ns = 408,
                                                 .serial_ns = 100});
  const sim::Schedule schedule = *sim::ZeroBubbleH1(problem);
  int64_t events = 0;
  const double seconds =
      MedianSeconds([&] { events = sim::SimulateUnchecked(problem, schedule, {}).events; }, 21);
  std::printf("\nSimulator: %lld events of 32 stages x 256 micro-batches in %.2f ms\n",
              static_cast<long long>(events), 1e3 * seconds);
  PrintFigureAtLeast("simulator_events", static_cast<double>(events) / seconds / 1e6, "million/s",
                     5);
}

// Processor time: planning runs on one thread, and others use this machine too.
double ProcessorSecondsOf(const std::function<void()>& work) {
  const std::clock_t start = std::clock();
  work();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

// Plans one setting, prints a row, returns the processor seconds it took.
double PlanRow(const Setting& setting, const plan::Options& options, bool baselines) {
  const plan::Costs costs(*plan::FindModel(setting.model), {}, {});
  absl::StatusOr<plan::Plan> plan = absl::UnknownError("not planned");
  const double seconds = ProcessorSecondsOf(
      [&] { plan = plan::PlanJob(setting.cluster, costs, setting.job, options); });
  if (!plan.ok()) {
    std::printf("%-46s %s\n", setting.name.c_str(), plan.status().ToString().c_str());
    return seconds;
  }
  std::printf("%-46s %7.0f ms | %s: %.4g s/step, bound %.4g (x%.3f)\n", setting.name.c_str(),
              1e3 * seconds, plan::Describe(plan->layout).c_str(), plan->outcome.step_s,
              plan->outcome.bound_s, plan->outcome.step_s / plan->outcome.bound_s);
  if (!baselines) return seconds;
  for (const std::string& name : plan::BaselineNames()) {
    const auto layout = plan::Baseline(setting.cluster, costs, setting.job, name);
    if (!layout.ok()) {
      std::printf("    %-14s does not fit\n", name.c_str());
      continue;
    }
    const auto outcome = plan::EvaluateLayout(setting.cluster, costs, setting.job, *layout, {});
    if (!outcome.ok()) continue;
    std::printf("    %-14s x%.2f  %s\n", name.c_str(), outcome->step_s / plan->outcome.step_s,
                plan::Describe(*layout).c_str());
  }
  return seconds;
}

void PlanningTime() {
  std::printf("\nPlanning time\n");
  const plan::Options options;
  std::vector<std::pair<std::string, int>> types = {{"a100-80", 24}, {"h800", 24}, {"h20", 16}};
  PrintFigureAtMost("plan_22_devices", PlanRow(SpanTrain(1, "gpt2", 128), options, false), "s",
                    0.1);
  PrintFigureAtMost("plan_64_gpus_3_types",
                    PlanRow(AutoHet(types, "gpt3-6.7b", 512), options, false), "s", 0.5);
  types = {{"a100-80", 16}, {"h800", 16}, {"h20", 16}, {"l20", 16}};
  PrintFigureAtMost("plan_64_gpus_4_types",
                    PlanRow(AutoHet(types, "gpt3-6.7b", 512), options, false), "s", 1);
  types = {{"a100-80", 256}, {"h800", 256}};
  PrintFigureAtMost("plan_512_gpus_2_types",
                    PlanRow(AutoHet(types, "gpt3-13b", 2048), options, false), "s", 2);
  types = {{"a100-80", 2048}, {"h800", 2048}};
  PrintFigureAtMost("plan_4096_gpus_2_types",
                    PlanRow(AutoHet(types, "gpt3-175b", 4096), options, false), "s", 10);
}

void Loss() {
  const Setting setting = SpanTrain(1, "gpt2", 128);
  const plan::Costs costs(*plan::FindModel(setting.model), {}, {});
  plan::Options options;
  options.simulate = 2;
  const auto plans = plan::PlansForLoss(setting.cluster, costs, setting.job, options);
  const auto first = plans.begin()->first;
  const double lookup_s = MedianSeconds([&] { (void)plans.find(first)->second.ok(); }, 101);
  PrintFigureAtMost("lost_node_lookup", 1e3 * lookup_s, "ms", 10);
  Setting changed = SpanTrain(1, "gpt2", 128);
  for (auto& [sites, wire] : changed.cluster.site_to_site) wire.bytes_per_s /= 2;
  PrintFigureAtMost("replan_on_bandwidth", 1e3 * PlanRow(changed, options, false), "ms", 100);
}

void Published() {
  std::printf(
      "\nAgainst baselines (xN: the baseline's step over ours; roofline times at 45%%)\n"
      "published: AutoHet over Megatron 1.38 to 1.79, over Whale up to 1.51;\n"
      "SpanTrain over data parallel 1.74 to 2.38, over pipelines 1.04 to 1.71\n");
  const plan::Options options;
  PlanRow(AutoHet({{"a100-80", 4}, {"h800", 4}}, "gpt3-6.7b", 64), options, true);
  PlanRow(AutoHet({{"a100-80", 8}, {"h800", 8}}, "gpt3-6.7b", 128), options, true);
  PlanRow(AutoHet({{"a100-80", 8}, {"h20", 8}}, "gpt3-6.7b", 128), options, true);
  PlanRow(AutoHet({{"a100-80", 4}, {"h800", 2}}, "llama-7b", 64), options, true);
  PlanRow(AutoHet({{"a100-80", 5}, {"h800", 3}}, "llama-7b", 64), options, true);
  PlanRow(AutoHet({{"a100-80", 1}, {"h20", 4}}, "llama-7b", 64), options, true);
  for (const int setting : {1, 2}) {
    for (const int batch : {128, 256}) {
      PlanRow(SpanTrain(setting, "gpt2", batch), options, true);
      PlanRow(SpanTrain(setting, "resnet101", batch), options, true);
    }
  }
}

}  // namespace
}  // namespace atl::bench

int main() {
  atl::bench::SimulatorSpeed();
  atl::bench::PlanningTime();
  atl::bench::Loss();
  atl::bench::Published();
  atl::bench::PrintJeeves();
  atl::bench::PrintRounds();
}
