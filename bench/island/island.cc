// Islands that span devices and sites: the time of real execution against the plan's prediction.
//
// Real: engines, executors, programs, messages and their order, the commit exchange. Emulated, as
// two cores cannot run four devices at once: computation (sleeps of exact length) and the links
// between sites (shared evenly by all senders, latency behind it: shaped_transport.h). All ratios
// are of steps that take turns in one run.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/island/adapter_case.h"
#include "bench/island/emulated_island.h"
#include "bench/measure.h"
#include "bench/planner/baselines.h"
#include "common/check.h"
#include "coordinator/plan_io/island_plan_conversion.h"
#include "coordinator/planner/replica_problem.h"

namespace atl::bench {
namespace {

// One layout under one setting.
struct Case {
  std::string name;
  IslandPlan plan;
  double predicted_s = 0;
  double predicted_bubble = 0;
  double measured_s = 0;
  double measured_bubble = 0;

  double error() const { return measured_s / predicted_s - 1; }
};

Case PlanCase(const IslandSetting& setting, const Task& task, const LayoutSpec& layout,
              const std::string& name) {
  PlanRequest request = MakePlanRequest(setting, task);
  request.spec.layout = layout;
  auto plan = PlanIsland(request);
  ATOLL_CHECK(plan.ok(), setting.name, ", ", name, ": ", plan.status().ToString());
  Case made;
  made.name = name;
  made.plan = *std::move(plan);
  made.predicted_s = static_cast<double>(made.plan.step_ns) * 1e-9;
  made.predicted_bubble =
      1 - WorkSeconds(setting, task, made.plan) /
              (static_cast<double>(made.plan.programs.size()) * made.predicted_s);
  return made;
}

LayoutSpec Pipeline(int stages, const std::string& schedule, int replicas = 1) {
  LayoutSpec layout;
  layout.stages = stages;
  layout.replicas = replicas;
  layout.schedule = schedule;
  return layout;
}

// Steps that do not count: in these a device's memory is touched for the first time.
constexpr int kUncounted = 3;

// All cases take turns, `rounds` times after those that do not count; medians.
void Run(const IslandSetting& setting, const Task& task, int rounds, std::vector<Case>& cases) {
  std::vector<std::unique_ptr<EmulatedIsland>> islands;
  for (const Case& each : cases) {
    islands.push_back(std::make_unique<EmulatedIsland>(setting, task, each.plan));
  }
  std::vector<std::vector<double>> steps(cases.size()), bubbles(cases.size());
  for (int round = 0; round < kUncounted + rounds; ++round) {
    for (size_t i = 0; i < cases.size(); ++i) {
      const Measured measured = islands[i]->Step();
      if (round < kUncounted) continue;
      steps[i].push_back(measured.step_s);
      bubbles[i].push_back(measured.bubble);
    }
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    cases[i].measured_s = Median(steps[i]);
    cases[i].measured_bubble = Median(bubbles[i]);
  }
}

void Print(const IslandSetting& setting, const std::vector<Case>& cases) {
  std::printf("\n%s\n%-34s %9s %9s %7s %8s %8s\n", setting.name.c_str(), "layout", "plan ms",
              "real ms", "error", "bubble", "real");
  for (const Case& each : cases) {
    std::printf("%-34s %9.1f %9.1f %+6.1f%% %7.1f%% %7.1f%%\n", each.name.c_str(),
                1e3 * each.predicted_s, 1e3 * each.measured_s, 100 * each.error(),
                100 * each.predicted_bubble, 100 * each.measured_bubble);
  }
}

// The findings of all scenarios together.
struct Found {
  std::vector<Case> all;
  double kept = INFINITY;           // least real / predicted speed-up
  double speedup = 0;               // over 1F1B at 100 Mbit/s and 20 ms
  double heterogeneous = 0;         // planned over uniform
  double in_send_order = INFINITY;  // least gain over all at once, on a shared link
};

const std::vector<std::string> kTwoSites = {"a", "a", "b", "b"};

IslandSetting TwoSites(double mbit_per_s, double latency_ms,
                       std::vector<double> speeds = {1, 1, 1, 1}) {
  return {absl::StrFormat("2 sites of 2 devices, %.0f Mbit/s, %.0f ms", mbit_per_s, latency_ms),
          kTwoSites,
          std::move(speeds),
          {latency_ms * 1e-3, mbit_per_s * 1e6 / 8}};
}

void Schedules(int rounds, Found& found) {
  for (const double mbit : {100.0, 500.0, 1000.0}) {
    for (const double ms : {1.0, 20.0}) {
      const IslandSetting setting = TwoSites(mbit, ms);
      const Task task;
      std::vector<Case> cases;
      for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "compact-zb", "best"}) {
        cases.push_back(
            PlanCase(setting, task, Pipeline(4, schedule), absl::StrCat("4 stages, ", schedule)));
      }
      Run(setting, task, rounds, cases);
      Print(setting, cases);
      for (const size_t ours : {3, 4}) {
        for (const size_t theirs : {0, 1}) {
          const double predicted = cases[theirs].predicted_s / cases[ours].predicted_s;
          const double real = cases[theirs].measured_s / cases[ours].measured_s;
          found.kept = std::min(found.kept, real / predicted);
        }
      }
      if (mbit == 100 && ms == 20) found.speedup = cases[1].measured_s / cases[4].measured_s;
      found.all.insert(found.all.end(), cases.begin(), cases.end());
    }
  }
}

