// How long planning takes, how good the plans are against published ones, baselines and bounds, and
// how fast the simulator is. One core, but for the operator placement's workers.

#include "coordinator/planner/planner.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "bench/planner/jeeves.h"
#include "bench/planner/judge.h"
#include "bench/planner/losses.h"
#include "bench/planner/measured.h"
#include "bench/planner/placement.h"
#include "bench/planner/rows.h"
#include "common/rng.h"
#include "coordinator/simulator/schedules.h"
#include "coordinator/simulator/testing/uniform.h"

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

void PlanningTime(BoundRatios* bounds) {
  std::printf("\nPlanning time\n");
  std::vector<std::pair<std::string, int>> types = {{"a100-80", 24}, {"h800", 24}, {"h20", 16}};
  PrintFigureAtMost("plan_22_devices", PlanRow(SpanTrain(1, "gpt2", 128), bounds).seconds, "s",
                    0.1);
  PrintFigureAtMost("plan_64_gpus_3_types",
                    PlanRow(AutoHet(types, "gpt3-6.7b", 512), bounds).seconds, "s", 0.5);
  types = {{"a100-80", 16}, {"h800", 16}, {"h20", 16}, {"l20", 16}};
  PrintFigureAtMost("plan_64_gpus_4_types",
                    PlanRow(AutoHet(types, "gpt3-6.7b", 512), bounds).seconds, "s", 1);
  types = {{"a100-80", 256}, {"h800", 256}};
  PrintFigureAtMost("plan_512_gpus_2_types",
                    PlanRow(AutoHet(types, "gpt3-13b", 2048), bounds).seconds, "s", 2);
  types = {{"a100-80", 512}, {"h800", 512}};
  PrintFigureAtMost("plan_1024_gpus_2_types",
                    PlanRow(AutoHet(types, "gpt3-22b", 2048), bounds).seconds, "s", 10);
  types = {{"a100-80", 2048}, {"h800", 2048}};
  PrintFigureAtMost("plan_4096_gpus_2_types",
                    PlanRow(AutoHet(types, "gpt3-175b", 4096), bounds).seconds, "s", 10);
}

// Two models of eight operators each on three unlike devices joined by links of two edges.
plan::PlacementProblem Operators() {
  Rng rng(7);
  plan::PlacementProblem problem;
  problem.weights = {1, 2};
  problem.memory_bytes.assign(3, 1 << 20);
  for (int i = 0; i < 16; ++i) {
    plan::Operator op;
    op.model = i / 8;
    for (int d = 0; d < 3; ++d)
      op.time_ns.push_back(20 + static_cast<int64_t>(rng.Below(60)) * (d + 1));
    for (int j = op.model * 8; j < i; ++j) {
      if (rng.Chance(0.35)) op.inputs.push_back(j);
    }
    op.result_bytes = 5 + static_cast<int64_t>(rng.Below(40));
    problem.operators.push_back(op);
  }
  for (int a = 0; a < 3; ++a) {
    for (int b = 0; b < 3; ++b) {
      if (a == b) continue;
      problem.links[{a, b}] = {{sim::Edge{5, 1e9, {}, -1}, sim::Edge{15, 2e9, {}, -1}}};
    }
  }
  return problem;
}

void OperatorPlacement() {
  const plan::PlacementProblem problem = Operators();
  plan::PlacementOptions alone;
  alone.max_nodes = 20'000;
  ThreadPool pool(2);
  plan::PlacementOptions two = alone;
  two.pool = &pool;
  const auto greedy = plan::PlaceGreedily(problem);
  const auto best = plan::PlaceOptimally(problem, alone);
  const auto together = plan::PlaceOptimally(problem, two);
  const Comparison speed = Compare([&] { (void)plan::PlaceOptimally(problem, alone); },
                                   [&] { (void)plan::PlaceOptimally(problem, two); }, 3);
  std::printf(
      "\nPlacing 16 operators on 3 devices over links of two edges: greedy %.0f ns, %lld nodes "
      "give "
      "%.0f (bound %.0f);\ntwo workers find %s placement, %.2f times as fast\n",
      greedy->cost_ns, static_cast<long long>(best->nodes), best->cost_ns, best->bound_ns,
      together->cost_ns == best->cost_ns ? "the same" : "ANOTHER", speed.speed);
  PrintFigureAtMost("placement_over_greedy", best->cost_ns / greedy->cost_ns, "ratio", 1);
}

}  // namespace
}  // namespace atl::bench

// All parts, or those that are named: speed, time, losses, placement, published, scenarios,
// measured, judged, jeeves, mixes, searches, freedom, steps, sites (all sizes or those
// given: sites 64 1024).
int main(int argc, char** argv) {
  const auto wanted = [&](const std::string& part) {
    return argc == 1 || std::find(argv + 1, argv + argc, part) != argv + argc;
  };
  atl::bench::BoundRatios bounds;
  if (wanted("speed")) atl::bench::SimulatorSpeed();
  if (wanted("time")) atl::bench::PlanningTime(&bounds);
  if (wanted("losses")) atl::bench::PrintLosses();
  if (wanted("placement")) atl::bench::OperatorPlacement();
  if (wanted("published")) atl::bench::PrintPublished(&bounds);
  if (wanted("scenarios")) atl::bench::PrintScenarios(&bounds);
  if (bounds.rows > 0) {
    std::printf("\nRatio to the lower bound over %d plans; where memory binds at most %.3f\n",
                bounds.rows, bounds.worst_bound);
    atl::bench::PrintFigureAtMost("plan_over_bound_worst", bounds.worst_free, "ratio", 1.05);
  }
  if (wanted("measured")) atl::bench::PrintMeasured();
  if (wanted("judged")) atl::bench::PrintJudged();
  if (wanted("jeeves")) atl::bench::PrintJeeves();
  if (wanted("mixes")) atl::bench::PrintMixes();
  if (wanted("searches")) atl::bench::PrintSearches();
  std::vector<int> sizes;
  for (int i = 1; i < argc; ++i) {
    if (const int size = std::atoi(argv[i]); size > 0) sizes.push_back(size);
  }
  if (wanted("sites")) atl::bench::PrintSites(sizes);
  const int generated = sizes.empty() ? 40 : sizes[0];
  if (wanted("steps")) atl::bench::PrintSteps(generated);
  if (wanted("freedom")) atl::bench::PrintFreedom(generated);
}
