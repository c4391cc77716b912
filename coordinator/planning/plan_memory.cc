#include "coordinator/planning/plan_memory.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes_text.h"
#include "common/model/costs.h"
#include "common/model/layout.h"
#include "common/model/optimizer_state.h"
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
        replica_(replica) {
    const ModelSpec& model = request.facts.model;
    const auto config = ModelConfigFromSpec(model, request.spec.data.sequence_length);
    if (config.ok()) config_ = *config;
    if (config_) layouts_ = MakeLayouts(*config_);
  }

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
    int64_t bytes = 0, workspace = 0, step_scratch = 0;
    bool sends = false, sends_back = false;
    for (const StageSlots& slots : SlotsOf(program, own)) {
      const PlanStage& stage = replica.stages[static_cast<size_t>(slots.stage)];
      bytes += StageBytes(stage, slots);
      for (int l = stage.first_layer; l < stage.first_layer + stage.layers; ++l) {
        bytes += Owned(l);
        step_scratch = std::max(step_scratch, StepScratch(l));
        workspace = std::max(workspace, Layer(l).workspace);
      }
      const auto is_own = [&](int32_t s) {
        return std::find(own.begin(), own.end(), s) != own.end();
      };
      sends |=
          slots.stage + 1 < static_cast<int32_t>(replica.stages.size()) && !is_own(slots.stage + 1);
      sends_back |= slots.stage > 0 && !is_own(slots.stage - 1);
    }
    bytes += (sends ? Boundary() : 0) + (sends_back ? Boundary() : 0) + workspace + step_scratch;
    bytes += Tokens() + Constants();
    if (HasTableCopy(replica, program.device)) {
      // Its moments are the embeddings' where replicas share them.
      bytes += TableBytes();
      if (ownership_.sharded()) bytes -= MomentBytes(LayerKind::kEmbedding, TableBytes());
    }
    return bytes;
  }

 private:
  InnerOptimizer optimizer() const { return request_.spec.inner.optimizer; }
  // Of an element, where the optimizer keeps as much of each.
  int64_t SlotBytes() const { return SlotsOf(optimizer()).second.empty() ? 4 : 8; }
  // Of a layer's state what the optimizer keeps; parameters, gradient and copy in the compute type
  // take the rest.
  int64_t MomentBytes(LayerKind kind, int64_t state) const {
    const LayerCost* whole = Nearest(kind, 1);
    const auto least = static_cast<double>(SlotBytes());
    // At least these, whatever a worker says that it has measured.
    const double each =
        whole == nullptr ? 8.0 + least
                         : std::max(least, std::round(static_cast<double>(whole->parameter_bytes) /
                                                      static_cast<double>(ElementsOf(kind))));
    return std::llround(static_cast<double>(state * SlotBytes()) / each);
  }
  // A layer's state without the moments that other replicas own.
  int64_t Owned(int l) const {
    const int64_t state = Layer(l).state;
    if (!ownership_.sharded()) return state;
    const auto index = static_cast<size_t>(l);
    if (!AllowsTensorParallelism(optimizer()) && index < layouts_.size()) {
      const LayerLayout& layout = layouts_[index];
      const Range owned =
          ownership_.Owned(replica_, layout.size, UndividedRanges(optimizer(), layout));
      return state - 4 * (StateElements(optimizer(), layout, {0, layout.size}) -
                          StateElements(optimizer(), layout, owned));
    }
    const int64_t moments = MomentBytes(KindOf(l), state), elements = moments / SlotBytes();
    return state - moments + SlotBytes() * ownership_.Owned(replica_, elements).size();
  }
  int64_t StepScratch(int l) const {
    const auto index = static_cast<size_t>(l);
    if (index >= layouts_.size()) return 0;
    return 4 * StepScratchElements(optimizer(), layouts_[index]);
  }

  LayerKind KindOf(int l) const {
    return l == 0              ? LayerKind::kEmbedding
           : l + 1 == layers() ? LayerKind::kHead
                               : LayerKind::kBlock;
  }
  int64_t ElementsOf(LayerKind kind) const {
    const auto& all = request_.facts.layers;
    return kind == LayerKind::kEmbedding ? all.front().elements
           : kind == LayerKind::kHead    ? all.back().elements
                                         : all[1].elements;
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
    const LayerKind kind = KindOf(l);
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
  int64_t Constants() const {
    return config_ ? ConstantBytes(*config_, request_.spec.data.sequence_length, {}) : 0;
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
  std::optional<ModelConfig> config_;  // none: it is not what a worker would train
  std::vector<LayerLayout> layouts_;   // of whole layers
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
                    " of it for messages and copies of the model on the host,");
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
    const NodeId worker = WorkerOfDevice(program.device);
    const auto member =
        std::find_if(request.members.begin(), request.members.end(),
                     [&](const PlanMember& m) { return m.member.worker == worker; });
    int64_t bytes = OwnerBytes(request, plan, worker);
    if (member == request.members.begin()) bytes += LeaderBytes(request);
    need.beside_bytes = beside.host_bytes + bytes / static_cast<int64_t>(member->devices.size());
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
