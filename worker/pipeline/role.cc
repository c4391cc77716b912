#include "worker/pipeline/role.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "common/check.h"
#include "common/protocol/program_slots.h"
#include "common/protocol/tensor_groups.h"

namespace atl::worker {
namespace {

int StageOfLayer(const PlanReplica& replica, int32_t layer) {
  for (size_t s = 0; s < replica.stages.size(); ++s) {
    const PlanStage& stage = replica.stages[s];
    if (layer < stage.first_layer + stage.layers) return static_cast<int>(s);
  }
  ATOLL_CHECK(false, "no stage holds layer ", layer);
  __builtin_unreachable();
}

const std::string& Holder(const PlanReplica& replica, int32_t layer, int rank) {
  return replica.stages[StageOfLayer(replica, layer)].devices[rank];
}

// Every group of the plan once, in one order, named as it comes.
class Groups {
 public:
  // The name of the group of these devices; empty if it is one device.
  std::string Name(const std::string& kind, const std::vector<std::string>& devices) {
    if (devices.size() < 2) return "";
    const auto [it, is_new] = names_.try_emplace({kind, devices}, "");
    if (is_new) {
      it->second = absl::StrCat(kind, "/", counts_[kind]++);
      all_.push_back({it->second, devices});
    }
    return it->second;
  }

  std::vector<DeviceGroup> Of(const std::string& device) const {
    std::vector<DeviceGroup> own;
    for (const DeviceGroup& group : all_) {
      const auto& d = group.devices;
      if (std::find(d.begin(), d.end(), device) != d.end()) own.push_back(group);
    }
    return own;
  }

