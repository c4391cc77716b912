#include "common/protocol/island_plan.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>

#include "common/check.h"
#include "common/status.h"

namespace atl {
namespace {

// Writes a device's whole program around its F, B and W.
class Completion {
 public:
  Completion(const PlanReplica& replica, std::vector<int32_t> held, bool synchronise)
      : replica_(replica), held_(std::move(held)), synchronise_(synchronise) {}

  PlanProgram Run(const std::string& device, const std::vector<PlanOp>& compute) {
    program_.device = device;
    for (const PlanOp& op : compute) {
      if (op.kind == PlanOpKind::kWeightGradient) {
        weights_[op.stage].split.insert(op.micro_batch);
      }
    }
    for (const PlanOp& op : compute) Take(op);
    program_.ops.push_back({.kind = PlanOpKind::kOptimizer, .stage = held_.front()});
    return std::move(program_);
  }

 private:
  // A stage's weight gradients.
  struct Weights {
    std::set<int32_t> split;  // micro-batches that have a W of their own
    std::set<int32_t> ready;  // whose B is done
    int32_t weight_ops = 0;   // W so far in the order given
    int32_t done = 0;         // micro-batches 0 .. done - 1
  };

  // There is such a stage, on another device.
  bool Far(int32_t stage) const {
    return stage >= 0 && stage < static_cast<int32_t>(replica_.stages.size()) &&
           !std::binary_search(held_.begin(), held_.end(), stage);
  }

  void Take(const PlanOp& op) {
    const auto add = [&](PlanOpKind kind, bool gradient) {
      program_.ops.push_back(
          {.kind = kind, .stage = op.stage, .micro_batch = op.micro_batch, .gradient = gradient});
    };
    const bool backward = op.kind == PlanOpKind::kInputGradient;
    Weights& weights = weights_[op.stage];
    if (op.kind == PlanOpKind::kWeightGradient) {
      ++weights.weight_ops;
    } else {
      ATOLL_CHECK(backward || op.kind == PlanOpKind::kForward, ToString(op));
      if (Far(op.stage + (backward ? 1 : -1))) add(PlanOpKind::kReceive, backward);
      program_.ops.push_back(op);
      if (backward) weights.ready.insert(op.micro_batch);
      if (backward && !weights.split.contains(op.micro_batch)) {
        ++weights.weight_ops;
        AddWeights(op.stage);
      }
      if (Far(op.stage + (backward ? -1 : 1))) add(PlanOpKind::kSend, backward);
    }
    AddWeights(op.stage);
    Synchronise();
  }

  // Adds the weight gradients whose turn it is.
  void AddWeights(int32_t stage) {
    Weights& weights = weights_[stage];
    while (weights.done < weights.weight_ops && weights.ready.contains(weights.done)) {
      program_.ops.push_back(
          {.kind = PlanOpKind::kWeightGradient, .stage = stage, .micro_batch = weights.done++});
    }
  }

  // From the deepest stage down, as far as gradients are complete.
  void Synchronise() {
    for (; synchronise_ && synchronised_ < held_.size(); ++synchronised_) {
      const int32_t s = held_[held_.size() - 1 - synchronised_];
      if (weights_[s].done < replica_.micro_batches) return;
      const PlanStage& stage = replica_.stages[s];
      for (int32_t l = stage.first_layer + stage.layers - 1; l >= stage.first_layer; --l) {
        program_.ops.push_back({.kind = PlanOpKind::kSync, .stage = s, .layer = l});
      }
    }
  }

