#include "coordinator/planning/plan_memory.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes_text.h"
#include "common/model/ownership.h"
#include "common/protocol/program_slots.h"
#include "coordinator/planning/auxiliary_memory.h"

namespace atl {
namespace {

// What one layer takes on one device, for micro-batches of the plan's size.
struct LayerNeeds {
  int64_t state = 0;  // parameters, gradients, moments, and a copy in the compute type
  int64_t forward_stash = 0, backward_stash = 0;
  int64_t output = 0;
  int64_t workspace = 0;
};

// What is asked of one device.
class DeviceNeeds {
 public:
  // `share`: of every layer.
  DeviceNeeds(const PlanRequest& request, const DeviceProfile& profile, int tensor_parallel,
              double share, int64_t rows, const Ownership& ownership, int replica)
      : request_(request),
        profile_(profile),
        tensor_parallel_(tensor_parallel),
        share_(share),
        rows_(rows),
        ownership_(ownership),
        replica_(replica) {}

  // False: the profile does not have all kinds of layers at this degree of tensor parallelism.
  bool Read() {
    for (const LayerKind kind : {LayerKind::kEmbedding, LayerKind::kBlock, LayerKind::kHead}) {
      if (Nearest(kind, tensor_parallel_) == nullptr) return false;
    }
    return true;
  }

  int64_t Bytes(const PlanReplica& replica, const PlanProgram& program) const {
    std::vector<int32_t> own;
    for (size_t s = 0; s < replica.stages.size(); ++s) {
      const auto& devices = replica.stages[s].devices;
      if (std::find(devices.begin(), devices.end(), program.device) != devices.end()) {
        own.push_back(static_cast<int32_t>(s));
      }
    }
    int64_t bytes = 0, workspace = 0;
    bool sends = false, sends_back = false;
    for (const StageSlots& slots : SlotsOf(program, own)) {
      const PlanStage& stage = replica.stages[static_cast<size_t>(slots.stage)];
      bytes += StageBytes(stage, slots);
      for (int l = stage.first_layer; l < stage.first_layer + stage.layers; ++l) {
        bytes += Owned(Layer(l).state);
        workspace = std::max(workspace, Layer(l).workspace);
      }
      const auto is_own = [&](int32_t s) {
        return std::find(own.begin(), own.end(), s) != own.end();
      };
      sends |=
          slots.stage + 1 < static_cast<int32_t>(replica.stages.size()) && !is_own(slots.stage + 1);
      sends_back |= slots.stage > 0 && !is_own(slots.stage - 1);
    }
    bytes += (sends ? Boundary() : 0) + (sends_back ? Boundary() : 0) + workspace;
    bytes += Tokens() + Constants();
    if (HasTableCopy(replica, program.device)) {
      // Its moments are the embeddings' where replicas share them.
      bytes += TableBytes();
      if (ownership_.sharded()) bytes -= MomentBytes(TableBytes());
    }
    return bytes;
  }

 private:
  // Of a layer's state, both moments: 4 bytes each of an element, whose parameters, gradient and
  // copy in the compute type take the rest.
  int64_t MomentBytes(int64_t state) const {
    const LayerCost* whole = Nearest(LayerKind::kBlock, 1);
    const auto elements = static_cast<double>(request_.facts.layers[1].elements);
    // At least the moments themselves, whatever a worker says that it has measured.
    const double each =
        whole == nullptr
            ? 16
            : std::max(8.0, std::round(static_cast<double>(whole->parameter_bytes) / elements));
    return std::llround(static_cast<double>(state) * 8 / each);
  }
  // Without the moments that other replicas own.
  int64_t Owned(int64_t state) const {
    if (!ownership_.sharded()) return state;
    const int64_t moments = MomentBytes(state), elements = moments / 8;
    return state - moments + 8 * ownership_.Owned(replica_, elements).size();
  }

  int layers() const { return static_cast<int>(request_.facts.layers.size()); }

  const LayerCost* Nearest(LayerKind kind, int tensor_parallel) const {
    const LayerCost* nearest = nullptr;
    const auto distance = [this](const LayerCost& cost) {
      return std::abs(std::log(static_cast<double>(std::max(1, cost.micro_batch_sequences)) /
                               static_cast<double>(rows_)));
    };
    for (const LayerCost& cost : profile_.layers) {
      if (cost.kind != kind || cost.tensor_parallel != tensor_parallel) continue;
      if (nearest == nullptr || distance(cost) <= distance(*nearest)) nearest = &cost;
    }
    return nearest;
  }

