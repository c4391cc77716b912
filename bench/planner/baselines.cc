#include "bench/planner/baselines.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "common/status.h"
#include "coordinator/planner/candidates.h"

namespace atl::plan {
namespace {

using Entities = std::vector<std::vector<int>>;

// One tensor-parallel size and micro-batch to build layouts for.
struct Sizes {
  int tensor_parallel = 1;
  int micro_batch = 1;
  int total = 0;  // micro-batches of a step
};

Layout Empty(const Sizes& sizes, int replicas) {
  Layout layout{sizes.tensor_parallel, sizes.micro_batch, "1f1b", {}};
  layout.split_backward = false;
  layout.replicas.resize(replicas);
  for (Replica& replica : layout.replicas) {
    replica.micro_batches = (sizes.total + replicas - 1) / replicas;
  }
  return layout;
}

int CountLayers(const Costs& costs) { return static_cast<int>(costs.model().layers.size()); }

void CutEvenly(int layers, Layout& layout) {
  for (Replica& replica : layout.replicas) {
    const int stages = static_cast<int>(replica.stages.size());
    for (int s = 0; s < stages; ++s) {
      replica.stages[s].first_layer = s * layers / stages;
      replica.stages[s].last_layer = (s + 1) * layers / stages;
    }
  }
}

bool CutBySpeed(const Cluster& cluster, const Costs& costs, Layout& layout) {
  for (Replica& replica : layout.replicas) {
    if (!CutReplica(cluster, costs, layout.micro_batch, replica).ok()) {
      return false;
    }
  }
  return true;
}

// The same cuts in all replicas, each stage as fast as its slowest member.
bool CutBySlowest(const Cluster& cluster, const Costs& costs, Layout& layout) {
  Replica slowest = layout.replicas[0];
  const auto flops = [&](const Stage& stage) {
    return cluster.types[cluster.devices[stage.devices[0]].type].flops_per_s;
  };
  for (const Replica& replica : layout.replicas) {
    for (size_t s = 0; s < slowest.stages.size(); ++s) {
      if (flops(replica.stages[s]) < flops(slowest.stages[s])) {
        slowest.stages[s] = replica.stages[s];
      }
    }
  }
  const size_t stages = slowest.stages.size();
  if (!CutReplica(cluster, costs, layout.micro_batch, slowest).ok() ||
      slowest.stages.size() != stages) {
    return false;
  }
  for (Replica& replica : layout.replicas) {
    for (size_t s = 0; s < stages; ++s) {
      replica.stages[s].first_layer = slowest.stages[s].first_layer;
      replica.stages[s].last_layer = slowest.stages[s].last_layer;
    }
  }
  return true;
}

// Cuts the layers as if all devices were of this type.
bool CutAsIf(const Cluster& cluster, const Costs& costs, int type, Layout& layout) {
  Cluster same = cluster;
  for (Device& device : same.devices) device.type = type;
  return CutBySpeed(same, costs, layout);
}

// Stage by stage: neighbours in `entities` are replicas of one stage.
Layout StageMajor(const Entities& entities, const Sizes& sizes, int stages, int replicas) {
  Layout layout = Empty(sizes, replicas);
  for (int r = 0; r < replicas; ++r) {
    for (int s = 0; s < stages; ++s) {
      layout.replicas[r].stages.push_back({entities[s * replicas + r], 0, 0});
    }
  }
  return layout;
}

// Megatron and Whale: all entities in use.
void AddUniform(const Cluster& cluster, const Costs& costs, const Entities& entities,
                const Sizes& sizes, bool by_speed, std::vector<Layout>& layouts) {
  const int count = static_cast<int>(entities.size());
  const int layers = CountLayers(costs);
  for (int stages = 1; stages <= std::min(count, layers); ++stages) {
    if (count % stages != 0 || sizes.total < count / stages) continue;
    Layout layout = StageMajor(entities, sizes, stages, count / stages);
    CutEvenly(layers, layout);
    if (!by_speed || CutBySlowest(cluster, costs, layout)) layouts.push_back(std::move(layout));
  }
}

void AddDataParallel(const Costs& costs, const Entities& entities, const Sizes& sizes,
                     bool one_ring, std::vector<Layout>& layouts) {
  const int count = static_cast<int>(entities.size());
  if (sizes.total < count) return;
  Layout layout = StageMajor(entities, sizes, 1, count);
  CutEvenly(CountLayers(costs), layout);
  layout.one_ring = one_ring;
  layouts.push_back(std::move(layout));
}

void AddVaruna(const Costs& costs, const Entities& entities, const Sizes& sizes,
               std::vector<Layout>& layouts) {
  const int count = static_cast<int>(entities.size());
  const int layers = CountLayers(costs);
  for (int stages = 1; stages <= std::min(count, layers); ++stages) {
    const int replicas = std::min(count / stages, sizes.total);
    Layout layout = Empty(sizes, replicas);
    layout.schedule = "jeeves";  // a ready backward goes before a ready forward
    for (int r = 0; r < replicas; ++r) {
      for (int s = 0; s < stages; ++s) {
        layout.replicas[r].stages.push_back({entities[r * stages + s], 0, 0});
      }
    }
    CutEvenly(layers, layout);
    layouts.push_back(std::move(layout));
  }
}

// Pools of entities in order of their first device.
std::vector<EntityPool> InOrder(std::vector<EntityPool> pools) {
  std::sort(pools.begin(), pools.end(), [](const EntityPool& a, const EntityPool& b) {
    return a.entities[0][0] < b.entities[0][0];
  });
  return pools;
}

void AddDapple(const Cluster& cluster, const Costs& costs, const std::vector<EntityPool>& pools,
               const Sizes& sizes, std::vector<Layout>& layouts) {
  std::vector<std::string> order;
  std::map<std::string, Entities> sites;
  size_t largest = 0;
  for (const EntityPool& pool : InOrder(pools)) {
    if (sites.count(pool.site) == 0) order.push_back(pool.site);
    Entities& site = sites[pool.site];
    site.insert(site.end(), pool.entities.begin(), pool.entities.end());
    largest = std::max(largest, site.size());
  }
  const int first_type = cluster.devices[sites[order[0]][0][0]].type;
  for (int replicas = 1; replicas <= std::min<int>(static_cast<int>(largest), sizes.total);
       ++replicas) {
    Entities chosen;
    for (const std::string& name : order) {
      const Entities& site = sites[name];
      const size_t used = site.size() / replicas * replicas;
      chosen.insert(chosen.end(), site.begin(), site.begin() + static_cast<std::ptrdiff_t>(used));
    }
    const int stages = static_cast<int>(chosen.size()) / replicas;
    if (stages < 1 || stages > CountLayers(costs)) continue;
    Layout layout = StageMajor(chosen, sizes, stages, replicas);
    if (CutAsIf(cluster, costs, first_type, layout)) layouts.push_back(std::move(layout));
  }
}

// Depth-first over sequences of pools and stages from each, for one number of replicas.
class MetisSearch {
 public:
  MetisSearch(const Cluster& cluster, const Costs& costs, const Job& job,
              const std::vector<EntityPool>& pools, const Sizes& sizes, int replicas)
      : cluster_(cluster), costs_(costs), job_(job), sizes_(sizes), replicas_(replicas) {
    for (const EntityPool& pool : pools) pools_.push_back(&pool);
    used_.assign(pools_.size(), false);
  }

