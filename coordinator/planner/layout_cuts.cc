// Where a layout's stages are cut, and how two of them share a device.

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/check.h"
#include "coordinator/planner/groups/balance.h"
#include "coordinator/planner/layout.h"
#include "coordinator/simulator/search.h"

namespace atl::plan {
namespace {

// Looks up the costs of a replica's stages; groups of devices that are alike are computed once.
class StageCostLookup {
 public:
  StageCostLookup(const Cluster& cluster, const Costs& costs, int micro_batch,
                  const Replica& replica, const std::vector<int>& tensor_split_ratios = {}) {
    for (const Stage& stage : replica.stages) {
      std::vector<int> types = {static_cast<int>(stage.devices.size())};
      for (const int d : stage.devices) {
        types.push_back(cluster.devices[d].type);
        if (tensor_split_ratios.empty()) break;
      }
      auto known = alike_.find(types);
      if (known == alike_.end()) {
        known = alike_
                    .emplace(types, GroupCosts(cluster, costs, micro_batch, stage.devices,
                                               tensor_split_ratios))
                    .first;
      }
      stages_.push_back(&known->second);
      bytes_.push_back(GroupBytes(cluster, costs, stage.devices, tensor_split_ratios));
    }
  }

  const StageCosts& of(size_t stage) const { return *stages_[stage]; }
  int64_t usable_bytes(size_t stage) const { return bytes_[stage]; }

 private:
  std::map<std::vector<int>, StageCosts> alike_;  // by number of devices and types
  std::vector<const StageCosts*> stages_;
  std::vector<int64_t> bytes_;
};

// Moves single layers across cuts while that evens out the entities' load: first that all hold
// their state and `in_flight` micro-batches, then the slowest one's time, then the spread.
class Evener {
 public:
  Evener(const StageCostLookup& costs, bool saves, int in_flight, Replica& replica)
      : costs_(costs),
        saves_(saves),
        in_flight_(in_flight),
        replica_(replica),
        stage_entities_(MapStagesToEntities(replica)) {}