  LayerNeeds Layer(int l) const {
    const LayerKind kind = l == 0              ? LayerKind::kEmbedding
                           : l + 1 == layers() ? LayerKind::kHead
                                               : LayerKind::kBlock;
    LayerNeeds needs = NeedsOf(*Nearest(kind, tensor_parallel_));
    const double even = 1.0 / tensor_parallel_;
    if (share_ == even) return needs;
    // A part of a layer grows with the share, the rest is on all ranks: a line from an even share
    // to the whole.
    const LayerCost* alone = Nearest(kind, 1);
    const LayerNeeds whole = alone == nullptr ? needs : NeedsOf(*alone);
    const auto at = [&](int64_t& bytes, int64_t all) {
      const auto part = static_cast<double>(bytes);
      const double each =
          alone == nullptr ? part / even : (static_cast<double>(all) - part) / (1 - even);
      bytes = std::llround(part + each * (share_ - even));
    };
    at(needs.state, whole.state);
    at(needs.forward_stash, whole.forward_stash);
    at(needs.backward_stash, whole.backward_stash);
    at(needs.output, whole.output);
    at(needs.workspace, whole.workspace);
    return needs;
  }

  LayerNeeds NeedsOf(const LayerCost& cost) const {
    const int64_t measured = std::max(1, cost.micro_batch_sequences);
    const auto scaled = [&](int64_t bytes) { return bytes * rows_ / measured; };
    const int64_t backward = std::min(cost.backward_stash_bytes, cost.stash_bytes);
    return {cost.parameter_bytes, scaled(cost.stash_bytes - backward), scaled(backward),
            scaled(cost.output_bytes), scaled(cost.workspace_bytes)};
  }

  int64_t Boundary() const { return Layer(0).output; }
  int64_t Tokens() const { return rows_ * request_.spec.data.sequence_length * 4; }
  // Rotary positions' table.
  int64_t Constants() const {
    const ModelSpec& model = request_.facts.model;
    if (model.family != ModelFamily::kLlama || model.heads < 1) return 0;
    return request_.spec.data.sequence_length * (model.hidden / model.heads) * 4;
  }

  // Stage::CarveForward and CarveBackward.
  int64_t StageBytes(const PlanStage& stage, const StageSlots& slots) const {
    const bool has_head = stage.first_layer + stage.layers == layers();
    int64_t forward = stage.first_layer == 0 ? Tokens() : Boundary();
    int64_t backward = 0, most_backward = 0, scratch = 0;
    for (int l = stage.first_layer; l < stage.first_layer + stage.layers; ++l) {
      const LayerNeeds needs = Layer(l);
      const bool last = l + 1 == stage.first_layer + stage.layers;
      const bool head = last && has_head;
      const auto& again = stage.recomputed_layers;
      const bool recomputed =
          std::find(again.begin(), again.end(), l) != again.end() && l > 0 && l + 1 < layers();
      if (!last || has_head) forward += needs.output;
      if (!recomputed) forward += needs.forward_stash;
      if (recomputed) scratch = std::max(scratch, needs.forward_stash);
      backward +=
          needs.backward_stash + (head ? 0 : Boundary()) + (recomputed ? needs.forward_stash : 0);
      most_backward = std::max(most_backward, needs.backward_stash);
    }
    if (slots.fused) {
      // Three gradients of boundaries take turns; of a head's output it is in the logits' place.
      const int64_t gradients = std::min(stage.layers, 3) - (has_head ? 1 : 0);
      return slots.forward * forward + gradients * Boundary() + most_backward + scratch;
    }
    return slots.forward * forward + slots.backward * backward + scratch;
  }

  // A tied head that is not in the embedding's stage has a table of its own.
  bool HasTableCopy(const PlanReplica& replica, const std::string& device) const {
    const PlanStage& last = replica.stages.back();
    return request_.facts.model.tied_head && replica.stages.size() > 1 &&
           std::find(last.devices.begin(), last.devices.end(), device) != last.devices.end();
  }
  int64_t TableBytes() const {
    const ModelSpec& model = request_.facts.model;
    const auto table = static_cast<double>(model.vocabulary) * static_cast<double>(model.hidden);
    return std::llround(static_cast<double>(Layer(0).state) * table /
                        static_cast<double>(request_.facts.layers[0].elements));
  }

