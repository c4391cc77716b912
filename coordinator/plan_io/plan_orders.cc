#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "coordinator/plan_io/island_plan_conversion.h"
#include "coordinator/plan_io/plan_message.h"

namespace atl {
namespace {

constexpr char kRemedy[] = "; correct it, or leave out all programs to have the order found anew";

absl::Status Refuse(absl::string_view device, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("program of \"", absl::CHexEscape(device), "\": ", what, kRemedy));
}

PlanOpKind ToPlanOpKind(v1::OperationKind kind) {
  switch (kind) {
    case v1::OPERATION_KIND_FORWARD:
      return PlanOpKind::kForward;
    case v1::OPERATION_KIND_INPUT_GRADIENT:
      return PlanOpKind::kInputGradient;
    case v1::OPERATION_KIND_WEIGHT_GRADIENT:
      return PlanOpKind::kWeightGradient;
    default:
      return PlanOpKind::kOptimizer;  // any that does not compute a micro-batch
  }
}

// F, B and W in order.
v1::DeviceProgram ComputeOnly(const v1::DeviceProgram& program) {
  PlanProgram all;
  bool whole = false;
  for (const v1::Operation& op : program.operations()) {
    PlanOp& added = all.ops.emplace_back();
    added.kind = ToPlanOpKind(op.kind());
    added.stage = op.stage();
    added.micro_batch = op.micro_batch();
    whole = whole || added.kind == PlanOpKind::kOptimizer;
  }
  const std::set<int32_t> unsplit = whole ? UnsplitStages(all) : std::set<int32_t>();
  v1::DeviceProgram kept;
  kept.set_device(program.device());
  for (const v1::Operation& op : program.operations()) {
    const PlanOpKind kind = ToPlanOpKind(op.kind());
    if (kind == PlanOpKind::kOptimizer) continue;
    if (kind == PlanOpKind::kWeightGradient && unsplit.contains(op.stage())) continue;
    v1::Operation* added = kept.add_operations();
    added->set_kind(op.kind());
    added->set_stage(op.stage());
    added->set_micro_batch(op.micro_batch());
  }
  return kept;
}

bool SameOrder(const v1::DeviceProgram& a, const v1::DeviceProgram& b) {
  return std::equal(a.operations().begin(), a.operations().end(), b.operations().begin(),
                    b.operations().end(), [](const v1::Operation& x, const v1::Operation& y) {
                      return x.kind() == y.kind() && x.stage() == y.stage() &&
                             x.micro_batch() == y.micro_batch();
                    });
}

// One entity's program, against the stages that it holds.
class ProgramReader {
 public:
  ProgramReader(const v1::DeviceProgram& program, const plan::Replica& replica,
                const std::vector<int>& stages, plan::ReplicaOrder& order)
      : program_(program), replica_(replica), order_(order) {
    for (const int stage : stages) done_[stage].resize(replica.micro_batches);
  }

  absl::Status Read() {
    std::vector<sim::Op>& ops = order_.schedule.device_ops.emplace_back();
    for (const v1::Operation& op : program_.operations()) {
      const sim::Op added{op.stage(), op.micro_batch(),
                          op.kind() == v1::OPERATION_KIND_FORWARD          ? sim::OpKind::kForward
                          : op.kind() == v1::OPERATION_KIND_INPUT_GRADIENT ? sim::OpKind::kBackward
                                                                           : sim::OpKind::kWeight};
      ATOLL_RETURN_IF_ERROR(Check(added));
      ops.push_back(added);
    }
    return CheckComplete();
  }

 private:
  struct Done {
    bool forward = false, backward = false, weight = false;
  };

  absl::Status Bad(const sim::Op& op, absl::string_view why) const {
    const char* const kind = op.kind == sim::OpKind::kForward    ? "FORWARD"
                             : op.kind == sim::OpKind::kBackward ? "INPUT_GRADIENT"
                                                                 : "WEIGHT_GRADIENT";
    return Refuse(program_.device(), absl::StrCat(kind, " of stage ", op.chunk, ", micro-batch ",
                                                  op.micro_batch, ": ", why));
  }