  void Run(std::vector<Layout>& layouts) {
    Extend();
    if (best_s_ < INFINITY) layouts.push_back(std::move(best_));
  }

 private:
  // Few layouts are looked at: all stages that a type has to give, half of them, or none.
  void Extend() {
    if (++nodes_ > kMostNodes) return;
    if (!chosen_.empty()) Consider();
    for (size_t p = 0; p < pools_.size(); ++p) {
      if (used_[p]) continue;
      const int most = static_cast<int>(pools_[p]->entities.size()) / replicas_;
      std::set<int> counts = {most, (most + 1) / 2};
      used_[p] = true;
      for (auto count = counts.rbegin(); count != counts.rend(); ++count) {
        if (*count == 0) continue;
        const size_t before = chosen_.size();
        for (int i = 0; i < *count * replicas_; ++i) chosen_.push_back(pools_[p]->entities[i]);
        Extend();
        chosen_.resize(before);
      }
      used_[p] = false;
    }
  }

  void Consider() {
    const int stages = static_cast<int>(chosen_.size()) / replicas_;
    if (stages > CountLayers(costs_)) return;
    Layout layout = StageMajor(chosen_, sizes_, stages, replicas_);
    if (!CutBySpeed(cluster_, costs_, layout)) return;
    const double estimate_s = EstimateSeconds(cluster_, costs_, layout);
    if (estimate_s >= best_s_) return;
    best_s_ = estimate_s;
    best_ = std::move(layout);
  }