void OtherLayouts(int rounds, Found& found) {
  const Task task;
  for (const IslandSetting& setting : {TwoSites(100, 20), TwoSites(1000, 1, {1, 1, 2, 2})}) {
    std::vector<Case> cases;
    cases.push_back(PlanCase(setting, task, Pipeline(2, "zb-h2"), "2 stages, zb-h2"));
    cases.push_back(PlanCase(setting, task, Pipeline(3, "jeeves"), "3 stages, jeeves"));
    cases.push_back(PlanCase(setting, task, Pipeline(2, "best", 2), "2 replicas of 2 stages"));
    cases.push_back(PlanCase(setting, task, Pipeline(2, "zb-v"), "2 devices, zb-v"));
    cases.push_back(PlanCase(setting, task, Pipeline(4, "interleaved"), "4 devices, interleaved"));
    cases.push_back(PlanCase(setting, task, {}, "as the planner likes"));
    Run(setting, task, rounds, cases);
    IslandSetting named = setting;
    if (setting.speeds[3] != 1) absl::StrAppend(&named.name, ", speeds 1:1:2:2");
    Print(named, cases);
    found.all.insert(found.all.end(), cases.begin(), cases.end());
  }
}

// Equal layers, equal stages, equal samples: the best that a planner for equal devices finds.
Case Uniform(const IslandSetting& setting, const Task& task) {
  const PlanRequest request = MakePlanRequest(setting, task);
  const auto input = MakePlanningInput(request);
  ATOLL_CHECK(input.ok(), input.status().ToString());
  plan::Plan plan;
  auto layout = plan::Baseline(input->cluster, input->costs, input->job, "megatron");
  ATOLL_CHECK(layout.ok(), layout.status().ToString());
  plan.layout = *std::move(layout);
  auto outcome = plan::EvaluateLayout(input->cluster, input->costs, plan.layout, {});
  ATOLL_CHECK(outcome.ok(), outcome.status().ToString());
  plan.outcome = *std::move(outcome);
  Case made;
  made.name = absl::StrCat("uniform: ", plan::Describe(plan.layout));
  made.plan = ToIslandPlan(input->cluster, plan);
  made.plan.number = 1;
  for (const PlanMember& member : request.members) made.plan.members.push_back(member.member);
  made.predicted_s = plan.outcome.step_s;
  made.predicted_bubble =
      1 - WorkSeconds(setting, task, made.plan) /
              (static_cast<double>(made.plan.programs.size()) * made.predicted_s);
  return made;
}

void Heterogeneous(int rounds, Found& found) {
  const Task task;
  IslandSetting setting = TwoSites(1000, 1, {1, 2, 2, 4});
  setting.sites = {"a", "a", "a", "a"};
  setting.name = "1 site, devices of speed 1:2:2:4";
  std::vector<Case> cases = {Uniform(setting, task), PlanCase(setting, task, {}, "planned")};
  Run(setting, task, rounds, cases);
  Print(setting, cases);
  found.heterogeneous = cases[0].measured_s / cases[1].measured_s;
  found.all.insert(found.all.end(), cases.begin(), cases.end());
}

// Two stages each of some replicas over two sites: all of them cross the link.
plan::Plan CrossingReplicas(const PlanningInput& input, int replicas, int micro_batches) {
  plan::Plan plan;
  plan.layout.micro_batch = 1;
  const auto layers = static_cast<int>(input.costs.model().layers.size());
  for (int r = 0; r < replicas; ++r) {
    plan.layout.replicas.push_back(
        {{{{r}, 0, layers / 2}, {{replicas + r}, layers / 2, layers}}, micro_batches});
  }
  auto outcome = plan::EvaluateLayout(input.cluster, input.costs, plan.layout, {.restarts = 64});
  ATOLL_CHECK(outcome.ok(), outcome.status().ToString());
  plan.outcome = *std::move(outcome);
  return plan;
}

