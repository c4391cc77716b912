#include "coordinator/planning/auxiliary_memory.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bytes_text.h"
#include "common/model/outer_copies.h"
#include "common/protocol/host_copies.h"
#include "common/protocol/nccl_joins.h"
#include "common/protocol/program_slots.h"
#include "common/protocol/tensor_groups.h"

namespace atl {
namespace {

constexpr int64_t kBlocks = 4;  // of a GPU, for messages through the host

const IslandMember* FindMember(const IslandPlan& plan, const std::string& device) {
  for (const IslandMember& member : plan.members) {
    if (member.worker == WorkerFromDevice(device)) return &member;
  }
  return nullptr;
}

// NCCL goes between these two, or they are of one worker: nothing passes the hosts.
bool Straight(const IslandPlan& plan, const std::string& a, const std::string& b) {
  const IslandMember *one = FindMember(plan, a), *other = FindMember(plan, b);
  if (one == nullptr || other == nullptr || one == other) return one == other;
  return NcclLacks(*one, *other).empty();
}

// One micro-batch's activation, or its gradient.
int64_t MessageBytes(const PlanRequest& request, const PlanReplica& replica,
                     const DeviceInfo& info) {
  const int64_t element = info.compute == "bf16" ? 2 : 4;
  return replica.micro_batch_sequences * request.spec.data.sequence_length *
         request.facts.model.hidden * element;
}

// Micro-batches that a stage has in flight.
int SlotsOfStage(const IslandPlan& plan, const PlanReplica& replica, size_t stage) {
  const std::string& device = replica.stages[stage].devices[0];
  std::vector<int32_t> own;
  for (size_t s = 0; s < replica.stages.size(); ++s) {
    if (replica.stages[s].devices[0] == device) own.push_back(static_cast<int32_t>(s));
  }
  for (const PlanProgram& program : plan.programs) {
    if (program.device != device) continue;
    for (const StageSlots& slots : ComputeStageSlots(program, own)) {
      if (slots.stage == static_cast<int32_t>(stage)) return slots.forward;
    }
  }
  return replica.micro_batches;
}

// Returns the bytes of the stage link from stage `before` to the next one, at either end, for
// devices `device` and `other` at its two ends.
void AddStageLink(const IslandPlan& plan, const PlanReplica& replica, size_t before,
                  const std::string& device, const std::string& other, bool is_before,
                  int64_t message_bytes, bool on_host, AuxiliaryMemory& auxiliary) {
  if (device == other) return;
  const bool straight = Straight(plan, device, other);
  const int64_t both_ways = 2 * int64_t{replica.micro_batches};
  if (!on_host) {
    const int64_t in =
        straight ? replica.micro_batches : std::min<int64_t>(kBlocks, replica.micro_batches);
    auxiliary.device_bytes +=
        (std::min<int64_t>(kBlocks, replica.micro_batches) + in) * message_bytes;
    if (straight) return;
  }
  const bool within = WorkerFromDevice(device) == WorkerFromDevice(other);
  if (within && !is_before) return;  // they are in one queue
  const int64_t in_flight = SlotsOfStage(plan, replica, before) + 1;
  auxiliary.host_bytes += std::min(both_ways, in_flight) * message_bytes;
}

// Gradients of the device's layers, so many of whose other holders are on other workers.
int64_t CountAllReduceBytes(const PlanRequest& request, const IslandPlan& plan, size_t own_replica,
                            const std::string& device, bool on_host) {
  if (plan.replicas.size() < 2) return 0;
  std::set<NodeId> workers;
  for (const PlanReplica& replica : plan.replicas) {
    for (const PlanStage& stage : replica.stages) {
      for (const std::string& other : stage.devices) {
        if (on_host || !Straight(plan, device, other)) workers.insert(WorkerFromDevice(other));
      }
    }
  }
  workers.insert(WorkerFromDevice(device));
  int64_t elements = 0, ranks = 1;
  for (const PlanStage& stage : plan.replicas[own_replica].stages) {
    if (std::find(stage.devices.begin(), stage.devices.end(), device) == stage.devices.end()) {
      continue;
    }
    ranks = std::ssize(stage.devices);
    for (int l = stage.first_layer; l < stage.first_layer + stage.layers; ++l) {
      elements += request.facts.layers[static_cast<size_t>(l)].elements;
    }
  }
  const auto n = static_cast<int64_t>(workers.size());
  return elements * int64_t{sizeof(float)} / ranks * (n - 1) / n;
}

// Ranks of a neighbouring group that a rank sends to or receives from.
std::set<size_t> Partners(size_t rank, size_t own, size_t others) {
  std::set<size_t> partners = {SendingRank(rank, others)};
  for (const auto& [sends, receives] : MessagePairs(own, others)) {
    if (sends == rank) partners.insert(receives);
  }
  return partners;
}

}  // namespace

const DeviceInfo* FindDeviceInfo(const PlanRequest& request, const std::string& device) {
  for (const PlanMember& member : request.members) {
    const int index = IndexFromDevice(device);
    if (member.member.worker != WorkerFromDevice(device) || index < 0) continue;
    if (index < static_cast<int>(member.devices.size())) return &member.devices[index];
  }
  return nullptr;
}

bool IsHost(const DeviceInfo& device) { return device.kind.rfind("cpu", 0) == 0; }

AuxiliaryMemory EstimateAuxiliaryMemory(const PlanRequest& request, const IslandPlan& plan,
                                        const std::string& device) {
  AuxiliaryMemory auxiliary;
  const DeviceInfo* info = FindDeviceInfo(request, device);
  if (info == nullptr) return auxiliary;
  const bool on_host = IsHost(*info);
  for (size_t r = 0; r < plan.replicas.size(); ++r) {
    const PlanReplica& replica = plan.replicas[r];
    bool here = false;
    for (size_t s = 0; s < replica.stages.size(); ++s) {
      const std::vector<std::string>& devices = replica.stages[s].devices;
      const auto rank = std::find(devices.begin(), devices.end(), device) - devices.begin();
      if (rank == static_cast<std::ptrdiff_t>(devices.size())) continue;
      here = true;
      const int64_t message = MessageBytes(request, replica, *info);
      for (const size_t before : {s - 1, s}) {
        if (before + 1 == 0 || before + 1 == replica.stages.size()) continue;
        const size_t other = before == s ? s + 1 : before;
        const std::vector<std::string>& others = replica.stages[other].devices;
        for (const size_t partner :
             Partners(static_cast<size_t>(rank), devices.size(), others.size())) {
          AddStageLink(plan, replica, before, device, others[partner], before == s, message,
                       on_host, auxiliary);
        }
      }
    }
    if (here) auxiliary.host_bytes += CountAllReduceBytes(request, plan, r, device, on_host);
  }
  return auxiliary;
}

// Every worker keeps everything where there are as many copies as workers.
int64_t LeastOwnerBytes(const PlanRequest& request) {
  if (request.spec.checkpoint.peer_copies + 1 < std::ssize(request.members)) return 0;
  int64_t elements = 0;
  for (const LayerSize& layer : request.facts.layers) elements += layer.elements;
  const int saved = request.members.size() == 1 ? SaveCopies(request.spec) : 0;
  return elements * int64_t{sizeof(float)} * (OuterCopies(request.spec) + saved);
}

absl::Status CheckHosts(const PlanRequest& request, const IslandPlan& plan) {
  std::optional<std::map<NodeId, HostCopies>> copies;
  for (const PlanMember& member : request.members) {
    if (member.devices.empty() || member.devices[0].host_memory_bytes == 0) continue;
    if (!copies) copies = MakeAllHostCopies(request.spec, plan, request.facts);
    const NodeId& worker = member.member.worker;
    int64_t messages = 0;
    for (const PlanProgram& program : plan.programs) {
      if (WorkerFromDevice(program.device) != worker) continue;
      messages += EstimateAuxiliaryMemory(request, plan, program.device).host_bytes;
    }
    const int64_t owned = (*copies)[worker].needed_bytes();
    const int64_t has = member.devices[0].host_memory_bytes;
    if (messages + owned <= has) continue;
    return absl::ResourceExhaustedError(absl::StrCat(
        "worker ", worker, ": its host lacks ", BytesText(messages + owned - has), ": it has ",
        BytesText(has), ", messages on their way take ", BytesText(messages),
        ", and what it exchanges with the parameter servers, with copies for others, saves and "
        "validates, ",
        BytesText(owned), "; use a machine with more memory or a smaller model"));
  }
  return absl::OkStatus();
}

}  // namespace atl
