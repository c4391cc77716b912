// Where a layout's stages are cut, and how two of them share a device.

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "common/check.h"
#include "coordinator/planner/balance.h"
#include "coordinator/planner/layout.h"

namespace atl::plan {
namespace {

using CostsByType = std::map<int, StageCosts>;

CostsByType CostsOfTypes(const Cluster& cluster, const Costs& costs, int tensor_parallel,
                         int micro_batch, const Replica& replica) {
  CostsByType by_type;
  for (const Stage& stage : replica.stages) {
    const int type = cluster.devices[stage.devices[0]].type;
    if (by_type.count(type) > 0) continue;
    by_type.emplace(type, costs.For(cluster.types[type], tensor_parallel, micro_batch));
  }
  return by_type;
}

// Moves single layers across boundaries while that makes the entities' load more even: first that
// all hold their state and `in_flight` micro-batches, then the slowest one's time, then the spread.
class Evener {
 public:
  Evener(const Cluster& cluster, const Costs& costs, const CostsByType& by_type, int in_flight,
         Replica& replica)
      : in_flight_(in_flight), replica_(replica), places_(PlacesOf(replica)) {
    for (const Stage& stage : replica.stages) {
      const int type = cluster.devices[stage.devices[0]].type;
      costs_.push_back(&by_type.at(type));
      usable_.push_back(static_cast<double>(costs.UsableBytes(cluster.types[type])));
    }
  }

  // False if some entity still cannot hold its part.
  bool Run() {
    Load best = LoadOf();
    // Every move improves; the bound only guards against cycles of rounding.
    for (int moves = 0; moves < 1000; ++moves) {
      size_t boundary = 0;
      int direction = 0;
      for (size_t s = 0; s + 1 < replica_.stages.size(); ++s) {
        for (const int by : {-1, 1}) {
          if (!Move(s, by)) continue;
          const Load load = LoadOf();
          if (load < best) {
            best = load;
            boundary = s;
            direction = by;
          }
          Move(s, -by);
        }
      }
      if (direction == 0) break;
      Move(boundary, direction);
    }
    return std::get<0>(best) <= 0;
  }

 private:
  using Load = std::tuple<double, double, double>;  // lack of memory, slowest, sum of squares

  bool Move(size_t s, int by) {
    Stage& before = replica_.stages[s];
    Stage& after = replica_.stages[s + 1];
    if (before.last_layer + by <= before.first_layer ||
        after.first_layer + by >= after.last_layer) {
      return false;
    }
    before.last_layer += by;
    after.first_layer += by;
    return true;
  }

  Load LoadOf() const {
    std::vector<double> seconds(replica_.stages.size(), 0);
    std::vector<double> bytes(replica_.stages.size(), 0);
    double lacks = 0;
    double slowest = 0;
    for (size_t s = 0; s < replica_.stages.size(); ++s) {
      const Stage& stage = replica_.stages[s];
      const int place = places_[s];
      seconds[place] += costs_[s]->TotalSeconds(stage.first_layer, stage.last_layer);
      bytes[place] += static_cast<double>(
          costs_[s]->StateBytes(stage.first_layer, stage.last_layer) +
          in_flight_ * costs_[s]->StashBytes(stage.first_layer, stage.last_layer));
      slowest = std::max(slowest, seconds[place]);
      lacks = std::max(lacks, bytes[place] - usable_[s]);
    }
    double squares = 0;
    for (const double t : seconds) squares += t * t;
    return {std::max(0.0, lacks), slowest, squares};
  }

  const int in_flight_;
  Replica& replica_;
  const std::vector<int> places_;
  std::vector<const StageCosts*> costs_;  // per stage
  std::vector<double> usable_;
};

}  // namespace

absl::Status CutReplica(const Cluster& cluster, const Costs& costs, int tensor_parallel,
                        int micro_batch, Replica& replica) {
  const CostsByType by_type = CostsOfTypes(cluster, costs, tensor_parallel, micro_batch, replica);
  const int stages = static_cast<int>(replica.stages.size());
  int in_flight = std::min(replica.micro_batches, stages);
  const auto balance = [&] {
    std::vector<StageSlot> slots;
    for (int s = 0; s < stages; ++s) {
      const int type = cluster.devices[replica.stages[s].devices[0]].type;
      slots.push_back({&by_type.at(type), costs.UsableBytes(cluster.types[type]),
                       std::min(in_flight, stages - s)});
    }
    return BalanceLayers(slots);
  };
  auto cuts = balance();
  while (!cuts.ok() && in_flight > 1) {
    in_flight = (in_flight + 1) / 2;
    cuts = balance();
  }
  if (!cuts.ok()) return cuts.status();
  std::vector<Stage> kept;
  for (int s = 0; s < stages; ++s) {
    Stage stage = replica.stages[s];
    stage.first_layer = (*cuts)[s];
    stage.last_layer = (*cuts)[s + 1];
    if (stage.first_layer < stage.last_layer) kept.push_back(std::move(stage));
  }
  replica.stages = std::move(kept);  // a stage without layers is an idle device
  return absl::OkStatus();
}

bool Reshape(const Cluster& cluster, const Costs& costs, Shape shape, Layout& layout) {
  ATOLL_CHECK(layout.shape == Shape::kPlain && shape != Shape::kPlain);
  layout.shape = shape;
  std::map<std::pair<std::vector<int>, int>, std::vector<int>> known;  // equal replicas, once
  for (Replica& replica : layout.replicas) {
    const int entities = static_cast<int>(replica.stages.size());
    if (entities < 2) return false;
    std::vector<int> key;
    std::vector<int> layers;  // of each entity
    for (const Stage& stage : replica.stages) {
      key.push_back(cluster.devices[stage.devices[0]].type);
      key.push_back(stage.last_layer);
      layers.push_back(stage.last_layer - stage.first_layer);
    }
    const int all = replica.stages.back().last_layer;
    if (all < 2 * entities) return false;
    // Cuts for one stage per device may leave a device too little for two: then begin evenly.
    if (*std::min_element(layers.begin(), layers.end()) < 2) {
      for (int i = 0; i < entities; ++i) layers[i] = all * (i + 1) / entities - all * i / entities;
    }
    // The second half of the model comes back to the entities, in the other or the same order.
    for (int i = 0; i < entities; ++i) {
      const int again = shape == Shape::kVShaped ? entities - 1 - i : i;
      replica.stages.push_back({replica.stages[again].devices, 0, 0});
      layers.push_back(layers[again] / 2);
    }
    for (int i = 0; i < entities; ++i) layers[i] -= layers[i] / 2;
    int next = 0;
    for (int s = 0; s < 2 * entities; ++s) {
      replica.stages[s].first_layer = next;
      replica.stages[s].last_layer = next += layers[s];
    }
    auto [cuts, added] = known.try_emplace({key, replica.micro_batches});
    if (added) {
      const CostsByType by_type =
          CostsOfTypes(cluster, costs, layout.tensor_parallel, layout.micro_batch, replica);
      if (!Evener(cluster, costs, by_type, 1, replica).Run()) return false;
      for (const Stage& stage : replica.stages) cuts->second.push_back(stage.last_layer);
    }
    for (int s = 0; s < 2 * entities; ++s) {
      replica.stages[s].first_layer = s == 0 ? 0 : cuts->second[s - 1];
      replica.stages[s].last_layer = cuts->second[s];
    }
  }
  return true;
}

}  // namespace atl::plan