 private:
  std::map<std::pair<std::string, std::vector<std::string>>, std::string> names_;
  std::map<std::string, int> counts_;
  std::vector<DeviceGroup> all_;
};

std::vector<std::string> ReplicasOfLayer(const IslandPlan& plan, int32_t layer, int rank) {
  std::vector<std::string> devices;
  for (const PlanReplica& replica : plan.replicas) {
    devices.push_back(Holder(replica, layer, rank));
  }
  return devices;
}

// Lists the devices of embeddings and heads, and each one's replica if it holds an embedding, else
// -1.
std::vector<std::string> TableDevices(const IslandPlan& plan, int32_t head, int rank,
                                      std::vector<int32_t>* replicas) {
  std::vector<std::string> devices;
  for (size_t r = 0; r < plan.replicas.size(); ++r) {
    devices.push_back(Holder(plan.replicas[r], 0, rank));
    replicas->push_back(static_cast<int32_t>(r));
    if (Holder(plan.replicas[r], head, rank) == devices.back()) continue;
    devices.push_back(Holder(plan.replicas[r], head, rank));
    replicas->push_back(-1);
  }
  return devices;
}

void CountSlots(DeviceRole& role) {
  std::vector<int32_t> stages;
  for (const StageRole& stage : role.stages) stages.push_back(stage.stage);
  for (const StageSlots& slots : ComputeStageSlots(role.program, stages)) {
    StageRole* stage = role.FindStage(slots.stage);
    stage->forward_slots = slots.forward;
    stage->backward_slots = slots.backward;
    stage->fused = slots.fused;
  }
}

// In the order of layers, last first; the table is layer 0's.
void AddSyncs(const IslandPlan& plan, int32_t layers, TiedTable tied, Groups& groups,
              DeviceRole& role) {
  const bool replicas = plan.replicas.size() > 1;
  std::vector<int32_t> of_all(plan.replicas.size());
  std::iota(of_all.begin(), of_all.end(), 0);
  for (int32_t l = layers - 1; l >= 0; --l) {
    const bool table = tied == TiedTable::kTrained && l == 0;
    for (int rank = 0; rank < TensorDegree(plan, l); ++rank) {
      const std::string group = replicas ? groups.Name("sync", ReplicasOfLayer(plan, l, rank)) : "";
      std::vector<int32_t> of_table;
      const std::string table_group =
          table ? groups.Name("sync", TableDevices(plan, layers - 1, rank, &of_table)) : "";
      if (rank != role.rank) continue;
      if (table && (role.table_copy || role.HoldsLayer(0)) &&
          (!table_group.empty() || role.table_copy)) {
        role.syncs.push_back({SyncTask::What::kTable, 0, table_group, std::move(of_table)});
      }
      if (role.HoldsLayer(l) && replicas) {
        role.syncs.push_back(
            {table ? SyncTask::What::kRest : SyncTask::What::kLayer, l, group, of_all});
      }
    }
  }
}

// Lists the receivers of what a rank sends in a message from a stage to its neighbour.
std::vector<std::pair<int32_t, std::string>> ReceiversFrom(const PlanStage& from, int32_t rank,
                                                           const PlanStage& to) {
  std::vector<std::pair<int32_t, std::string>> receivers;
  for (const auto& [sends, receives] : MessagePairs(from.devices.size(), to.devices.size())) {
    if (static_cast<int32_t>(sends) != rank) continue;
    receivers.emplace_back(static_cast<int32_t>(receives), to.devices[receives]);
  }
  return receivers;
}

void AddNeighbour(const PlanStage& own, int32_t rank, const PlanStage& other, std::string* from,
                  std::vector<std::pair<int32_t, std::string>>* to) {
  *from = other.devices[SendingRank(static_cast<size_t>(rank), other.devices.size())];
  *to = ReceiversFrom(own, rank, other);
}

void AddStages(const IslandPlan& plan, int32_t layers, TiedTable tied, DeviceRole& role) {
  for (size_t r = 0; r < plan.replicas.size(); ++r) {
    const PlanReplica& replica = plan.replicas[r];
    for (size_t s = 0; s < replica.stages.size(); ++s) {
      const std::vector<std::string>& devices = replica.stages[s].devices;
      const auto found = std::find(devices.begin(), devices.end(), role.device);
      if (found == devices.end()) continue;
      role.replica = static_cast<int32_t>(r);
      role.rank = static_cast<int32_t>(found - devices.begin());
      role.ranks = static_cast<int32_t>(devices.size());
      StageRole stage;
      stage.stage = static_cast<int32_t>(s);
      stage.plan = replica.stages[s];
      if (s > 0) {
        AddNeighbour(stage.plan, role.rank, replica.stages[s - 1], &stage.before, &stage.to_before);
      }
      if (s + 1 < replica.stages.size()) {
        AddNeighbour(stage.plan, role.rank, replica.stages[s + 1], &stage.next, &stage.to_next);
      }
      stage.before_is_here = stage.before == role.device;
      stage.next_is_here = stage.next == role.device;
      role.stages.push_back(std::move(stage));
    }
  }
  ATOLL_CHECK(!role.stages.empty(), "no stage names ", role.device);
  const PlanReplica& replica = plan.replicas[role.replica];
  role.micro_batch_sequences = replica.micro_batch_sequences;
  role.micro_batches = replica.micro_batches;
  role.table_copy = tied != TiedTable::kNone && role.HoldsLayer(layers - 1) &&
                    StageOfLayer(replica, 0) != StageOfLayer(replica, layers - 1);
}

}  // namespace

bool DeviceRole::HoldsLayer(int32_t layer) const {
  return std::any_of(stages.begin(), stages.end(), [&](const StageRole& stage) {
    return layer >= stage.plan.first_layer && layer < stage.plan.first_layer + stage.plan.layers;
  });
}

StageRole* DeviceRole::FindStage(int32_t stage) {
  for (StageRole& own : stages) {
    if (own.stage == stage) return &own;
  }
  ATOLL_CHECK(false, device, " does not hold stage ", stage);
  __builtin_unreachable();
}

std::vector<std::string> ListDevices(const IslandPlan& plan) {
  std::vector<std::string> devices;
  for (const PlanReplica& replica : plan.replicas) {
    for (const PlanStage& stage : replica.stages) {
      for (const std::string& device : stage.devices) {
        if (std::find(devices.begin(), devices.end(), device) == devices.end()) {
          devices.push_back(device);
        }
      }
    }
  }
  return devices;
}

DeviceRole MakeDeviceRole(const IslandPlan& plan, const std::string& device, int32_t layers,
                          TiedTable tied) {
  DeviceRole role;
  role.device = device;
  role.ownership = OwnershipFromPlan(plan);
  AddStages(plan, layers, tied, role);
  for (const PlanProgram& program : plan.programs) {
    if (program.device == device) role.program = program;
  }
  Groups groups;
  for (size_t r = 0; r < plan.replicas.size(); ++r) {
    for (size_t s = 0; s < plan.replicas[r].stages.size(); ++s) {
      const std::string name = groups.Name("tensor", plan.replicas[r].stages[s].devices);
      for (StageRole& stage : role.stages) {
        if (static_cast<int32_t>(r) == role.replica && stage.stage == static_cast<int32_t>(s)) {
          stage.tensor_group = name;
        }
      }
    }
  }
  AddSyncs(plan, layers, tied, groups, role);
  role.groups = groups.Of(device);
  CountSlots(role);
  return role;
}

}  // namespace atl::worker
