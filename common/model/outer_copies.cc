#include "common/model/outer_copies.h"

#include <algorithm>
#include <set>

#include "common/model/job_model.h"
#include "common/model/layout.h"
#include "common/model/outer_cut.h"
#include "common/protocol/host_copies.h"

namespace atl {

namespace {

// In the plan's order; not those that are only sources of their state, and then leave.
std::vector<NodeId> WorkersWithPart(const IslandPlan& plan) {
  std::set<NodeId> with_part;
  for (const PlanReplica& replica : plan.replicas) {
    for (const PlanStage& stage : replica.stages) {
      for (const std::string& device : stage.devices) with_part.insert(WorkerFromDevice(device));
    }
  }
  std::vector<NodeId> workers;
  for (const IslandMember& member : plan.members) {
    if (with_part.contains(member.worker)) workers.push_back(member.worker);
  }
  return workers;
}

}  // namespace

std::vector<NodeId> WithCopies(const IslandPlan& plan, std::vector<NodeId> holders,
                               int32_t copies) {
  if (std::ssize(holders) > copies) return holders;
  const std::vector<NodeId> workers = WorkersWithPart(plan);
  const auto first = std::find(workers.begin(), workers.end(), holders.front());
  for (size_t i = 1; i < workers.size() && std::ssize(holders) <= copies; ++i) {
    const auto at = static_cast<size_t>(first - workers.begin()) + i;
    const NodeId& worker = workers[at % workers.size()];
    if (std::count(holders.begin(), holders.end(), worker) == 0) holders.push_back(worker);
  }
  return holders;
}

std::map<NodeId, int64_t> KeptElements(const IslandPlan& plan, const std::vector<LayerSize>& layers,
                                       int32_t copies, int64_t block) {
  std::vector<ShardPlacement> shards;
  for (size_t l = 0; l < layers.size(); ++l) {
    const auto layer = static_cast<int32_t>(l);
    shards.push_back({layer, layer, 0, layers[l].elements});
  }
  std::map<NodeId, int64_t> kept;
  for (const OuterPart& part : CutByOwners(plan, shards, block)) {
    for (const NodeId& worker : WithCopies(plan, part.holders, copies)) {
      kept[worker] += part.range.size();
    }
  }
  return kept;
}

namespace {

constexpr int64_t kElementBytes = sizeof(float);
constexpr int64_t kSavesInMemory = 2;  // the older one is kept until the newer one is whole
// Layers that devices hold, and that take their place; or frozen ones, whole as they are read, and
// cut and rounded.
constexpr int64_t kStagedLayers = 2;

// Lists for each worker the layers of which its devices hold a part.
std::map<NodeId, std::set<int32_t>> LayersByWorker(const IslandPlan& plan) {
  std::map<NodeId, std::set<int32_t>> layers;
  for (const PlanReplica& replica : plan.replicas) {
    for (const PlanStage& stage : replica.stages) {
      for (const std::string& device : stage.devices) {
        std::set<int32_t>& own = layers[WorkerFromDevice(device)];
        for (int32_t l = 0; l < stage.layers; ++l) own.insert(stage.first_layer + l);
      }
    }
  }
  return layers;
}

// Counts the elements that an adapter leaves as they are, by layer.
std::vector<int64_t> CountFrozen(const JobSpec& spec, const JobFacts& facts) {
  std::vector<int64_t> frozen(facts.layers.size());
  if (spec.adapter.kind == AdapterKind::kNone) return frozen;
  const auto config = ModelConfigFromFacts(facts.model, spec);
  if (!config.ok()) return frozen;  // the model is not known yet
  const std::vector<LayerLayout> layouts = MakeLayouts(*config);
  for (size_t l = 0; l < std::min(frozen.size(), layouts.size()); ++l) {
    frozen[l] = layouts[l].frozen_size;
  }
  return frozen;
}

}  // namespace

std::map<NodeId, HostCopies> MakeAllHostCopies(const JobSpec& spec, const IslandPlan& plan,
                                               const JobFacts& facts) {
  const std::vector<LayerSize>& layers = facts.layers;
  const std::vector<int64_t> frozen = CountFrozen(spec, facts);
  const int64_t block = PartBlock(spec.outer.push_encoding);
  const auto copies = static_cast<int32_t>(spec.checkpoint.peer_copies);
  std::map<NodeId, HostCopies> all;
  for (const auto& [worker, elements] : KeptElements(plan, layers, copies, block)) {
    HostCopies& bytes = all[worker];
    bytes.exchange_bytes = kElementBytes * elements * OuterCopies(spec);
    if (copies > 0 && plan.members.size() > 1) {
      bytes.peer_bytes = kSavesInMemory * SavedParts(spec) * kElementBytes * elements;
    }
  }
  for (const auto& [worker, elements] : KeptElements(plan, layers, 0, block)) {
    all[worker].save_bytes = kElementBytes * elements * SaveCopies(spec);
  }
  const bool validates = spec.schedule.validation_sequences > 0;
  for (const auto& [worker, held] : LayersByWorker(plan)) {
    HostCopies& bytes = all[worker];
    int64_t largest = 0;
    for (const int32_t l : held) {
      const int64_t layer = kElementBytes * layers[static_cast<size_t>(l)].elements;
      largest = std::max({largest, layer, kElementBytes * frozen[static_cast<size_t>(l)]});
      // Without overlap the parameters are theta_base when that is validated.
      if (validates && spec.outer.overlap != Overlap::kNone) bytes.validation_bytes += layer;
    }
    bytes.staging_bytes = kStagedLayers * largest;
  }
  return all;
}

HostCopies MakeHostCopies(const JobSpec& spec, const IslandPlan& plan, const JobFacts& facts,
                          const NodeId& worker) {
  const auto all = MakeAllHostCopies(spec, plan, facts);
  const auto found = all.find(worker);
  return found == all.end() ? HostCopies() : found->second;
}

}  // namespace atl
