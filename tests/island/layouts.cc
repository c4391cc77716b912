#include "tests/island/layouts.h"

#include <algorithm>
#include <climits>
#include <map>

#include "common/check.h"
#include "coordinator/simulator/search.h"
#include "coordinator/simulator/testing/uniform.h"

namespace atl {
namespace {

// One replica as the simulator sees it: equal stages, a latency of a quarter of F.
sim::Problem MakeProblem(const IslandLayout& spec, const ReplicaSpec& replica) {
  const int chunks = static_cast<int>(replica.stage_layers.size());
  ATOLL_CHECK(chunks % spec.chunks_per_device == 0, spec.name);
  sim::Problem problem = sim::MakeUniform({.stages = chunks / spec.chunks_per_device,
                                           .micro_batches = replica.micro_batches,
                                           .forward_ns = 4000,
                                           .backward_ns = 4000,
                                           .weight_ns = 3000,
                                           .latency_ns = 1000,
                                           .chunks_per_device = spec.chunks_per_device,
                                           .v_shape = spec.v_shape});
  return spec.unsplit ? sim::WithUnsplitBackward(std::move(problem)) : problem;
}

PlanOp ToPlanOp(const sim::Op& op) {
  const PlanOpKind kind = op.kind == sim::OpKind::kForward    ? PlanOpKind::kForward
                          : op.kind == sim::OpKind::kBackward ? PlanOpKind::kInputGradient
                                                              : PlanOpKind::kWeightGradient;
  return {.kind = kind, .stage = op.chunk, .micro_batch = op.micro_batch};
}

class PlanMaker {
 public:
  explicit PlanMaker(const IslandLayout& spec) : spec_(spec) {
    for (const ReplicaSpec& replica : spec.replicas) devices_ += FirstAt(replica, INT_MAX);
  }

  IslandPlan Make() {
    IslandPlan plan;
    plan.number = 1;
    plan.tensor_split_ratios = spec_.tensor_split_ratios;
    plan.optimizer_copies = spec_.optimizer_copies;
    plan.schedule = spec_.schedule;
    for (int w = 1; w <= spec_.workers; ++w) {
      IslandMember& member = plan.members.emplace_back();
      member.worker = absl::StrCat("w", w);
      if (spec_.sites > 0) member.site = absl::StrCat("s", (w - 1) * spec_.sites / spec_.workers);
    }
    // By replica, then by position in its pipeline, then rank: programs' compute order.
    std::map<std::string, std::vector<PlanOp>> orders;
    for (const ReplicaSpec& replica : spec_.replicas) AddReplica(replica, &plan, &orders);
    for (const auto& [device, ops] : orders) {
      plan.programs.push_back(CompleteProgram(plan, device, ops));
    }
    return plan;
  }

 private:
  // Device `index` of all.
  std::string Name(int index) const {
    const int worker = index * spec_.workers / devices_;
    const int first = (worker * devices_ + spec_.workers - 1) / spec_.workers;
    return absl::StrCat("w", worker + 1, "/", index - first);
  }

  int RanksAt(const ReplicaSpec& replica, size_t position) const {
    return replica.stage_ranks.empty() ? spec_.tensor_parallel : replica.stage_ranks[position];
  }
  // How many devices the positions of a pipeline before this one have.
  int FirstAt(const ReplicaSpec& replica, int position) const {
    const int all = static_cast<int>(replica.stage_layers.size()) / spec_.chunks_per_device;
    int devices = 0;
    for (int p = 0; p < std::min(all, position); ++p) devices += RanksAt(replica, p);
    return devices;
  }

  void AddReplica(const ReplicaSpec& spec, IslandPlan* plan,
                  std::map<std::string, std::vector<PlanOp>>* orders) {
    const sim::Problem problem = MakeProblem(spec_, spec);
    const auto found = sim::ScheduleByName(problem, spec_.schedule, {.restarts = 8});
    ATOLL_CHECK(found.ok(), spec_.name, ": ", found.status().ToString());
    PlanReplica& replica = plan->replicas.emplace_back();
    replica.micro_batches = spec.micro_batches;
    replica.micro_batch_sequences = spec.micro_batch_sequences;
    int32_t layer = 0;
    for (size_t s = 0; s < spec.stage_layers.size(); ++s) {
      PlanStage& stage = replica.stages.emplace_back();
      stage.first_layer = layer;
      stage.layers = spec.stage_layers[s];
      layer += stage.layers;
      for (int32_t l = stage.first_layer; spec_.recompute > 0 && l < layer; ++l) {
        if ((l + 1) % spec_.recompute == 0) stage.recomputed_layers.push_back(l);
      }
      const int position = problem.chunks[s].device;
      for (int rank = 0; rank < RanksAt(spec, position); ++rank) {
        stage.devices.push_back(Name(next_device_ + FirstAt(spec, position) + rank));
      }
    }
    for (size_t d = 0; d < problem.devices.size(); ++d) {
      for (int rank = 0; rank < RanksAt(spec, d); ++rank) {
        std::vector<PlanOp>& ops = (*orders)[Name(next_device_++)];
        for (const sim::Op& op : found->schedule.device_ops[d]) {
          if (op.kind != sim::OpKind::kOptimizer) ops.push_back(ToPlanOp(op));
        }
      }
    }
  }

  const IslandLayout& spec_;
  int devices_ = 0;
  int next_device_ = 0;
};

}  // namespace

IslandPlan MakePlan(const IslandLayout& spec) { return PlanMaker(spec).Make(); }

}  // namespace atl
