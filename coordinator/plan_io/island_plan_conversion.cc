#include "coordinator/plan_io/island_plan_conversion.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace atl {
namespace {

// The simulator's order of one device: its stages' F, B and W. An unsplit backward has no W.
std::vector<PlanOp> ComputeOps(const std::vector<sim::Op>& ops) {
  std::vector<PlanOp> compute;
  for (const sim::Op& op : ops) {
    if (op.kind == sim::OpKind::kOptimizer) continue;
    PlanOp added;
    added.kind = op.kind == sim::OpKind::kForward    ? PlanOpKind::kForward
                 : op.kind == sim::OpKind::kBackward ? PlanOpKind::kInputGradient
                                                     : PlanOpKind::kWeightGradient;
    added.stage = op.chunk;
    added.micro_batch = op.micro_batch;
    compute.push_back(added);
  }
  return compute;
}

void AddPrograms(const plan::Cluster& cluster, const plan::ReplicaOutcome& kind,
                 const plan::Replica& replica, const std::vector<int>& ratios, IslandPlan& island) {
  const double sum = std::accumulate(ratios.begin(), ratios.end(), 0.0);
  const int entities = static_cast<int>(kind.problem.devices.size());
  for (int entity = 0; entity < entities; ++entity) {
    const auto holder = std::ranges::find_if(
        kind.problem.chunks, [&](const sim::Chunk& chunk) { return chunk.device == entity; });
    if (holder == kind.problem.chunks.end()) continue;
    const auto stage = static_cast<size_t>(holder - kind.problem.chunks.begin());
    const std::vector<PlanOp> compute = ComputeOps(kind.found.schedule.device_ops[entity]);
    const std::vector<int>& devices = replica.stages[stage].devices;
    for (size_t rank = 0; rank < devices.size(); ++rank) {
      PlanProgram program = CompleteProgram(island, cluster.devices[devices[rank]].id, compute);
      program.memory_peak_bytes =
          kind.state_bytes[entity] + kind.found.result.devices[entity].peak_bytes;
      if (!ratios.empty()) {
        const double part = ratios[rank] / sum * static_cast<double>(devices.size());
        program.memory_peak_bytes =
            std::llround(part * static_cast<double>(program.memory_peak_bytes));
      }
      island.programs.push_back(std::move(program));
    }
  }
}

// Layers without anything to make again run nothing again.
int CountRecomputedLayers(const plan::Model& model, const PlanStage& stage) {
  return static_cast<int>(std::ranges::count_if(stage.recomputed_layers, [&](int32_t layer) {
    return static_cast<size_t>(layer) < model.layers.size() && model.layers[layer].again_bytes > 0;
  }));
}

}  // namespace

plan::Shape GetReplicaShape(const plan::Replica& replica) {
  const std::vector<int> entities = plan::MapStagesToEntities(replica);
  const int devices = 1 + *std::ranges::max_element(entities);
  if (devices == static_cast<int>(entities.size())) return plan::Shape::kPlain;
  return entities.front() == entities.back() ? plan::Shape::kVShaped : plan::Shape::kInterleaved;
}

std::set<int32_t> UnsplitStages(const PlanProgram& program) {
  std::set<int32_t> unsplit, split;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const PlanOp& b = program.ops[i];
    if (b.kind != PlanOpKind::kInputGradient) continue;
    PlanOp w = b;
    w.kind = PlanOpKind::kWeightGradient;
    const bool follows = i + 1 < program.ops.size() && program.ops[i + 1] == w;
    (follows ? unsplit : split).insert(b.stage);
  }
  for (const int32_t stage : split) unsplit.erase(stage);
  return unsplit;
}

absl::StatusOr<std::vector<plan::ReplicaOrder>> OrdersFromIslandPlan(const IslandPlan& island,
                                                                     const plan::Layout& layout) {
  std::map<std::string, const PlanProgram*> programs;
  for (const PlanProgram& program : island.programs) programs[program.device] = &program;
  std::vector<plan::ReplicaOrder> orders(layout.replicas.size());
  for (size_t r = 0; r < orders.size(); ++r) {
    const std::vector<int> entities = plan::MapStagesToEntities(layout.replicas[r]);
    for (size_t s = 0; s < entities.size(); ++s) {
      std::vector<std::vector<sim::Op>>& device_ops = orders[r].schedule.device_ops;
      if (entities[s] < std::ssize(device_ops)) continue;
      std::vector<sim::Op>& ops = device_ops.emplace_back();
      const std::string& device = island.replicas[r].stages[s].devices[0];
      if (!programs.contains(device)) {
        return absl::NotFoundError(absl::StrCat(device, " has no program"));
      }
      orders[r].unsplit.merge(UnsplitStages(*programs[device]));
      for (const PlanOp& op : programs[device]->ops) {
        if (op.kind == PlanOpKind::kForward) {
          ops.push_back({op.stage, op.micro_batch, sim::OpKind::kForward});
        } else if (op.kind == PlanOpKind::kInputGradient) {
          ops.push_back({op.stage, op.micro_batch, sim::OpKind::kBackward});
        } else if (op.kind == PlanOpKind::kWeightGradient &&
                   !orders[r].unsplit.contains(op.stage)) {
          ops.push_back({op.stage, op.micro_batch, sim::OpKind::kWeight});
        }
      }
    }
  }
  return orders;
}

