#include "bench/planner/measured.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bench/measure.h"
#include "common/check.h"
#include "common/status.h"
#include "coordinator/plan_io/profile_file.h"
#include "coordinator/planning/planning.h"

namespace atl::bench {
namespace {

constexpr const char* kSite = "site";

std::string DeviceName(int node, int rank) { return absl::StrCat("n", node, "/", rank); }

v1::ClusterSpec DescribeNodes(const MeasuredSet& set, int nodes) {
  v1::ClusterSpec spec;
  for (int n = 0; n < nodes; ++n) {
    for (int rank = 0; rank < set.devices_per_node; ++rank) {
      v1::Device& device = *spec.add_devices();
      device.set_id(DeviceName(n, rank));
      device.set_type(set.profile.times(0).type());
      device.set_node(absl::StrCat("n", n));
      device.set_site(kSite);
    }
  }
  v1::Link& link = *spec.add_links();
  link.set_from(kSite);
  link.set_to(kSite);
  v1::Edge& edge = *link.add_edges();
  for (const v1::MessageTime& time : set.link) *edge.add_times() = time;
  const v1::MessageTime& last = set.link.back();
  edge.set_bandwidth_bytes_per_s(1e9 * static_cast<double>(last.bytes()) /
                                 static_cast<double>(last.time_ns()));
  return spec;
}

// Writes the layout as `atoll plan --json` does.
std::string LayoutJson(const MeasuredSet& set, const MeasuredPlan& plan) {
  std::vector<std::string> replicas;
  int node = 0;
  for (int r = 0; r < plan.replicas; ++r) {
    std::vector<std::string> stages;
    int first = 0;
    for (const int layers : plan.stages) {
      std::vector<std::string> devices;
      for (int rank = 0; rank < set.devices_per_node; ++rank) {
        devices.push_back(absl::StrCat("\"", DeviceName(node, rank), "\""));
      }
      stages.push_back(absl::StrCat("{\"first_layer\": ", first, ", \"layers\": ", layers,
                                    ", \"devices\": [", absl::StrJoin(devices, ", "), "]}"));
      first += layers;
      ++node;
    }
    replicas.push_back(
        absl::StrCat("{\"micro_batch_sequences\": ", plan.micro_batch,
                     ", \"micro_batches\": ", plan.batch / plan.replicas / plan.micro_batch,
                     ", \"stages\": [", absl::StrJoin(stages, ", "), "]}"));
  }
  return absl::StrCat("{\"islands\": [{\"replicas\": [", absl::StrJoin(replicas, ", "), "]}]}");
}

}  // namespace

absl::StatusOr<PredictedPlan> PredictMeasured(const MeasuredSet& set, const MeasuredPlan& plan) {
  PlanRequest request;
  request.spec.name = set.name;
  request.spec.inner.batch_sequences = plan.batch;
  LayoutSpec& layout = request.spec.layout;
  layout.plan = LayoutJson(set, plan);
  layout.schedule = "1f1b";
  layout.optimizer_copies = plan.replicas;  // no state is sharded
  plan::Model model = set.model;
  plan::CostOptions options = MakeCostOptions(request.spec, /*full_precision=*/true);
  const int nodes = plan.replicas * static_cast<int>(plan.stages.size());
  ATOLL_ASSIGN_OR_RETURN(const Profiled profiled,
                         ToProfiled(DescribeNodes(set, nodes), set.profile, &model, &options));
  const plan::Costs costs(model, profiled.table, options, profiled.memory);
  const plan::Job job{.global_batch = plan.batch,
                      .micro_batches = {plan.micro_batch},
                      .tensor_parallel = {set.devices_per_node}};
  ATOLL_ASSIGN_OR_RETURN(const FoundPlan found,
                         FindPlan(request, {profiled.cluster, costs, job, ""}));
  PredictedPlan predicted{found.plan.outcome.step_s};
  for (const PlanProgram& program : found.island.programs) {
    predicted.memory_bytes =
        std::max(predicted.memory_bytes, static_cast<double>(program.memory_peak_bytes));
  }
  return predicted;
}

MeasuredErrors CompareMeasured(const MeasuredSet& set, bool print) {
  MeasuredErrors errors;
  std::map<size_t, int> of_stages;
  for (const MeasuredPlan& plan : set.plans) {
    const auto predicted = PredictMeasured(set, plan);
    ATOLL_CHECK(predicted.ok(), set.name, ", ", plan.name, ": ", predicted.status().ToString());
    const double step = predicted->step_s / plan.step_s;
    const double memory = predicted->memory_bytes / plan.memory_bytes;
    const double plans = static_cast<double>(set.plans.size());
    errors.step += std::abs(step - 1) / plans;
    errors.memory += std::abs(memory - 1) / plans;
    errors.step_bias[plan.stages.size()] += step - 1;
    ++of_stages[plan.stages.size()];
    if (!print) continue;
    std::printf(
        "  %-13s %zu stages, %2d replicas, %3d x %d: step %8.4f s %.3f, memory %5.2f GB %.3f\n",
        plan.name.c_str(), plan.stages.size(), plan.replicas,
        plan.batch / plan.replicas / plan.micro_batch, plan.micro_batch, plan.step_s, step,
        1e-9 * plan.memory_bytes, memory);
  }
  for (auto& [stages, bias] : errors.step_bias) bias /= of_stages[stages];
  return errors;
}

void PrintMeasured() {
  for (const MeasuredSet& set : {SailorOpt(), SailorNeo()}) {
    std::printf("\n%s on GH200 by DeepSpeed: measured, and predicted over that\n",
                set.name.c_str());
    const MeasuredErrors errors = CompareMeasured(set, true);
    MeasuredSet ours = set;
    ours.profile.clear_runtime();
    const MeasuredErrors without = CompareMeasured(ours, false);
    double least = 1, most = -1;
    for (const auto& [stages, bias] : errors.step_bias) {
      std::printf("  %zu stages: mean error of the step %+.3f, taken for Atoll's %+.3f\n", stages,
                  bias, without.step_bias.at(stages));
      least = std::min(least, bias);
      most = std::max(most, bias);
    }
    std::printf("  taken for Atoll's: step %.4f, memory %.4f\n", without.step, without.memory);
    PrintFigureAtMost(absl::StrCat("measured_", set.name, "_step_error"), errors.step, "ratio",
                      0.06);
    PrintFigureAtMost(absl::StrCat("measured_", set.name, "_memory_error"), errors.memory, "ratio",
                      0.08);
    PrintFigureAtMost(absl::StrCat("measured_", set.name, "_bias_between_stages"), most - least,
                      "ratio", 0.05);
  }
}

}  // namespace atl::bench