  // False if some entity still cannot hold its part.
  bool Run() {
    Load best = ComputeLoad();
    // Every move improves; the bound only guards against cycles of rounding.
    for (int moves = 0; moves < 1000; ++moves) {
      size_t boundary = 0;
      int direction = 0;
      for (size_t s = 0; s + 1 < replica_.stages.size(); ++s) {
        for (const int by : {-1, 1}) {
          if (!Move(s, by)) continue;
          const Load load = ComputeLoad();
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

  Load ComputeLoad() const {
    std::vector<double> seconds(replica_.stages.size(), 0);
    std::vector<double> bytes(replica_.stages.size(), 0);
    double lacks = 0;
    double slowest = 0;
    for (size_t s = 0; s < replica_.stages.size(); ++s) {
      const Stage& stage = replica_.stages[s];
      const int entity = stage_entities_[s];
      seconds[entity] += costs_.of(s).TotalSeconds(stage.first_layer, stage.last_layer);
      bytes[entity] += static_cast<double>(LeastBytes(costs_.of(s), stage));
      slowest = std::max(slowest, seconds[entity]);
      lacks = std::max(lacks, bytes[entity] - static_cast<double>(costs_.usable_bytes(s)));
    }
    double squares = 0;
    for (const double t : seconds) squares += t * t;
    return {std::max(0.0, lacks), slowest, squares};
  }

  // With the saving that leaves least.
  int64_t LeastBytes(const StageCosts& costs, const Stage& stage) const {
    const int first = stage.first_layer, last = stage.last_layer;
    int64_t least = INT64_MAX;
    for (const int level : {0, 1, 1 + costs.Recomputable(first, last)}) {
      if (level > 0 && !saves_) continue;
      const Saving saving = SavingFromLevel(level);
      least = std::min(least, costs.StateBytes(first, last, saving) +
                                  in_flight_ * costs.StashBytes(first, last, saving));
    }
    return least;
  }

  const StageCostLookup& costs_;
  const bool saves_;
  const int in_flight_;
  Replica& replica_;
  const std::vector<int> stage_entities_;
};

// A device's stages as one: levels of saving go through them one after the other.
void SetLevel(int level, const StageCostLookup& costs, const std::vector<size_t>& stages,
              Replica& replica) {
  int left = level;
  for (const size_t s : stages) {
    Stage& stage = replica.stages[s];
    const int most = costs.of(s).Recomputable(stage.first_layer, stage.last_layer);
    const int recomputed = std::clamp(left - 1, 0, most);
    stage.saving = {level > 0, recomputed};
    left -= recomputed;
  }
}

// How a family's stages lie on devices; nothing: in any way.
std::optional<Shape> FindNeededShape(const std::string& schedule) {
  for (const sim::ScheduleFamily& family : sim::ScheduleFamilies()) {
    if (family.name != schedule) continue;
    switch (family.placement) {
      case sim::Placement::kAny:
        return std::nullopt;
      case sim::Placement::kOneChunk:
        return Shape::kPlain;
      case sim::Placement::kInterleaved:
        return Shape::kInterleaved;
      case sim::Placement::kV:
        return Shape::kVShaped;
    }
  }
  return std::nullopt;
}

const char* ShapeText(Shape shape) {
  return shape == Shape::kVShaped       ? "two stages on every device in a V (devices 0, 1, 1, 0)"
         : shape == Shape::kInterleaved ? "several stages on every device in turn (0, 1, 0, 1)"
                                        : "one stage on every device";
}

// Checks a layout that has several stages on some device.
absl::Status CheckShape(const std::string& schedule, Shape needed, const Layout& layout) {
  if (layout.shape == needed) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "schedule \"", schedule, "\" needs ", ShapeText(needed), ", and the plan has ",
      ShapeText(layout.shape), "; leave the schedule out, or give one that takes any stages: ",
      "best, gpipe, compact-zb, jeeves or jeeves-search"));
}

}  // namespace

void SaveMemory(const Cluster& cluster, const Costs& costs, int micro_batch, int in_flight,
                Replica& replica, const std::vector<int>& tensor_split_ratios) {
  for (Stage& stage : replica.stages) stage.saving = {};
  if (costs.options().recompute != Recompute::kAuto) return;
  const StageCostLookup of(cluster, costs, micro_batch, replica, tensor_split_ratios);
  std::map<int, std::vector<size_t>> stages_by_entity;  // stages, by entity
  const std::vector<int> stage_entities = MapStagesToEntities(replica);
  for (size_t s = 0; s < stage_entities.size(); ++s)
    stages_by_entity[stage_entities[s]].push_back(s);
  for (const auto& [entity, stages] : stages_by_entity) {
    int recomputable = 0;
    for (const size_t s : stages) {
      recomputable +=
          of.of(s).Recomputable(replica.stages[s].first_layer, replica.stages[s].last_layer);
    }
    for (int most = std::max(1, std::min(in_flight, replica.micro_batches));;
         most = (most + 1) / 2) {
      const auto fits = [&](int level) {
        SetLevel(level, of, stages, replica);
        int64_t bytes = 0;
        for (const size_t s : stages) {
          const Stage& stage = replica.stages[s];
          const int behind = static_cast<int>(stage_entities.size() - s);
          bytes += of.of(s).StateBytes(stage.first_layer, stage.last_layer, stage.saving) +
                   std::min(most, behind) *
                       of.of(s).StashBytes(stage.first_layer, stage.last_layer, stage.saving);
        }
        return bytes <= of.usable_bytes(stages[0]);
      };
      const std::optional<int> level = LeastLevel(recomputable, fits);
      SetLevel(level.value_or(recomputable + 1), of, stages, replica);
      if (level || most == 1) break;
    }
  }
}

absl::Status CutReplica(const Cluster& cluster, const Costs& costs, int micro_batch,
                        Replica& replica, const CutOptions& options) {
  const std::vector<int>& tensor_split_ratios = options.tensor_split_ratios;
  const StageCostLookup of(cluster, costs, micro_batch, replica, tensor_split_ratios);
  const int stages = static_cast<int>(replica.stages.size());
  int in_flight = std::min(replica.micro_batches, stages);
  const auto balance = [&] {
    std::vector<StageSlot> slots;
    for (int s = 0; s < stages; ++s) {
      slots.push_back({&of.of(s), of.usable_bytes(s), std::min(in_flight, stages - s)});
    }
    return BalanceLayers(slots, options.every_stage);
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
  SaveMemory(cluster, costs, micro_batch, in_flight, replica, tensor_split_ratios);
  return absl::OkStatus();
}

absl::Status SetSchedule(const Cluster& cluster, const Costs& costs, const std::string& schedule,
                         Layout& layout) {
  const std::vector<std::string> names = sim::ScheduleNames();
  if (std::find(names.begin(), names.end(), schedule) == names.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("schedule \"", schedule,
                     "\": there is no such schedule; there are: ", absl::StrJoin(names, ", ")));
  }
  layout.schedule = schedule;
  layout.split_backward = schedule != "1f1b" && schedule != "gpipe" && schedule != "interleaved";
  const std::optional<Shape> needed = FindNeededShape(schedule);
  if (!needed) return absl::OkStatus();
  if (layout.shape != Shape::kPlain) return CheckShape(schedule, *needed, layout);
  if (*needed == Shape::kPlain || Reshape(cluster, costs, *needed, layout)) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat("schedule \"", schedule,
                                                   "\" needs two stages on every device: pipelines "
                                                   "of at least two devices, twice as many layers "
                                                   "as devices, and the memory for it"));
}

bool Satisfies(const Constraints& fixed, const Layout& layout) {
  const auto replicas = static_cast<int>(layout.replicas.size());
  if (fixed.replicas > 0 && replicas != fixed.replicas) return false;
  if (fixed.stages == 0) return true;
  const size_t stages = static_cast<size_t>(fixed.stages) * (layout.shape == Shape::kPlain ? 1 : 2);
  return std::all_of(layout.replicas.begin(), layout.replicas.end(),
                     [&](const Replica& replica) { return replica.stages.size() == stages; });
}

bool Reshape(const Cluster& cluster, const Costs& all_costs, Shape shape, Layout& layout) {
  const Costs& costs = all_costs.ForReplicas(layout.replicas.size());
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
      key.push_back(static_cast<int>(stage.devices.size()));
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
      const StageCostLookup of(cluster, costs, layout.micro_batch, replica);
      const bool saves = costs.options().recompute == Recompute::kAuto;
      if (!Evener(of, saves, 1, replica).Run()) return false;
      for (const Stage& stage : replica.stages) cuts->second.push_back(stage.last_layer);
    }
    for (int s = 0; s < 2 * entities; ++s) {
      replica.stages[s].first_layer = s == 0 ? 0 : cuts->second[s - 1];
      replica.stages[s].last_layer = cuts->second[s];
    }
    SaveMemory(cluster, costs, layout.micro_batch, 2 * entities, replica);
  }
  return true;
}

}  // namespace atl::plan