  const PlanReplica& replica_;
  const std::vector<int32_t> held_;  // stages of this device, ascending
  const bool synchronise_;
  std::map<int32_t, Weights> weights_;  // by stage
  size_t synchronised_ = 0;             // of held_, from the back
  PlanProgram program_;
};

}  // namespace

int TensorParallel(const IslandPlan& plan) {
  size_t most = 1;
  for (const PlanReplica& replica : plan.replicas) {
    for (const PlanStage& stage : replica.stages) most = std::max(most, stage.devices.size());
  }
  return static_cast<int>(most);
}

Duration StepLimit(const IslandPlan& plan, Duration least) {
  constexpr Duration kLongestStep = std::chrono::hours(1);
  return std::max(least, 10 * std::min(Duration(plan.step_ns), kLongestStep));
}

Duration GetStateTransferLimit(int64_t bytes) {
  return std::chrono::microseconds(std::max<int64_t>(bytes, 0));
}

NodeId WorkerFromDevice(const std::string& device) { return device.substr(0, device.rfind('/')); }

int IndexFromDevice(const std::string& device) {
  const size_t slash = device.rfind('/');
  if (slash == std::string::npos || slash == 0) return -1;
  int index = -1;
  const char* const end = device.data() + device.size();
  const auto [rest, error] = std::from_chars(device.data() + slash + 1, end, index);
  return error == std::errc() && rest == end && index >= 0 ? index : -1;
}

const std::vector<std::string>& GetSenders(const IslandPlan& plan, const PlanMessage& message) {
  return plan.replicas[message.replica].stages[message.stage].devices;
}

const std::vector<std::string>& GetReceivers(const IslandPlan& plan, const PlanMessage& message) {
  const int32_t to = message.stage + (message.gradient ? -1 : 1);
  return plan.replicas[message.replica].stages[to].devices;
}

std::string ToString(const PlanMessage& message) {
  return absl::StrCat("the ", message.gradient ? "gradient" : "activation", " of micro-batch ",
                      message.micro_batch, " from stage ", message.stage, " of replica ",
                      message.replica);
}

std::string ToString(const PlanOp& op) {
  const std::string where =
      absl::StrCat(" of micro-batch ", op.micro_batch, " in stage ", op.stage);
  const absl::string_view what = op.gradient ? "gradient" : "activation";
  switch (op.kind) {
    case PlanOpKind::kForward:
      return absl::StrCat("F", where);
    case PlanOpKind::kInputGradient:
      return absl::StrCat("B", where);
    case PlanOpKind::kWeightGradient:
      return absl::StrCat("W", where);
    case PlanOpKind::kSend:
      return absl::StrCat("send the ", what, where);
    case PlanOpKind::kReceive:
      return absl::StrCat("receive the ", what, where);
    case PlanOpKind::kSync:
      return absl::StrCat("sync of layer ", op.layer);
    case PlanOpKind::kOptimizer:
      return "optimizer";
  }
  return absl::StrCat("kind ", static_cast<int>(op.kind));
}

namespace {

int64_t Capacity(const PlanReplica& replica) {
  return replica.micro_batches * replica.micro_batch_sequences;
}

}  // namespace

std::vector<std::vector<MicroBatchRows>> AssignSequences(const IslandPlan& plan,
                                                         int64_t sequences) {
  std::vector<std::vector<MicroBatchRows>> assigned;
  int64_t capacity = 0, first = 0, before = 0;
  for (const PlanReplica& replica : plan.replicas) capacity += Capacity(replica);
  for (const PlanReplica& replica : plan.replicas) {
    const int64_t each = replica.micro_batch_sequences;
    before += Capacity(replica);
    const int64_t share = (sequences * before + capacity - 1) / capacity - first;
    // None, where the replicas before have been rounded up past this one's share.
    const int64_t end =
        std::max(first, std::min(sequences, first + (share + each - 1) / each * each));
    std::vector<MicroBatchRows>& rows = assigned.emplace_back();
    for (int32_t m = 0; m < replica.micro_batches; ++m) {
      rows.push_back({first, std::min(each, end - first)});
      first += rows.back().rows;
    }
  }
  ATOLL_CHECK(first == sequences, "a step of ", sequences, " sequences, but the plan distributes ",
              first);
  return assigned;
}

PlanProgram CompleteProgram(const IslandPlan& plan, const std::string& device,
                            const std::vector<PlanOp>& compute) {
  const PlanReplica* replica = nullptr;
  std::vector<int32_t> held;
  for (const PlanReplica& r : plan.replicas) {
    for (size_t s = 0; s < r.stages.size(); ++s) {
      const std::vector<std::string>& devices = r.stages[s].devices;
      if (std::find(devices.begin(), devices.end(), device) == devices.end()) continue;
      held.push_back(static_cast<int32_t>(s));
      replica = &r;
    }
  }
  ATOLL_CHECK(replica != nullptr, "no replica names ", device);
  return Completion(*replica, std::move(held), plan.replicas.size() > 1).Run(device, compute);
}

IslandPlan KeepWorkerPrograms(const IslandPlan& plan, const NodeId& worker) {
  IslandPlan own;
  own.number = plan.number;
  own.members = plan.members;
  own.replicas = plan.replicas;
  for (const PlanProgram& program : plan.programs) {
    if (WorkerFromDevice(program.device) == worker) own.programs.push_back(program);
  }
  own.tensor_split_ratios = plan.tensor_split_ratios;
  own.link_orders = plan.link_orders;
  own.optimizer_copies = plan.optimizer_copies;
  own.hosts = plan.hosts;
  own.step_ns = plan.step_ns;
  own.bound_ns = plan.bound_ns;
  own.schedule = plan.schedule;
  own.reason = plan.reason;
  return own;
}

}  // namespace atl
