// Validate(): everything that would make a plan impossible to run, by name.

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "common/protocol/island_plan.h"
#include "common/protocol/tensor_groups.h"
#include "common/status.h"

namespace atl {
namespace {

// Far above what any plan needs, far below what would take long to check.
constexpr int64_t kMaxOperations = int64_t{1} << 22;

template <typename... Args>
absl::Status Refused(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat("plan: ", args...));
}

// Where a device is: one replica, one rank of groups of one size, one or more stages.
struct Assignment {
  int32_t replica = 0;
  int32_t rank = 0;
  size_t ranks = 1;
  std::vector<int32_t> stages;  // ascending

  bool Holds(int32_t stage) const {
    return std::binary_search(stages.begin(), stages.end(), stage);
  }
};
using Assignments = std::map<std::string, Assignment>;

absl::Status CheckMembers(const IslandPlan& plan, std::set<NodeId>* members) {
  if (plan.number < 1) return Refused("number ", plan.number, ": must be at least 1");
  if (plan.members.empty()) return Refused("it has no members");
  for (const IslandMember& member : plan.members) {
    if (member.worker.empty()) return Refused("a member has no name");
    if (!members->insert(member.worker).second) {
      return Refused("member ", member.worker, " is there twice");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDevice(const std::string& device, const std::set<NodeId>& members,
                         const std::string& where) {
  if (IndexFromDevice(device) < 0) {
    return Refused(where, ": \"", device, "\" is no device; it must be \"worker/index\"");
  }
  if (!members.contains(WorkerFromDevice(device))) {
    return Refused(where, ": ", device, " belongs to no member of the island");
  }
  return absl::OkStatus();
}

absl::Status CheckRecomputed(const PlanStage& stage, const std::string& where) {
  int32_t before = stage.first_layer - 1;
  for (const int32_t layer : stage.recomputed_layers) {
    if (layer <= before || layer >= stage.first_layer + stage.layers) {
      return Refused(where, ": recomputed layer ", layer,
                     " is not one of its layers, or not in ascending order");
    }
    before = layer;
  }
  return absl::OkStatus();
}

absl::Status CheckStages(const IslandPlan& plan, int32_t r, int32_t layers,
                         const std::set<NodeId>& members, Assignments* assignments) {
  const PlanReplica& replica = plan.replicas[r];
  int64_t next = 0;
  for (size_t s = 0; s < replica.stages.size(); ++s) {
    const PlanStage& stage = replica.stages[s];
    const std::string where = absl::StrCat("replica ", r, ", stage ", s);
    if (stage.layers < 1) return Refused(where, ": it has ", stage.layers, " layers");
    if (stage.first_layer != next) {
      return Refused(where, ": it starts at layer ", stage.first_layer, ", but layer ", next,
                     " comes next");
    }
    next += stage.layers;
    if (stage.devices.empty()) return Refused(where, ": it has no devices");
    ATOLL_RETURN_IF_ERROR(CheckRecomputed(stage, where));
    for (size_t rank = 0; rank < stage.devices.size(); ++rank) {
      const std::string& device = stage.devices[rank];
      ATOLL_RETURN_IF_ERROR(CheckDevice(device, members, where));
      const auto [it, is_new] = assignments->try_emplace(
          device, Assignment{r, static_cast<int32_t>(rank), stage.devices.size(), {}});
      Assignment& assignment = it->second;
      if (assignment.replica != r) {
        return Refused(where, ": ", device, " already works in replica ", assignment.replica);
      }
      if (assignment.Holds(static_cast<int32_t>(s))) {
        return Refused(where, ": ", device, " is there twice");
      }
      if (assignment.rank != static_cast<int32_t>(rank)) {
        return Refused(where, ": ", device, " has rank ", rank, ", but rank ", assignment.rank,
                       " in stage ", assignment.stages.front());
      }
      if (assignment.ranks != stage.devices.size()) {
        return Refused(where, ": ", device, " is one of ", stage.devices.size(),
                       " devices, but of ", assignment.ranks, " in stage ",
                       assignment.stages.front());
      }
      assignment.stages.push_back(static_cast<int32_t>(s));
    }
  }
  if (next != layers) {
    return Refused("replica ", r, ": its stages hold ", next, " layers, the job has ", layers);
  }
  return absl::OkStatus();
}

// A layer's gradients are added up rank by rank. REQUIRES: all replicas hold all layers.
absl::Status CheckDegrees(const IslandPlan& plan) {
  for (size_t r = 0; r < plan.replicas.size(); ++r) {
    for (size_t s = 0; s < plan.replicas[r].stages.size(); ++s) {
      const PlanStage& stage = plan.replicas[r].stages[s];
      const auto ranks = static_cast<int>(stage.devices.size());
      for (int32_t l = stage.first_layer; l < stage.first_layer + stage.layers; ++l) {
        if (TensorDegree(plan, l) == ranks) continue;
        return Refused("replica ", r, ", stage ", s, ": ", ranks, " devices share layer ", l,
                       ", but ", TensorDegree(plan, l), " in replica 0");
      }
      if (plan.tensor_split_ratios.empty() ||
          static_cast<int>(plan.tensor_split_ratios.size()) == ranks) {
        continue;
      }
      return Refused("tensor_split_ratios: ", plan.tensor_split_ratios.size(),
                     " of them, but replica ", r, ", stage ", s, " has ", ranks,
                     ranks == 1 ? " device" : " devices");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckShares(const IslandPlan& plan, int64_t batch_sequences) {
  int64_t capacity = 0;
  for (size_t r = 0; r < plan.replicas.size(); ++r) {
    const PlanReplica& replica = plan.replicas[r];
    if (replica.micro_batches < 1 || replica.micro_batch_sequences < 1 ||
        replica.micro_batches > batch_sequences ||
        replica.micro_batch_sequences > batch_sequences) {
      return Refused("replica ", r, ": ", replica.micro_batches, " micro-batches of ",
                     replica.micro_batch_sequences, " sequences, for a step of ", batch_sequences);
    }
    capacity += replica.micro_batches * replica.micro_batch_sequences;
  }
  const int64_t last = plan.replicas.back().micro_batch_sequences;
  if (capacity < batch_sequences || capacity - last >= batch_sequences) {
    return Refused("its micro-batches take ", capacity, " sequences, a step has ", batch_sequences);
  }
  for (const int32_t share : plan.tensor_split_ratios) {
    if (share < 1) return Refused("tensor_split_ratios: ", share, " must be at least 1");
  }
  return absl::OkStatus();
}

// Checks one device's program against what its stages need.
class ProgramCheck {
 public:
  ProgramCheck(const IslandPlan& plan, const Assignment& assignment, const PlanProgram& program)
      : plan_(plan),
        replica_(plan.replicas[assignment.replica]),
        assignment_(assignment),
        program_(program) {}

  absl::Status Run() {
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      ATOLL_RETURN_IF_ERROR(Take(static_cast<int>(i)));
    }
    for (const int32_t stage : assignment_.stages) {
      for (int32_t m = 0; m < replica_.micro_batches; ++m) {
        ATOLL_RETURN_IF_ERROR(CheckMicroBatch(stage, m));
      }
      ATOLL_RETURN_IF_ERROR(CheckSyncs(stage));
    }
    if (program_.ops.empty() || program_.ops.back().kind != PlanOpKind::kOptimizer) {
      return Refused("program of ", program_.device, " does not end in its optimizer step");
    }
    return absl::OkStatus();
  }

 private:
  using Key = std::tuple<PlanOpKind, int32_t, int32_t, bool>;  // kind, stage, micro-batch, gradient

  template <typename... Args>
  absl::Status RefusedAt(int index, const Args&... args) const {
    return Refused("program of ", program_.device, ", operation ", index, " (",
                   ToString(program_.ops[index]), "): ", args...);
  }

  // Returns whether `stage` neighbours on this very device, which needs no messages.
  bool Local(int32_t stage) const { return assignment_.Holds(stage); }

  absl::Status Take(int index) {
    const PlanOp& op = program_.ops[index];
    if (op.kind == PlanOpKind::kOptimizer) {
      return index + 1 == static_cast<int>(program_.ops.size())
                 ? absl::OkStatus()
                 : RefusedAt(index, "it must be the last one");
    }
    if (op.kind > PlanOpKind::kOptimizer) return RefusedAt(index, "unknown kind");
    if (!assignment_.Holds(op.stage))
      return RefusedAt(index, "the device does not hold this stage");
    if (op.kind == PlanOpKind::kSync) return TakeSync(index);
    if (op.micro_batch < 0 || op.micro_batch >= replica_.micro_batches) {
      return RefusedAt(index, "its replica has ", replica_.micro_batches, " micro-batches");
    }
    const bool message = op.kind == PlanOpKind::kSend || op.kind == PlanOpKind::kReceive;
    if (!message && op.gradient) return RefusedAt(index, "it is no message, but says gradient");
    if (message) {
      const bool up = op.gradient == (op.kind == PlanOpKind::kReceive);  // to or from the next
      const int32_t other = op.stage + (up ? 1 : -1);
      if (other < 0 || other >= static_cast<int32_t>(replica_.stages.size())) {
        return RefusedAt(index, "there is no stage ", other);
      }
      if (Local(other)) return RefusedAt(index, "stage ", other, " is on this device too");
    }
    if (!position_.emplace(Key{op.kind, op.stage, op.micro_batch, op.gradient}, index).second) {
      return RefusedAt(index, "it is there twice");
    }
    if (op.kind == PlanOpKind::kWeightGradient) {
      const auto [last, first] = last_weight_.try_emplace(op.stage, op.micro_batch);
      if (!first && op.micro_batch < last->second) {
        return RefusedAt(index, "weight gradients must be added in the order of micro-batches");
      }
      last->second = op.micro_batch;
    }
    return absl::OkStatus();
  }

  absl::Status TakeSync(int index) {
    const PlanOp& op = program_.ops[index];
    const PlanStage& stage = replica_.stages[op.stage];
    if (plan_.replicas.size() < 2) return RefusedAt(index, "the island has one replica");
    if (op.layer < stage.first_layer || op.layer >= stage.first_layer + stage.layers) {
      return RefusedAt(index, "the stage does not hold this layer");
    }
    if (!syncs_.empty() && op.layer >= syncs_.back()) {
      return RefusedAt(index, "layers must be synchronised in descending order");
    }
    syncs_.push_back(op.layer);
    const auto weight = position_.find(
        Key{PlanOpKind::kWeightGradient, op.stage, replica_.micro_batches - 1, false});
    if (weight == position_.end()) {
      return RefusedAt(index, "the stage's last weight gradient comes later");
    }
    return absl::OkStatus();
  }

  // That both are there, the first one first.
  absl::Status Ordered(const PlanOp& first, const PlanOp& second) const {
    const int a = Position(first), b = Position(second);
    if (a < 0 || b < 0) {
      return Refused("program of ", program_.device, " lacks ", ToString(a < 0 ? first : second));
    }
    return a < b ? absl::OkStatus()
                 : RefusedAt(b, "it needs ", ToString(first), ", which is later");
  }
  int Position(const PlanOp& op) const {
    const auto found = position_.find(Key{op.kind, op.stage, op.micro_batch, op.gradient});
    return found == position_.end() ? -1 : found->second;
  }

  absl::Status CheckMicroBatch(int32_t s, int32_t m) const {
    const auto op = [&](PlanOpKind kind, bool gradient = false) {
      return PlanOp{.kind = kind, .stage = s, .micro_batch = m, .gradient = gradient};
    };
    const PlanOp f = op(PlanOpKind::kForward), b = op(PlanOpKind::kInputGradient);
    ATOLL_RETURN_IF_ERROR(Ordered(f, b));
    ATOLL_RETURN_IF_ERROR(Ordered(b, op(PlanOpKind::kWeightGradient)));
    if (s > 0 && Local(s - 1)) {
      PlanOp f_before = f, b_before = b;
      f_before.stage = b_before.stage = s - 1;
      ATOLL_RETURN_IF_ERROR(Ordered(f_before, f));
      ATOLL_RETURN_IF_ERROR(Ordered(b, b_before));
    } else if (s > 0) {
      ATOLL_RETURN_IF_ERROR(Ordered(op(PlanOpKind::kReceive, false), f));
      ATOLL_RETURN_IF_ERROR(Ordered(b, op(PlanOpKind::kSend, true)));
    }
    if (s + 1 < static_cast<int32_t>(replica_.stages.size()) && !Local(s + 1)) {
      ATOLL_RETURN_IF_ERROR(Ordered(f, op(PlanOpKind::kSend, false)));
      ATOLL_RETURN_IF_ERROR(Ordered(op(PlanOpKind::kReceive, true), b));
    }
    return absl::OkStatus();
  }

  absl::Status CheckSyncs(int32_t s) const {
    const PlanStage& stage = replica_.stages[s];
    for (int32_t l = stage.first_layer; l < stage.first_layer + stage.layers; ++l) {
      if (plan_.replicas.size() > 1 && std::find(syncs_.begin(), syncs_.end(), l) == syncs_.end()) {
        return Refused("program of ", program_.device, " lacks sync of layer ", l);
      }
    }
    return absl::OkStatus();
  }

  const IslandPlan& plan_;
  const PlanReplica& replica_;
  const Assignment& assignment_;
  const PlanProgram& program_;
  std::map<Key, int> position_;
  std::map<int32_t, int32_t> last_weight_;  // by stage
  std::vector<int32_t> syncs_;
};

// Plays the programs, without time: every receive waits for its send, and the devices of a
// tensor-parallel group, which talk to each other within F and B, for each other.
class ProgramSimulation {
 public:
  ProgramSimulation(const IslandPlan& plan, const Assignments& assignments) : plan_(plan) {
    for (const PlanProgram& program : plan.programs) {
      devices_[program.device] = {&program, &assignments.at(program.device), 0};
    }
  }

  absl::Status Run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& [name, device] : devices_) {
        while (device.next < device.program->ops.size() && Do(device)) moved = true;
      }
    }
    for (const auto& [name, device] : devices_) {
      if (device.next == device.program->ops.size()) continue;
      return Refused("program of ", name, ", operation ", device.next, " (",
                     ToString(device.program->ops[device.next]),
                     "): it would wait for ever; the programs wait for each other in a circle");
    }
    return absl::OkStatus();
  }

 private:
  struct Device {
    const PlanProgram* program = nullptr;
    const Assignment* assignment = nullptr;
    size_t next = 0;
    const PlanOp& op() const { return program->ops[next]; }
  };
  // replica, rank that sends, stage that receives, micro-batch, gradient
  using Message = std::tuple<int32_t, int32_t, int32_t, int32_t, bool>;

  bool Do(Device& device) {
    const PlanOp& op = device.op();
    const Assignment& assignment = *device.assignment;
    switch (op.kind) {
      case PlanOpKind::kSend:
        sent_.emplace(assignment.replica, assignment.rank, op.stage + (op.gradient ? -1 : 1),
                      op.micro_batch, op.gradient);
        break;
      case PlanOpKind::kReceive:
        if (!sent_.contains({assignment.replica, Sender(assignment, op), op.stage, op.micro_batch,
                             op.gradient})) {
          return false;
        }
        break;
      case PlanOpKind::kForward:
      case PlanOpKind::kInputGradient:
        return DoTogether(op, plan_.replicas[assignment.replica].stages[op.stage].devices);
      default:
        break;
    }
    ++device.next;
    return true;
  }

  int32_t Sender(const Assignment& assignment, const PlanOp& op) const {
    const PlanStage& from =
        plan_.replicas[assignment.replica].stages[op.stage + (op.gradient ? 1 : -1)];
    return static_cast<int32_t>(SendingRank(assignment.rank, from.devices.size()));
  }

  bool DoTogether(const PlanOp op, const std::vector<std::string>& group) {
    for (const std::string& name : group) {
      const Device& member = devices_.at(name);
      if (member.next == member.program->ops.size() || !(member.op() == op)) return false;
    }
    for (const std::string& name : group) ++devices_.at(name).next;
    return true;
  }

  const IslandPlan& plan_;
  std::map<std::string, Device> devices_;
  std::set<Message> sent_;
};

// `worker`: its devices' programs are required; empty: all are.
absl::Status CheckPrograms(const IslandPlan& plan, const Assignments& assignments,
                           const NodeId& worker) {
  std::set<std::string> seen;
  int64_t operations = 0;
  for (const PlanProgram& program : plan.programs) {
    const auto assignment = assignments.find(program.device);
    if (assignment == assignments.end()) {
      return Refused("there is a program for ", program.device, ", which no stage names");
    }
    if (!seen.insert(program.device).second) {
      return Refused("there are two programs for ", program.device);
    }
    operations += static_cast<int64_t>(program.ops.size());
    if (operations > kMaxOperations) {
      return Refused("its programs have more than ", kMaxOperations, " operations");
    }
    ATOLL_RETURN_IF_ERROR(ProgramCheck(plan, assignment->second, program).Run());
  }
  for (const auto& [device, assignment] : assignments) {
    const bool required = worker.empty() || WorkerFromDevice(device) == worker;
    if (required && !seen.contains(device)) return Refused("there is no program for ", device);
  }
  if (seen.size() < assignments.size()) return absl::OkStatus();
  return ProgramSimulation(plan, assignments).Run();
}

// Checks one message in the order of link `l`.
absl::Status CheckMessage(const IslandPlan& plan, size_t l, const PlanMessage& message) {
  const auto refused = [&](const auto&... args) {
    return Refused("link order ", l, ", ", ToString(message), ": ", args...);
  };
  if (message.replica < 0 || message.replica >= static_cast<int64_t>(plan.replicas.size())) {
    return refused("there is no such replica");
  }
  const PlanReplica& replica = plan.replicas[message.replica];
  const auto stages = static_cast<int32_t>(replica.stages.size());
  const int32_t to = message.stage + (message.gradient ? -1 : 1);
  if (message.stage < 0 || message.stage >= stages || to < 0 || to >= stages) {
    return refused("no stage sends that");
  }
  if (message.micro_batch < 0 || message.micro_batch >= replica.micro_batches) {
    return refused("its replica has ", replica.micro_batches, " micro-batches");
  }
  if (WorkerFromDevice(GetSenders(plan, message)[0]) ==
      WorkerFromDevice(GetReceivers(plan, message)[0])) {
    return refused("it stays within a worker");
  }
  return absl::OkStatus();
}

absl::Status CheckLinkOrders(const IslandPlan& plan) {
  std::set<PlanMessage> seen;
  for (size_t l = 0; l < plan.link_orders.size(); ++l) {
    if (plan.link_orders[l].messages.empty()) return Refused("link order ", l, " is empty");
    std::map<PlanMessage, int32_t> counts;  // by stage link: as its micro-batch 0
    for (PlanMessage message : plan.link_orders[l].messages) {
      ATOLL_RETURN_IF_ERROR(CheckMessage(plan, l, message));
      if (!seen.insert(message).second) {
        return Refused("link order ", l, ", ", ToString(message), ": it is there twice");
      }
      message.micro_batch = 0;
      ++counts[message];
    }
    for (const auto& [stage_link, count] : counts) {
      if (count == plan.replicas[stage_link.replica].micro_batches) continue;
      return Refused("link order ", l, " has ", count, " of the ",
                     plan.replicas[stage_link.replica].micro_batches, " micro-batches of stage ",
                     stage_link.stage, " of replica ", stage_link.replica);
    }
  }
  return absl::OkStatus();
}

absl::Status Check(const IslandPlan& plan, int32_t layers, int64_t batch_sequences,
                   const NodeId& worker) {
  std::set<NodeId> members;
  ATOLL_RETURN_IF_ERROR(CheckMembers(plan, &members));
  if (plan.replicas.empty()) return Refused("it has no replicas");
  Assignments assignments;
  for (size_t r = 0; r < plan.replicas.size(); ++r) {
    ATOLL_RETURN_IF_ERROR(
        CheckStages(plan, static_cast<int32_t>(r), layers, members, &assignments));
  }
  ATOLL_RETURN_IF_ERROR(CheckDegrees(plan));
  ATOLL_RETURN_IF_ERROR(CheckShares(plan, batch_sequences));
  ATOLL_RETURN_IF_ERROR(CheckLinkOrders(plan));
  return CheckPrograms(plan, assignments, worker);
}

}  // namespace

absl::Status Validate(const IslandPlan& plan, int32_t layers, int64_t batch_sequences) {
  return Check(plan, layers, batch_sequences, "");
}

absl::Status ValidateFor(const NodeId& worker, const IslandPlan& plan, int32_t layers,
                         int64_t batch_sequences) {
  return Check(plan, layers, batch_sequences, worker);
}

}  // namespace atl