IslandPlan ToIslandPlan(const plan::Cluster& cluster, const plan::Plan& plan) {
  IslandPlan island;
  const plan::Layout& layout = plan.layout;
  for (const plan::Replica& replica : layout.replicas) {
    PlanReplica& added = island.replicas.emplace_back();
    added.micro_batch_sequences = layout.micro_batch;
    added.micro_batches = replica.micro_batches;
    for (const plan::Stage& stage : replica.stages) {
      PlanStage& s = added.stages.emplace_back();
      s.first_layer = stage.first_layer;
      s.layers = stage.last_layer - stage.first_layer;
      for (const int d : stage.devices) s.devices.push_back(cluster.devices[d].id);
    }
  }
  std::vector<const plan::ReplicaOutcome*> kinds(layout.replicas.size(), nullptr);
  for (const plan::ReplicaOutcome& kind : plan.outcome.kinds) {
    for (const int r : kind.replicas) kinds[r] = &kind;
  }
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    AddPrograms(cluster, *kinds[r], layout.replicas[r], layout.tensor_split_ratios, island);
  }
  island.tensor_split_ratios.assign(layout.tensor_split_ratios.begin(),
                                    layout.tensor_split_ratios.end());
  island.link_orders = ComputeSendOrders(cluster, plan);
  island.step_ns = std::llround(plan.outcome.step_s * 1e9);
  island.bound_ns = std::llround(plan.outcome.bound_s * 1e9);
  island.schedule = plan::SlowestKind(plan.outcome).found.how;
  island.reason = plan.reason;
  return island;
}

absl::StatusOr<plan::Layout> LayoutFromIslandPlan(const plan::Cluster& cluster,
                                                  const plan::Costs& costs,
                                                  const IslandPlan& island) {
  const std::map<std::string, int> index = cluster.IndexDevices();
  plan::Layout layout;
  layout.tensor_parallel = TensorParallel(island);
  layout.tensor_split_ratios.assign(island.tensor_split_ratios.begin(),
                                    island.tensor_split_ratios.end());
  std::map<std::string, std::set<int32_t>> unsplit;  // by device
  for (const PlanProgram& program : island.programs) {
    unsplit[program.device] = UnsplitStages(program);
  }
  for (const PlanReplica& replica : island.replicas) {
    if (layout.replicas.empty()) {
      layout.micro_batch = static_cast<int>(replica.micro_batch_sequences);
    } else if (layout.micro_batch != replica.micro_batch_sequences) {
      return absl::UnimplementedError("its replicas have micro-batches of different sizes");
    }
    plan::Replica& added = layout.replicas.emplace_back();
    added.micro_batches = replica.micro_batches;
    for (const PlanStage& stage : replica.stages) {
      const auto index_of_stage = static_cast<int32_t>(added.stages.size());
      plan::Stage& s = added.stages.emplace_back();
      s.first_layer = stage.first_layer;
      s.last_layer = stage.first_layer + stage.layers;
      s.saving.recomputed = CountRecomputedLayers(costs.model(), stage);
      s.saving.whole_backward =
          s.saving.recomputed > 0 || unsplit[stage.devices[0]].count(index_of_stage) > 0;
      for (const std::string& device : stage.devices) {
        const auto found = index.find(device);
        if (found == index.end()) {
          return absl::NotFoundError(absl::StrCat("nothing is known of ", device));
        }
        s.devices.push_back(found->second);
      }
      if (!layout.tensor_split_ratios.empty()) continue;  // their order says who has which
      plan::SlowestFirst(cluster, costs, layout.micro_batch, s.devices);
    }
    if (const plan::Shape shape = GetReplicaShape(added); shape != plan::Shape::kPlain) {
      layout.shape = shape;
    }
  }
  return layout;
}

void ListRecomputed(const plan::Costs& costs, const plan::Layout& layout, IslandPlan* island) {
  const std::vector<plan::Layer>& layers = costs.model().layers;
  const bool all = costs.options().recompute == Recompute::kAll;
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    for (size_t s = 0; s < layout.replicas[r].stages.size(); ++s) {
      const plan::Stage& stage = layout.replicas[r].stages[s];
      std::vector<int32_t>& again = island->replicas[r].stages[s].recomputed_layers;
      again.clear();
      for (int l = stage.first_layer; l < stage.last_layer; ++l) {
        const bool enough = !all && static_cast<int>(again.size()) >= stage.saving.recomputed;
        if (layers[l].again_bytes > 0 && !enough) again.push_back(l);
      }
    }
  }
}

}  // namespace atl
