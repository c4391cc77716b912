#include "coordinator/planner/groups/refine.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "common/status.h"
#include "coordinator/planner/cluster/objective.h"
#include "coordinator/planner/groups/estimate.h"

namespace atl::plan {
namespace {

constexpr int kWork = 30'000;           // tries times entities
constexpr int kPatience = 2;            // this part of them without a gain ends the climb
constexpr size_t kReplacementsMax = 8;  // tried for the leader

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

class Climber {
 public:
  Climber(const Cluster& cluster, const Costs& costs, const Job& job, Candidate& candidate)
      : cluster_(cluster),
        costs_(costs),
        ranking_(cluster, costs, job),
        estimator_(cluster, costs),
        rng_(1),
        best_(candidate) {
    const Layout& layout = candidate.layout;
    total_ = 0;
    for (const Replica& replica : layout.replicas) total_ += replica.micro_batches;
    for (EntityPool& pool : BuildEntityPools(cluster, costs, candidate.sizes, layout.micro_batch)) {
      for (std::vector<int>& entity : pool.entities) entities_.push_back(std::move(entity));
    }
    FindIdle();
  }

  int tries() const { return std::clamp(kWork / static_cast<int>(entities_.size()), 200, 1500); }

  // A change, kept where the rank falls: whether it does.
  bool Try() {
    Layout layout = best_.layout;
    std::set<size_t> changed;
    if (!Change(layout, changed)) return false;
    const Costs& costs = costs_.ForReplicas(layout.replicas.size());
    for (const size_t r : changed) {
      if (!CutReplica(cluster_, costs, layout.micro_batch, layout.replicas[r]).ok()) return false;
    }
    if (!KeepsStages(best_, layout)) return false;
    if (!UsesLeader(cluster_, layout) || !DegreesAgree(costs_.model(), layout)) return false;
    ShareMicroBatches(cluster_, costs_, total_, layout);
    const double estimate_s = estimator_.Seconds(layout);
    const double rank = ranking_.Rank(layout, estimate_s);
    if (rank >= best_.rank) return false;
    best_.layout = std::move(layout);
    best_.estimate_s = estimate_s;
    best_.rank = rank;
    FindIdle();
    return true;
  }

 private:
  void FindIdle() {
    std::set<int> used;
    for (const Replica& replica : best_.layout.replicas) {
      for (const Stage& stage : replica.stages) used.insert(stage.devices[0]);
    }
    idle_.clear();
    for (const std::vector<int>& entity : entities_) {
      if (used.count(entity[0]) == 0) idle_.push_back(entity);
    }
  }

  const std::string& GetSite(const std::vector<int>& devices) const {
    return cluster_.devices[devices[0]].site;
  }

  // Next to a stage of its own site, if there is one.
  void Insert(const std::vector<int>& devices, Replica& replica) {
    std::vector<size_t> near;
    for (size_t s = 0; s < replica.stages.size(); ++s) {
      if (GetSite(replica.stages[s].devices) == GetSite(devices)) near.push_back(s);
    }
    const size_t at = near.empty() ? rng_.Below(replica.stages.size() + 1)
                                   : near[rng_.Below(near.size())] + rng_.Below(2);
    replica.stages.insert(replica.stages.begin() + static_cast<std::ptrdiff_t>(at),
                          {devices, 0, 0});
  }

  std::vector<int> TakeOut(Replica& replica) {
    const size_t s = rng_.Below(replica.stages.size());
    std::vector<int> devices = replica.stages[s].devices;
    replica.stages.erase(replica.stages.begin() + static_cast<std::ptrdiff_t>(s));
    return devices;
  }

  bool Change(Layout& layout, std::set<size_t>& changed) {
    const size_t r = rng_.Below(layout.replicas.size());
    const size_t q = rng_.Below(layout.replicas.size());
    std::vector<Stage>& own = layout.replicas[r].stages;
    std::vector<Stage>& others = layout.replicas[q].stages;
    changed = {r};
    switch (rng_.Below(6)) {
      case 0:  // idle
        if (own.size() < 2) return false;
        TakeOut(layout.replicas[r]);
        return true;
      case 1:  // at work
        if (idle_.empty()) return false;
        Insert(idle_[rng_.Below(idle_.size())], layout.replicas[r]);
        return true;
      case 2:  // an idle one replaces another
        if (idle_.empty()) return false;
        own[rng_.Below(own.size())].devices = idle_[rng_.Below(idle_.size())];
        return true;
      case 3:  // from replica to replica, or elsewhere in its own
        if (own.size() < 2) return false;
        Insert(TakeOut(layout.replicas[r]), layout.replicas[q]);
        changed.insert(q);
        return true;
      case 4:  // in both directions
        std::swap(own[rng_.Below(own.size())].devices, others[rng_.Below(others.size())].devices);
        changed.insert(q);
        return true;
      default:  // a site's stages elsewhere in the pipeline
        return MoveSite(own);
    }
  }

  bool MoveSite(std::vector<Stage>& stages) {
    const std::string site = GetSite(stages[rng_.Below(stages.size())].devices);
    std::vector<Stage> own, others;
    for (Stage& stage : stages) {
      (GetSite(stage.devices) == site ? own : others).push_back(std::move(stage));
    }
    const auto at = static_cast<std::ptrdiff_t>(rng_.Below(others.size() + 1));
    others.insert(others.begin() + at, own.begin(), own.end());
    stages = std::move(others);
    return true;
  }

  const Cluster& cluster_;
  const Costs& costs_;
  const Ranking ranking_;
  Estimator estimator_;
  Rng rng_;
  Candidate& best_;
  int total_ = 1;
  std::vector<std::vector<int>> entities_;
  std::vector<std::vector<int>> idle_;
};

}  // namespace

void Refine(const Cluster& cluster, const Costs& costs, const Job& job,
            const std::function<bool()>& stop, Candidate& candidate) {
  if (candidate.layout.shape != Shape::kPlain) return;
  Climber climber(cluster, costs, job, candidate);
  int failures = 0;
  const int max_failures = climber.tries() / kPatience;
  for (int i = climber.tries(); i > 0 && failures < max_failures && !(stop && stop()); --i) {
    failures = climber.Try() ? 0 : failures + 1;
  }
}

absl::Status BringInLeader(const Cluster& cluster, const Costs& costs,
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
    for (size_t s = 0; s < replica.stages.size() && tried.size() < kReplacementsMax; ++s) {
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
      changed.estimate_s = EstimateSeconds(cluster, costs, changed.layout);
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
