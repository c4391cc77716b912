#include "common/model/outer_copies.h"

#include <algorithm>
#include <set>

#include "common/model/outer_cut.h"

namespace atl {

namespace {

// In the plan's order; not those that are only sources of their state, and then leave.
std::vector<NodeId> WorkersWithPart(const IslandPlan& plan) {
  std::set<NodeId> with_part;
  for (const PlanReplica& replica : plan.replicas) {
    for (const PlanStage& stage : replica.stages) {
      for (const std::string& device : stage.devices) with_part.insert(WorkerOfDevice(device));
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

}  // namespace atl