// Returns the seconds that the same schedules take when the link carries messages in the order in
// which they are ready; what follows the last operation is taken to be the same.
double SecondsAllAtOnce(const PlanningInput& input, const plan::Plan& plan) {
  plan::Together all = plan::PutTogether(input.cluster, plan.layout, plan.outcome);
  std::vector<int> trunk_of(static_cast<size_t>(all.problem.network.lanes), -1);
  for (sim::Link& link : all.problem.network.links) {
    if (link.lane < 0) continue;
    int& trunk = trunk_of[link.lane];
    if (trunk < 0) {
      trunk = static_cast<int>(all.problem.network.trunks.size());
      all.problem.network.trunks.push_back({link.edges[0].bytes_per_s, {}});
    }
    link.edges[0].trunks = {trunk};
    link.lane = -1;
  }
  const sim::Result played = sim::SimulateUnchecked(all.problem, all.schedule, {});
  return 1e-9 * static_cast<double>(played.makespan_ns) + plan.outcome.sync_s +
         plan.outcome.commit_s;
}

// Replicas under the shared-link scheduler against the same ones that all send at once.
void MeasureSharedLink(int rounds, Found& found) {
  for (const int replicas : {2, 4}) {
    Task task;
    task.batch = 8 * replicas;
    IslandSetting setting = TwoSites(100, 20);
    setting.sites.clear();
    for (int w = 0; w < 2 * replicas; ++w) setting.sites.push_back(w < replicas ? "a" : "b");
    setting.speeds.assign(setting.sites.size(), 1);
    setting.name = absl::StrFormat("2 sites of %d devices, 100 Mbit/s, 20 ms", replicas);
    const PlanRequest request = MakePlanRequest(setting, task);
    const auto input = MakePlanningInput(request);
    ATOLL_CHECK(input.ok(), input.status().ToString());
    const plan::Plan plan = CrossingReplicas(*input, replicas, 8);
    std::vector<Case> cases(2);
    for (Case& each : cases) {
      each.plan = ToIslandPlan(input->cluster, plan);
      each.plan.number = 1;
      for (const PlanMember& member : request.members) each.plan.members.push_back(member.member);
    }
    ATOLL_CHECK(cases[0].plan.link_orders.size() == 2);
    cases[0].name = absl::StrCat(replicas, " replicas over one line, in turn");
    cases[0].predicted_s = plan.outcome.step_s;
    cases[1].name = absl::StrCat(replicas, " replicas over one line, all at once");
    cases[1].plan.link_orders.clear();
    cases[1].predicted_s = SecondsAllAtOnce(*input, plan);
    for (Case& each : cases) {
      each.predicted_bubble =
          1 - WorkSeconds(setting, task, each.plan) /
                  (static_cast<double>(each.plan.programs.size()) * each.predicted_s);
    }
    Run(setting, task, rounds, cases);
    Print(setting, cases);
    std::printf("all at once takes %.3f times as long; predicted %.3f\n",
                cases[1].measured_s / cases[0].measured_s,
                cases[1].predicted_s / cases[0].predicted_s);
    found.in_send_order = std::min(found.in_send_order, cases[1].measured_s / cases[0].measured_s);
    found.all.insert(found.all.end(), cases.begin(), cases.end());
  }
}

void PrintFigures(const Found& found, const AdapterGain& adapter) {
  double error = 0, worst = 0, bubble = 0;
  for (const Case& each : found.all) {
    error += std::abs(each.error());
    worst = std::max(worst, std::abs(each.error()));
    bubble += std::abs(each.measured_bubble - each.predicted_bubble);
  }
  const auto count = static_cast<double>(found.all.size());
  std::printf("\n%zu layouts and settings; largest error of a step's time %.1f%%\n\n",
              found.all.size(), 100 * worst);
  PrintFigureAtMost("island_prediction_error", error / count, "mean absolute ratio", 0.05);
  PrintFigureAtLeast("island_predicted_speedup_kept", found.kept, "real/predicted, the least",
                     0.97);
  PrintFigureAtLeast("island_speedup_over_1f1b_100mbit_20ms", found.speedup, "x", 1.3);
  PrintFigureAtLeast("island_heterogeneous_over_uniform", found.heterogeneous, "x", 1.5);
  // Never slower, but for the noise of a measurement.
  PrintFigureAtLeast("island_replicas_in_send_order_on_one_link", found.in_send_order,
                     "all at once/in turn, the least", 0.99);
  PrintFigureAtLeast("island_adapter_when_the_link_slows", adapter.slowed, "off/on", 1.35);
  PrintFigureAtLeast("island_adapter_on_a_fast_link", adapter.steady, "off/on", 0.98);
  PrintFigureAtMost("island_bubble_difference", bubble / count, "of the step, mean", 0.03);
}

int Main() {
  constexpr int kRounds = 3;
  std::printf(
      "Computation and lines between sites are emulated; programs, messages and their order "
      "are real.\n");
  Found found;
  Schedules(kRounds, found);
  OtherLayouts(kRounds, found);
  Heterogeneous(kRounds, found);
  MeasureSharedLink(kRounds, found);
  PrintFigures(found, MeasureAdapter(kRounds));
  return 0;
}

}  // namespace
}  // namespace atl::bench

int main() { return atl::bench::Main(); }
