#include "coordinator/planning/plan_memory.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bytes_text.h"
#include "common/model/costs.h"
#include "common/model/job_model.h"
#include "common/model/layout.h"
#include "common/model/optimizer_state.h"
#include "common/model/outer_copies.h"
#include "common/model/ownership.h"
#include "common/model/stage_memory.h"
#include "common/protocol/program_slots.h"
#include "coordinator/planning/auxiliary_memory.h"

namespace atl {
namespace {

// Program, libraries, stacks and buffers of connections: measured on workers on the CPU.
constexpr int64_t kProcessBytes = int64_t{64} << 20;

// A device's assignment in a plan.
struct Assignment {
  const PlanReplica* replica = nullptr;
  int replica_index = 0;
  int rank = 0;  // in its tensor-parallel groups
  int ranks = 1;
};

std::optional<Assignment> FindDeviceAssignment(const IslandPlan& plan, const std::string& device) {
  for (size_t r = 0; r < plan.replicas.size(); ++r) {
    for (const PlanStage& stage : plan.replicas[r].stages) {
      const auto found = std::ranges::find(stage.devices, device);
      if (found == stage.devices.end()) continue;
      return Assignment{&plan.replicas[r], static_cast<int>(r),
                        static_cast<int>(found - stage.devices.begin()),
                        static_cast<int>(stage.devices.size())};
    }
  }
  return std::nullopt;
}

// A plan's memory on one device.
class DeviceNeeds {
 public:
  DeviceNeeds(const PlanRequest& request, const ModelConfig& config, const TensorPart& part,
              const Ownership& ownership, const Assignment& assignment, const ElementBytes& element)
      : optimizer_(request.spec.inner.optimizer),
        shape_{assignment.replica->micro_batch_sequences, request.spec.data.sequence_length},
        packed_(IsPacked(request.spec.data)),
        config_(config),
        part_(part),
        ownership_(ownership),
        assignment_(assignment),
        element_(element),
        layouts_(MakeLayouts(config, part)),
        footprints_(ComputeLayerFootprints(config, part, shape_, element)) {}

  // But for the workspace of operations.
  int64_t Bytes(const PlanProgram& program) const {
    const std::vector<PlanStage>& stages = assignment_.replica->stages;
    std::vector<int32_t> own;
    for (size_t s = 0; s < stages.size(); ++s) {
      if (Holds(stages[s], program.device)) own.push_back(static_cast<int32_t>(s));
    }
    int64_t bytes = 0, step_scratch = 0, sends = 0, sends_back = 0;
    for (const StageSlots& slots : ComputeStageSlots(program, own)) {
      const auto index = static_cast<size_t>(slots.stage);
      const PlanStage& stage = stages[index];
      bytes += ActivationBytes(footprints_, MakeStageSpan(stage), slots);
      for (int l = stage.first_layer; l < stage.first_layer + stage.layers; ++l) {
        bytes += footprints_[l].parameter_bytes + MomentBytes(l);
        step_scratch =
            std::max(step_scratch, element_.state * StepScratchElements(optimizer_, layouts_[l]));
      }
      if (index + 1 < stages.size() && !Holds(stages[index + 1], program.device)) {
        sends = std::max(sends, footprints_[stage.first_layer + stage.layers - 1].output_bytes);
      }
      if (index > 0 && !Holds(stages[index - 1], program.device)) {
        sends_back = std::max(sends_back, footprints_[stage.first_layer].input_bytes);
      }
    }
    return bytes + step_scratch + sends + sends_back + TargetBytes() + BorderBytes() +
           ConstantBytes(config_, shape_.seq_len, element_) + TableCopyBytes(program.device);
  }

 private:
  static bool Holds(const PlanStage& stage, const std::string& device) {
    return std::ranges::find(stage.devices, device) != stage.devices.end();
  }
  static StageSpan MakeStageSpan(const PlanStage& stage) {
    return {stage.first_layer,
            stage.layers,
            {stage.recomputed_layers.begin(), stage.recomputed_layers.end()}};
  }

