#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bytes_text.h"
#include "common/protocol/program_slots.h"
#include "coordinator/planning/plan_changes.h"
#include "coordinator/planning/plan_memory.h"

namespace atl {
namespace {

constexpr int kNamed = 3;  // stages in a reason

const PlanProgram& GetProgram(const IslandPlan& island, const std::string& device) {
  return *std::find_if(island.programs.begin(), island.programs.end(),
                       [&](const PlanProgram& program) { return program.device == device; });
}

// Finds the device of the stage that lacks most; nothing: none is measured.
std::optional<MemoryLack> FindWorstLack(const PlanRequest& request, const IslandPlan& island,
                                        const PlanStage& stage) {
  std::optional<MemoryLack> worst;
  for (const std::string& device : stage.devices) {
    const auto need = PredictProgramMemory(request, island, GetProgram(island, device));
    if (need && (!worst || need->lacks_bytes() > worst->lacks_bytes())) worst = need;
  }
  return worst;
}

// Returns the bytes that the devices of stage `s`, with their other stages, need by the search's
// account: each as if it had an even share.
int64_t SearchBytes(const PlanningInput& input, const plan::Layout& layout,
                    const IslandPlan& island, size_t r, size_t s) {
  const plan::Replica& replica = layout.replicas[r];
  const std::vector<int>& devices = replica.stages[s].devices;
  const plan::StageCosts costs =
      plan::GroupCosts(input.cluster, input.costs.ForReplicas(layout.replicas.size()),
                       layout.micro_batch, devices, layout.tensor_split_ratios);
  std::vector<int32_t> own;
  for (size_t other = 0; other < replica.stages.size(); ++other) {
    if (replica.stages[other].devices == devices) own.push_back(static_cast<int32_t>(other));
  }
  int64_t bytes = 0;
  for (const StageSlots& slots :
       ComputeStageSlots(GetProgram(island, island.replicas[r].stages[s].devices[0]), own)) {
    const plan::Stage& stage = replica.stages[static_cast<size_t>(slots.stage)];
    bytes += costs.StateBytes(stage.first_layer, stage.last_layer, stage.saving) +
             slots.forward * costs.StashBytes(stage.first_layer, stage.last_layer, stage.saving);
  }
  return bytes;
}

}  // namespace

PlanningInput WithRecomputation(PlanningInput input) {
  plan::CostOptions options = input.costs.options();
  options.recompute = plan::Recomputation::kWhereNeeded;
  input.costs = input.costs.With(options);
  return input;
}

void MakeRoom(const plan::Layout& layout, const IslandPlan& island, PlanningInput& input) {
  const std::vector<int>& ratios = layout.tensor_split_ratios;
  const double even = std::accumulate(ratios.begin(), ratios.end(), 0.0) / layout.tensor_parallel;
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    for (size_t s = 0; s < layout.replicas[r].stages.size(); ++s) {
      const auto bytes = static_cast<double>(SearchBytes(input, layout, island, r, s));
      const std::vector<int>& devices = layout.replicas[r].stages[s].devices;
      for (size_t rank = 0; rank < devices.size(); ++rank) {
        int64_t& has = input.cluster.types[input.cluster.devices[devices[rank]].type].memory_bytes;
        const double part = ratios.empty() ? 1 : ratios[rank] / even;
        const double wants = bytes * part / (1 - input.costs.options().reserve);
        has = std::max(has, static_cast<int64_t>(wants) + 2);
      }
    }
  }
}

bool Recomputes(const IslandPlan& island) {
  for (const PlanReplica& replica : island.replicas) {
    for (const PlanStage& stage : replica.stages) {
      if (!stage.recomputed_layers.empty()) return true;
    }
  }
  return false;
}

std::optional<plan::Plan> RecomputingLess(const PlanRequest& request, PlanningInput input,
                                          IslandPlan island, plan::Plan plan) {
  bool less = false;
  for (size_t r = 0; r < island.replicas.size(); ++r) {
    for (size_t s = 0; s < island.replicas[r].stages.size(); ++s) {
      PlanStage& stage = island.replicas[r].stages[s];
      int& recomputed = plan.layout.replicas[r].stages[s].saving.recomputed;
      while (recomputed > 0) {
        const int32_t last = stage.recomputed_layers.back();
        stage.recomputed_layers.pop_back();
        const std::optional<MemoryLack> worst = FindWorstLack(request, island, stage);
        if (!worst || worst->lacks_bytes() > 0) {
          stage.recomputed_layers.push_back(last);
          break;
        }
        --recomputed;
        less = true;
      }
    }
  }
  if (!less) return std::nullopt;
  MakeRoom(plan.layout, island, input);
  auto outcome = plan::EvaluateLayout(input.cluster, input.costs, input.job, plan.layout,
                                      {.restarts = 96, .seed = request.seed});
  if (!outcome.ok() || outcome->step_s > plan.outcome.step_s) return std::nullopt;
  plan.outcome = *std::move(outcome);
  return plan;
}

std::string WhatRecomputes(const PlanRequest& request, const IslandPlan& island) {
  IslandPlan without = island;
  for (PlanReplica& replica : without.replicas) {
    for (PlanStage& stage : replica.stages) stage.recomputed_layers.clear();
  }
  const auto layers = static_cast<int32_t>(request.facts.layers.size());
  std::string text;
  int stages = 0;
  for (size_t r = 0; r < island.replicas.size(); ++r) {
    for (size_t s = 0; s < island.replicas[r].stages.size(); ++s) {
      const PlanStage& stage = island.replicas[r].stages[s];
      if (stage.recomputed_layers.empty() || ++stages > kNamed) continue;
      const int32_t blocks =
          std::min(stage.first_layer + stage.layers, layers - 1) - std::max(stage.first_layer, 1);
      absl::StrAppend(&text, "; ");
      if (island.replicas.size() > 1) absl::StrAppend(&text, "replica ", r, "'s ");
      absl::StrAppend(&text, "stage ", s, " recomputes ", stage.recomputed_layers.size(), " of ",
                      blocks, " blocks");
      const std::optional<MemoryLack> worst = FindWorstLack(request, without, stage);
      if (!worst || worst->lacks_bytes() <= 0) continue;
      absl::StrAppend(&text, " (", worst->device, " would take ",
                      BytesText(worst->takes_bytes + worst->auxiliary_bytes), " of ",
                      BytesText(worst->has_bytes), " without)");
    }
  }
  if (stages > kNamed)
    absl::StrAppend(&text, ", and ", stages - kNamed, " more stages some of theirs");
  return text;
}

}  // namespace atl