  const PlanRequest& request_;
  const DeviceProfile& profile_;
  const int tensor_parallel_;
  const double share_;
  const int64_t rows_;
  const Ownership ownership_;
  const int replica_;
};

const DeviceProfile* ProfileOf(const PlanRequest& request, const std::string& device) {
  for (const PlanMember& member : request.members) {
    for (const DeviceProfile& profile : member.profiles) {
      if (profile.device == device) return &profile;
    }
  }
  return nullptr;
}

const DeviceInfo* InfoOf(const PlanRequest& request, const std::string& device) {
  for (const PlanMember& member : request.members) {
    if (member.member.worker != WorkerOfDevice(device)) continue;
    const auto index = static_cast<size_t>(IndexOfDevice(device));
    if (index < member.devices.size()) return &member.devices[index];
  }
  return nullptr;
}

const PlanReplica* ReplicaOf(const IslandPlan& plan, const std::string& device) {
  for (const PlanReplica& replica : plan.replicas) {
    for (const PlanStage& stage : replica.stages) {
      if (std::find(stage.devices.begin(), stage.devices.end(), device) != stage.devices.end()) {
        return &replica;
      }
    }
  }
  return nullptr;
}

// Of every layer, on the device.
double ShareOf(const IslandPlan& plan, const PlanReplica& replica, const std::string& device) {
  const double even = 1.0 / plan.tensor_parallel();
  if (plan.tensor_shares.empty()) return even;
  for (const PlanStage& stage : replica.stages) {
    for (size_t rank = 0; rank < stage.devices.size(); ++rank) {
      if (stage.devices[rank] != device) continue;
      return plan.tensor_shares[rank] /
             std::accumulate(plan.tensor_shares.begin(), plan.tensor_shares.end(), 0.0);
    }
  }
  return even;
}

}  // namespace

std::string Text(const MemoryLack& lack) {
  std::string text =
      absl::StrCat(lack.device, " lacks ", BytesText(lack.lacks_bytes()), ": it would take ",
                   BytesText(lack.takes_bytes + lack.beside_bytes));
  if (lack.beside_bytes > 0) {
    absl::StrAppend(&text, ", ", BytesText(lack.beside_bytes),
                    " of it for messages and the leader's copies of the model,");
  }
  absl::StrAppend(&text, " and has ", BytesText(lack.has_bytes));
  return text;
}

std::optional<MemoryLack> NeedOf(const PlanRequest& request, const IslandPlan& plan,
                                 const PlanProgram& program) {
  const DeviceProfile* profile = ProfileOf(request, program.device);
  const PlanReplica* replica = ReplicaOf(plan, program.device);
  if (profile == nullptr || replica == nullptr) return std::nullopt;
  DeviceNeeds needs(request, *profile, plan.tensor_parallel(),
                    ShareOf(plan, *replica, program.device), replica->micro_batch_sequences,
                    OwnershipOf(plan), static_cast<int>(replica - plan.replicas.data()));
  if (!needs.Read()) return std::nullopt;
  const DeviceInfo* info = InfoOf(request, program.device);
  const BesideMemory beside = BesideOf(request, plan, program.device);
  MemoryLack need{program.device, needs.Bytes(*replica, program), beside.device_bytes, INT64_MAX,
                  program.memory_peak_bytes};
  if (info == nullptr) return need;
  if (info->memory_bytes > 0) need.has_bytes = info->memory_bytes;
  if (IsHost(*info)) {
    const PlanMember& leader = request.members[0];
    need.beside_bytes = beside.host_bytes;
    if (leader.member.worker == WorkerOfDevice(program.device)) {
      need.beside_bytes += LeaderBytes(request) / static_cast<int64_t>(leader.devices.size());
    }
  }
  return need;
}

std::vector<MemoryLack> PredictMemory(const PlanRequest& request, IslandPlan* plan) {
  std::vector<MemoryLack> lacks;
  for (PlanProgram& program : plan->programs) {
    const std::optional<MemoryLack> need = NeedOf(request, *plan, program);
    if (!need) continue;
    program.memory_peak_bytes = need->takes_bytes;
    if (need->lacks_bytes() > 0) lacks.push_back(*need);
  }
  return lacks;
}

}  // namespace atl
