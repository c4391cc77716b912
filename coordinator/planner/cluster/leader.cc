#include "coordinator/planner/cluster/leader.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace atl::plan {
namespace {

constexpr size_t kTriesMax = 8;  // replacements tried

const std::vector<int>* LeadersEntity(const Cluster& cluster,
                                      const std::vector<EntityPool>& pools) {
  const std::vector<int>* strongest = nullptr;
  double power = 0;
  for (const EntityPool& pool : pools) {
    if (pool.power <= power) continue;
    for (const std::vector<int>& entity : pool.entities) {
      if (cluster.devices[entity[0]].node != cluster.leader) continue;
      strongest = &entity;
      power = pool.power;
      break;
    }
  }
  return strongest;
}

}  // namespace

bool UsesLeader(const Cluster& cluster, const Layout& layout) {
  if (cluster.leader.empty()) return true;
  for (const Replica& replica : layout.replicas) {
    for (const Stage& stage : replica.stages) {
      if (cluster.devices[stage.devices[0]].node == cluster.leader) return true;
    }
  }
  return false;
}

std::string GetLeaderSite(const Cluster& cluster) {
  for (const Device& device : cluster.devices) {
    if (!cluster.leader.empty() && device.node == cluster.leader) return device.site;
  }
  return "";
}

absl::Status BringInLeader(const Cluster& cluster, const Costs& costs, const Job& job,
                           const std::vector<EntityPool>& pools, Candidate& candidate) {
  const Layout& layout = candidate.layout;
  absl::Status why_not = absl::ResourceExhaustedError(
      absl::StrCat("it has fewer than ", layout.tensor_parallel, " devices that are alike"));
  int total = 0;
  for (const Replica& replica : layout.replicas) total += replica.micro_batches;
  Candidate best;
  std::set<std::tuple<std::string, int, int, size_t>> tried;  // positions that are alike
  const std::vector<int>* const own = LeadersEntity(cluster, pools);
  for (size_t r = 0; own != nullptr && r < layout.replicas.size(); ++r) {
    const Replica& replica = layout.replicas[r];
    for (size_t s = 0; s < replica.stages.size() && tried.size() < kTriesMax; ++s) {
      const Device& device = cluster.devices[replica.stages[s].devices[0]];
      if (!tried.insert({device.site, device.type, replica.micro_batches, replica.stages.size()})
               .second) {
        continue;
      }
      Candidate changed = candidate;
      Replica& target = changed.layout.replicas[r];
      target.stages[s].devices = *own;
      const absl::Status cut = CutReplica(cluster, costs, layout.micro_batch, target,
                                          {.every_stage = candidate.stages > 0});
      if (!cut.ok() || !UsesLeader(cluster, changed.layout)) {
        why_not = cut.ok() ? absl::ResourceExhaustedError("it is too slow for a layer") : cut;
        continue;
      }
      ShareMicroBatches(cluster, costs, total, changed.layout);
      changed.estimate_s = EstimateSeconds(cluster, costs, job, changed.layout);
      if (best.layout.replicas.empty() || changed.estimate_s < best.estimate_s) {
        best = std::move(changed);
      }
    }
  }
  if (best.layout.replicas.empty()) {
    return Annotate(why_not, absl::StrCat("worker ", cluster.leader,
                                          " leads the island but fits nowhere in its layout"));
  }
  candidate = std::move(best);
  return absl::OkStatus();
}

}  // namespace atl::plan
