#include "common/model/outer_cut.h"

#include <algorithm>
#include <map>

#include "common/model/ownership.h"

namespace atl {
namespace {

// Elements of a layer, up to `end` from where the one before ends.
struct LayerPart {
  int64_t end = 0;
  std::vector<NodeId> holders;
};

// The workers of the stage that holds the layer, by rank; empty: none holds it.
std::vector<NodeId> ListLayerWorkers(const PlanReplica& replica, int32_t layer) {
  std::vector<NodeId> ranks;
  for (const PlanStage& stage : replica.stages) {
    if (layer < stage.first_layer || layer >= stage.first_layer + stage.layers) continue;
    for (const std::string& device : stage.devices) ranks.push_back(WorkerFromDevice(device));
  }
  return ranks;
}

std::vector<LayerPart> CutLayer(const IslandPlan& plan, int32_t layer, int64_t elements) {
  const Ownership ownership = OwnershipFromPlan(plan);
  std::vector<std::vector<NodeId>> ranks;
  for (const PlanReplica& replica : plan.replicas)
    ranks.push_back(ListLayerWorkers(replica, layer));
  std::vector<LayerPart> parts;
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    const auto n = static_cast<int64_t>(ranks[r].size());
    if (n == 0) return {};
    const Range share = ownership.Summed(r, elements);
    for (int64_t rank = 0; rank < n; ++rank) {
      LayerPart part{
          share.begin + share.size() / n * (rank + 1) + share.size() % n * (rank + 1) / n,
          {ranks[r][rank]}};
      int first = r;
      while (!ownership.Leads(first)) --first;
      for (int other = first; other < static_cast<int>(ranks.size()); ++other) {
        if (ownership.GetShardIndex(other) != ownership.GetShardIndex(r)) break;
        if (ranks[other].empty()) continue;
        const auto there = static_cast<int64_t>(ranks[other].size());
        const NodeId& worker = ranks[other][rank * there / n];
        if (std::count(part.holders.begin(), part.holders.end(), worker) == 0) {
          part.holders.push_back(worker);
        }
      }
      if (!parts.empty() && parts.back().holders == part.holders) {
        parts.back().end = part.end;
      } else {
        parts.push_back(std::move(part));
      }
    }
  }
  return parts;
}

}  // namespace

std::vector<OuterPart> CutByOwners(const IslandPlan& plan,
                                   const std::vector<ShardPlacement>& shards, int64_t block) {
  std::map<int32_t, int64_t> elements;
  for (const ShardPlacement& shard : shards) {
    int64_t& size = elements[shard.layer];
    size = std::max(size, shard.begin + shard.elements);
  }
  std::map<int32_t, std::vector<LayerPart>> layers;
  for (const auto& [layer, size] : elements) layers[layer] = CutLayer(plan, layer, size);
  std::vector<OuterPart> all;
  for (const ShardPlacement& shard : shards) {
    int64_t begin = 0;
    for (const LayerPart& part : layers[shard.layer]) {
      int64_t end = std::clamp<int64_t>(part.end - shard.begin, 0, shard.elements);
      if (end < shard.elements) end -= end % block;
      if (end <= begin) continue;
      all.push_back({shard.shard, shard.layer, {begin, end}, part.holders});
      begin = end;
    }
  }
  return all;
}

}  // namespace atl