  absl::Status Check(const sim::Op& op) {
    const auto stage = done_.find(op.chunk);
    if (stage == done_.end()) return Bad(op, "the device does not hold this stage");
    if (op.micro_batch < 0 || op.micro_batch >= replica_.micro_batches) {
      return Bad(op, absl::StrCat("its replica has ", replica_.micro_batches, " micro-batches"));
    }
    Done& done = stage->second[op.micro_batch];
    bool& own = op.kind == sim::OpKind::kForward    ? done.forward
                : op.kind == sim::OpKind::kBackward ? done.backward
                                                    : done.weight;
    if (std::exchange(own, true)) return Bad(op, "it appears twice");
    if (op.kind == sim::OpKind::kForward) return absl::OkStatus();
    if (!done.forward) return Bad(op, "it comes before its FORWARD");
    if (op.kind == sim::OpKind::kBackward) {
      int& after = next_backward_[op.chunk];
      if (op.micro_batch != after++) out_of_turn_.try_emplace(op.chunk, op);
      return absl::OkStatus();
    }
    if (!done.backward) return Bad(op, "it comes before its INPUT_GRADIENT");
    if (replica_.stages[op.chunk].saving.any()) {
      return Bad(op, "a stage that recomputes has it in one operation with its INPUT_GRADIENT");
    }
    int& next = next_weight_[op.chunk];
    if (op.micro_batch != next++) {
      return Bad(op, "the WEIGHT_GRADIENTs of a stage run in the order of their micro-batches");
    }
    return absl::OkStatus();
  }

  absl::Status CheckComplete() {
    for (const auto& [stage, micro_batches] : done_) {
      const bool split = next_weight_.contains(stage);
      const auto out_of_turn = out_of_turn_.find(stage);
      if (!split && out_of_turn != out_of_turn_.end()) {
        return Bad(out_of_turn->second,
                   "without WEIGHT_GRADIENTs of their own, which run in the order of their "
                   "micro-batches, a stage's INPUT_GRADIENTs run in that order");
      }
      if (!split) order_.unsplit.insert(stage);
      for (int m = 0; m < std::ssize(micro_batches); ++m) {
        const Done& done = micro_batches[m];
        if (!done.forward) return Bad({stage, m, sim::OpKind::kForward}, "it is missing");
        if (!done.backward) return Bad({stage, m, sim::OpKind::kBackward}, "it is missing");
        if (split && !done.weight) return Bad({stage, m, sim::OpKind::kWeight}, "it is missing");
      }
    }
    return absl::OkStatus();
  }

  const v1::DeviceProgram& program_;
  const plan::Replica& replica_;
  plan::ReplicaOrder& order_;
  std::map<int, std::vector<Done>> done_;  // by stage
  std::map<int, int> next_weight_;         // by stages with W of their own
  std::map<int, int> next_backward_;       // by stage
  std::map<int, sim::Op> out_of_turn_;     // by stage, the first B that is
};

}  // namespace

absl::Status KeepOrders(const v1::PlannedIsland& island, v1::PlannedIsland& kept) {
  std::map<std::string, std::string> first_of;  // of the devices that share layers
  for (const v1::Replica& replica : island.replicas()) {
    for (const v1::Stage& stage : replica.stages()) {
      for (const std::string& device : stage.devices()) {
        first_of.try_emplace(device, stage.devices(0));
      }
    }
  }
  std::map<std::string, v1::DeviceProgram> programs;
  for (const v1::DeviceProgram& program : island.programs()) {
    if (!first_of.contains(program.device())) {
      return Refuse(program.device(), "no stage of `replicas` names the device");
    }
    if (!programs.try_emplace(program.device(), ComputeOnly(program)).second) {
      return Refuse(program.device(), "it appears twice");
    }
  }
  for (const auto& [device, program] : programs) {
    const std::string& first = first_of.at(device);
    if (device == first) {
      *kept.add_programs() = program;
    } else if (!programs.contains(first) || !SameOrder(program, programs.at(first))) {
      return Refuse(device,
                    absl::StrCat("its order differs from that of \"", absl::CHexEscape(first),
                                 "\", with which it shares layers"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<plan::ReplicaOrder>> ReadOrders(const v1::PlannedIsland& island,
                                                           const plan::Cluster& cluster,
                                                           const plan::Layout& layout) {
  std::vector<plan::ReplicaOrder> orders;
  if (island.programs().empty()) return orders;
  v1::PlannedIsland kept;
  ATOLL_RETURN_IF_ERROR(KeepOrders(island, kept));
  std::map<std::string, const v1::DeviceProgram*> programs;
  for (const v1::DeviceProgram& program : kept.programs()) programs[program.device()] = &program;
  for (const plan::Replica& replica : layout.replicas) {
    plan::ReplicaOrder& order = orders.emplace_back();
    const std::vector<int> stage_entities = plan::MapStagesToEntities(replica);
    for (int entity = 0; entity <= *std::ranges::max_element(stage_entities); ++entity) {
      std::vector<int> stages;
      for (size_t s = 0; s < stage_entities.size(); ++s) {
        if (stage_entities[s] == entity) stages.push_back(static_cast<int>(s));
      }
      const std::string& device = cluster.devices[replica.stages[stages[0]].devices[0]].id;
      const auto program = programs.find(device);
      if (program == programs.end()) {
        return Refuse(device, "it is missing, and other devices have one");
      }
      ATOLL_RETURN_IF_ERROR(ProgramReader(*program->second, replica, stages, order).Read());
    }
  }
  return orders;
}

}  // namespace atl