  static constexpr int kMostNodes = 300;
  const Cluster& cluster_;
  const Costs& costs_;
  const Job& job_;
  const Sizes sizes_;
  const int replicas_;
  std::vector<const EntityPool*> pools_;
  std::vector<bool> used_;
  Entities chosen_;
  Layout best_;
  double best_s_ = INFINITY;
  int nodes_ = 0;
};

void AddMetis(const Cluster& cluster, const Costs& costs, const Job& job,
              const std::vector<EntityPool>& pools, const Sizes& sizes,
              std::vector<Layout>& layouts) {
  size_t count = 0;
  for (const EntityPool& pool : pools) count += pool.entities.size();
  for (int replicas = 1; replicas <= static_cast<int>(count) && replicas <= sizes.total;
       replicas *= 2) {
    MetisSearch(cluster, costs, job, pools, sizes, replicas).Run(layouts);
  }
}

std::vector<Layout> BuildBaselineLayouts(const Cluster& cluster, const Costs& costs, const Job& job,
                                         absl::string_view name) {
  std::vector<Layout> layouts;
  for (const int tp : TensorParallelSizes(job)) {
    if (name == "varuna" && tp > 1) continue;
    for (const int micro_batch : MicroBatchSizes(job)) {
      if (micro_batch > job.global_batch) continue;
      const std::vector<EntityPool> pools = BuildEntityPools(cluster, costs, tp, micro_batch);
      if (pools.empty()) continue;
      const Sizes sizes{tp, micro_batch, (job.global_batch + micro_batch - 1) / micro_batch};
      Entities entities;
      for (const EntityPool& pool : pools) {
        entities.insert(entities.end(), pool.entities.begin(), pool.entities.end());
      }
      if (name == "megatron" || name == "whale") {
        AddUniform(cluster, costs, entities, sizes, name == "whale", layouts);
      } else if (name == "data-parallel") {
        AddDataParallel(costs, entities, sizes, true, layouts);
      } else if (name == "hierarchical") {
        AddDataParallel(costs, entities, sizes, false, layouts);
      } else if (name == "varuna") {
        AddVaruna(costs, entities, sizes, layouts);
      } else if (name == "dapple") {
        AddDapple(cluster, costs, pools, sizes, layouts);
      } else {
        AddMetis(cluster, costs, job, pools, sizes, layouts);
      }
    }
  }
  return layouts;
}

}  // namespace

std::vector<std::string> BaselineNames() {
  return {"megatron", "whale", "data-parallel", "hierarchical", "varuna", "dapple", "metis"};
}

absl::StatusOr<Layout> Baseline(const Cluster& cluster, const Costs& costs, const Job& job,
                                absl::string_view name) {
  ATOLL_RETURN_IF_ERROR(Validate(cluster));
  ATOLL_RETURN_IF_ERROR(Validate(job));
  const std::vector<std::string> names = BaselineNames();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    std::string known;
    for (const std::string& n : names) absl::StrAppend(&known, known.empty() ? "" : ", ", n);
    return absl::InvalidArgumentError(
        absl::StrCat("there is no baseline \"", name, "\"; there are: ", known));
  }
  const std::vector<Layout> layouts = BuildBaselineLayouts(cluster, costs, job, name);
  const Layout* best = nullptr;
  double best_s = INFINITY;
  absl::Status why_not = absl::ResourceExhaustedError("no such layout exists");
  for (const Layout& layout : layouts) {
    if (best != nullptr && EstimateSeconds(cluster, costs, layout) > 2 * best_s) continue;
    const auto outcome = EvaluateLayout(cluster, costs, layout, {1, 1});
    if (!outcome.ok()) {
      why_not = outcome.status();
    } else if (outcome->step_s < best_s) {
      best = &layout;
      best_s = outcome->step_s;
    }
  }
  if (best == nullptr) return Annotate(why_not, absl::StrCat("baseline ", name));
  return *best;
}

}  // namespace atl::plan