  int64_t MomentBytes(int layer) const {
    const LayerLayout& layout = layouts_[layer];
    const Range owned = ownership_.Owned(assignment_.replica_index, layout.size,
                                         UndividedRanges(optimizer_, layout));
    return element_.state * StateElements(optimizer_, layout, owned);
  }
  int64_t TargetBytes() const { return shape_.tokens() * 4; }
  // Where documents begin, by token of a whole step.
  int64_t BorderBytes() const {
    return packed_ ? assignment_.replica->micro_batches * TargetBytes() : 0;
  }

  // A tied head that is not in the embedding's stage has a table of its own, whose moments are the
  // embedding's where replicas share them.
  int64_t TableCopyBytes(const std::string& device) const {
    const std::vector<PlanStage>& stages = assignment_.replica->stages;
    if (stages.size() < 2 || !Holds(stages.back(), device)) return 0;
    const int64_t table = TiedTableElements(config_, part_);
    if (config_.adapter.present()) return element_.compute * table;  // frozen
    const int64_t each = footprints_[0].parameter_bytes / footprints_[0].elements;
    const int64_t moments =
        ownership_.sharded() ? 0 : StateElements(optimizer_, layouts_[0], {0, table});
    return each * table + element_.state * moments;
  }

  const InnerOptimizer optimizer_;
  const BatchShape shape_;
  const bool packed_;
  const ModelConfig& config_;
  const TensorPart& part_;
  const Ownership ownership_;
  const Assignment assignment_;
  const ElementBytes element_;
  const std::vector<LayerLayout> layouts_;  // of the device's part
  const std::vector<LayerFootprint> footprints_;
};

// The most that an operation takes, where it was measured.
int64_t WorkspaceBytes(const DeviceProfile* profile, int tensor_parallel, int64_t rows) {
  if (profile == nullptr) return 0;
  int64_t most = 0;
  for (const LayerKind kind : {LayerKind::kEmbedding, LayerKind::kBlock, LayerKind::kHead}) {
    const LayerCost* nearest = nullptr;
    const auto distance = [rows](const LayerCost& cost) {
      return std::abs(std::log(static_cast<double>(std::max(1, cost.micro_batch_sequences)) /
                               static_cast<double>(rows)));
    };
    for (const LayerCost& cost : profile->layers) {
      if (cost.kind != kind || cost.tensor_parallel != tensor_parallel) continue;
      if (nearest == nullptr || distance(cost) <= distance(*nearest)) nearest = &cost;
    }
    if (nearest == nullptr) continue;
    most = std::max(most,
                    nearest->workspace_bytes * rows / std::max(1, nearest->micro_batch_sequences));
  }
  return most;
}

const DeviceProfile* FindProfile(const PlanRequest& request, const std::string& device) {
  for (const PlanMember& member : request.members) {
    for (const DeviceProfile& profile : member.profiles) {
      if (profile.device == device) return &profile;
    }
  }
  return nullptr;
}

absl::StatusOr<std::vector<TensorPart>> CutTensorParts(const ModelConfig& config,
                                                       const IslandPlan& plan, int ranks) {
  if (ranks == 1) return std::vector<TensorPart>{WholePart(config)};
  return CutModel(config, ranks, plan.tensor_split_ratios);
}

}  // namespace

std::string Text(const MemoryLack& lack) {
  std::string text =
      absl::StrCat(lack.device, " lacks ", BytesText(lack.lacks_bytes()), ": it would take ",
                   BytesText(lack.takes_bytes + lack.auxiliary_bytes));
  if (lack.auxiliary_bytes > 0) {
    absl::StrAppend(&text, ", ", BytesText(lack.auxiliary_bytes),
                    " of it for messages and copies of the model on the host,");
  }
  absl::StrAppend(&text, " and has ", BytesText(lack.has_bytes));
  return text;
}

namespace {

using AllCopies = std::map<NodeId, HostCopies>;

// Nothing of a described cluster, whose hosts are not planned.
AllCopies MakePlannedHostCopies(const PlanRequest& request, const IslandPlan& plan) {
  if (request.facts.layers.empty()) return {};
  return MakeAllHostCopies(request.spec, plan, request.facts);
}

HostCopies CopiesOn(const AllCopies& all, const NodeId& worker) {
  const auto found = all.find(worker);
  return found == all.end() ? HostCopies() : found->second;
}

std::optional<MemoryLack> NeedWith(const PlanRequest& request, const IslandPlan& plan,
                                   const PlanProgram& program, const AllCopies& copies) {
  const std::optional<Assignment> assignment = FindDeviceAssignment(plan, program.device);
  const DeviceInfo* info = FindDeviceInfo(request, program.device);
  const auto config = ModelConfigFromFacts(request.facts.model, request.spec);
  if (!assignment || info == nullptr || !config.ok()) return std::nullopt;
  const auto parts = CutTensorParts(*config, plan, assignment->ranks);
  const auto rank = static_cast<size_t>(assignment->rank);
  if (!parts.ok() || rank >= parts->size()) return std::nullopt;
  const DeviceNeeds needs(request, *config, (*parts)[rank], OwnershipFromPlan(plan), *assignment,
                          GetElementBytes(request));
  const int64_t workspace = WorkspaceBytes(FindProfile(request, program.device), assignment->ranks,
                                           assignment->replica->micro_batch_sequences);
  const AuxiliaryMemory auxiliary = EstimateAuxiliaryMemory(request, plan, program.device);
  MemoryLack need{program.device, needs.Bytes(program) + workspace, auxiliary.device_bytes,
                  INT64_MAX, program.memory_peak_bytes};
  if (info->memory_bytes > 0) {
    need.has_bytes = BytesForJob(request.spec.layout, info->memory_bytes);
  }
  if (IsHost(*info)) {
    const NodeId worker = WorkerFromDevice(program.device);
    const auto member = std::ranges::find_if(
        request.members, [&](const PlanMember& m) { return m.member.worker == worker; });
    const int64_t bytes = CopiesOn(copies, worker).needed_bytes();
    need.auxiliary_bytes =
        auxiliary.host_bytes + bytes / static_cast<int64_t>(member->devices.size());
  }
  return need;
}

// `needs`: of the plan's programs, in their order.
std::optional<int64_t> ResidentBytes(const PlanRequest& request, const IslandPlan& plan,
                                     const NodeId& worker, const AllCopies& copies,
                                     const std::vector<std::optional<MemoryLack>>& needs) {
  const HostCopies kept = CopiesOn(copies, worker);
  int64_t bytes = kProcessBytes + kept.needed_bytes() + kept.peer_bytes;
  for (size_t p = 0; p < plan.programs.size(); ++p) {
    const std::string& device = plan.programs[p].device;
    if (WorkerFromDevice(device) != worker) continue;
    const DeviceInfo* info = FindDeviceInfo(request, device);
    if (!needs[p] || info == nullptr) return std::nullopt;
    bytes += EstimateAuxiliaryMemory(request, plan, device).host_bytes;
    if (IsHost(*info)) bytes += needs[p]->takes_bytes;
  }
  return bytes;
}

std::vector<std::optional<MemoryLack>> AllNeeds(const PlanRequest& request, const IslandPlan& plan,
                                                const AllCopies& copies) {
  std::vector<std::optional<MemoryLack>> needs;
  for (const PlanProgram& program : plan.programs) {
    needs.push_back(NeedWith(request, plan, program, copies));
  }
  return needs;
}

}  // namespace

std::optional<MemoryLack> PredictProgramMemory(const PlanRequest& request, const IslandPlan& plan,
                                               const PlanProgram& program) {
  return NeedWith(request, plan, program, MakePlannedHostCopies(request, plan));
}

std::vector<MemoryLack> PredictMemory(const PlanRequest& request, IslandPlan* plan) {
  const AllCopies copies = MakePlannedHostCopies(request, *plan);
  const std::vector<std::optional<MemoryLack>> needs = AllNeeds(request, *plan, copies);
  std::vector<MemoryLack> lacks;
  std::set<NodeId> with_part;
  for (size_t p = 0; p < needs.size(); ++p) {
    with_part.insert(WorkerFromDevice(plan->programs[p].device));
    if (!needs[p]) continue;
    plan->programs[p].memory_peak_bytes = needs[p]->takes_bytes;
    if (needs[p]->lacks_bytes() > 0) lacks.push_back(*needs[p]);
  }
  plan->hosts.clear();
  for (const IslandMember& member : plan->members) {
    if (!with_part.contains(member.worker)) continue;
    const auto bytes = ResidentBytes(request, *plan, member.worker, copies, needs);
    if (bytes) plan->hosts.push_back({member.worker, *bytes});
  }
  return lacks;
}

}  // namespace atl
