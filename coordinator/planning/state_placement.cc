#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "coordinator/planner/cluster/objective.h"
#include "coordinator/planning/plan_changes.h"

namespace atl {
namespace {

constexpr double kWorseAtMost = 1.01;
constexpr size_t kComparedReplicas = 64;  // of those that ran, with each of the layout's

// For each node, the layers that it holds.
using Holdings = std::map<NodeId, std::vector<bool>>;

Holdings ListHoldings(const PlanRequest& request, size_t layers) {
  Holdings held;
  for (const PlanReplica& replica : request.ran) {
    for (const PlanStage& stage : replica.stages) {
      for (const std::string& device : stage.devices) {
        std::vector<bool>& its = held[WorkerFromDevice(device)];
        its.resize(layers);
        const auto last = std::min<size_t>(layers, stage.first_layer + stage.layers);
        for (size_t layer = stage.first_layer; layer < last; ++layer) its[layer] = true;
      }
    }
  }
  return held;
}

// One entity's part of a layout: of one replica, one stage or several.
struct Part {
  size_t replica = 0;
  std::vector<size_t> stages = {};
  size_t entity = 0;  // that has it
  size_t layers = 0;  // which ones: parts of the same ones have the same number
};

// Where an entity may go.
enum class Freedom { kAnywhere, kSameType, kWithinReplica };

// Devices that hold layers together.
struct Entity {
  std::vector<int> devices;
  std::optional<size_t> replica = {};  // of the layout; none: idle
  std::optional<size_t> ran_in = {};   // replica of the plan that ran last
  size_t held = 0;                     // as Part::layers: what its node holds
};

class Placement {
 public:
  Placement(const PlanRequest& request, const PlanningInput& input, const plan::Layout& layout)
      : input_(input),
        layout_(layout),
        held_(ListHoldings(request, input.costs.model().layers.size())),
        indices_(input.cluster.IndexDevices()) {
    std::map<std::vector<int>, size_t> known;  // by devices in order
    std::set<int> used;
    for (size_t r = 0; r < layout.replicas.size(); ++r) AddParts(r, known, used);
    for (size_t r = 0; r < request.ran.size(); ++r) AddRan(request.ran[r], r, known, used);
    ran_replicas_ = request.ran.size();
    NumberLayers();
  }

  // Bytes of state that stay where they are, of this layout's.
  double CountInPlace(const plan::Layout& layout) const {
    double bytes = 0;
    for (const plan::Replica& replica : layout.replicas) {
      for (const plan::Stage& stage : replica.stages) bytes += Overlap(stage, stage.devices[0]);
    }
    return bytes;
  }

  double CountBytes() const {
    double bytes = 0;
    for (const plan::Layer& layer : input_.costs.model().layers) bytes += Bytes(layer);
    return bytes * static_cast<double>(layout_.replicas.size());
  }

  // Other devices for the entities: those of a replica that ran last stay together where that keeps
  // most; then each entity on its own.
  std::optional<plan::Layout> PlaceState(Freedom freedom) {
    freedom_ = freedom;
    chosen_.assign(parts_.size(), std::nullopt);
    taken_.assign(entities_.size(), false);
    ChooseReplicas();
    for (size_t p = 0; p < parts_.size(); ++p) {
      if (!chosen_[p] && !ChooseAlone(p)) return std::nullopt;
    }
    plan::Layout placed = layout_;
    for (size_t p = 0; p < parts_.size(); ++p) {
      for (const size_t s : parts_[p].stages) {
        placed.replicas[parts_[p].replica].stages[s].devices = entities_[*chosen_[p]].devices;
      }
    }
    return placed;
  }

 private:
  const plan::Device& First(size_t entity) const {
    return input_.cluster.devices[entities_[entity].devices[0]];
  }

  void AddParts(size_t r, std::map<std::vector<int>, size_t>& known, std::set<int>& used) {
    const plan::Replica& replica = layout_.replicas[r];
    const std::vector<int> stage_entities = plan::MapStagesToEntities(replica);
    const size_t first = parts_.size();
    for (size_t s = 0; s < replica.stages.size(); ++s) {
      const size_t part = first + static_cast<size_t>(stage_entities[s]);
      if (part == parts_.size()) {
        std::vector<int> devices = replica.stages[s].devices;
        parts_.push_back({.replica = r, .entity = entities_.size()});
        entities_.push_back({devices, r});
        used.insert(devices.begin(), devices.end());
        std::sort(devices.begin(), devices.end());
        known[devices] = entities_.size() - 1;
      }
      parts_[part].stages.push_back(s);
    }
  }

  // Selects those of its entities that the layout uses as they are or not at all.
  void AddRan(const PlanReplica& replica, size_t r, std::map<std::vector<int>, size_t>& known,
              const std::set<int>& used) {
    for (const PlanStage& stage : replica.stages) {
      std::vector<int> devices;
      for (const std::string& device : stage.devices) {
        if (const auto found = indices_.find(device); found != indices_.end()) {
          devices.push_back(found->second);
        }
      }
      if (devices.size() != stage.devices.size()) continue;
      std::vector<int> sorted = devices;
      std::sort(sorted.begin(), sorted.end());
      auto entity = known.find(sorted);
      if (entity == known.end()) {
        const bool idle = std::none_of(devices.begin(), devices.end(),
                                       [&](int device) { return used.contains(device); });
        if (!idle) continue;
        entity = known.emplace(sorted, entities_.size()).first;
        entities_.push_back({devices});
      }
      entities_[entity->second].ran_in = r;
    }
  }

  // With frozen weights, which are read from disk where they are not held.
  double Bytes(const plan::Layer& layer) const {
    return plan::LayerStateBytes(layer, input_.costs.options());
  }

  double Overlap(const plan::Stage& stage, int device) const {
    const auto held = held_.find(input_.cluster.devices[device].node);
    if (held == held_.end()) return 0;
    double bytes = 0;
    for (int layer = stage.first_layer; layer < stage.last_layer; ++layer) {
      if (held->second[layer]) bytes += Bytes(input_.costs.model().layers[layer]);
    }
    return bytes;
  }

  // Large layouts have few different parts, and are compared entity by entity.
  void NumberLayers() {
    std::map<std::vector<std::pair<int, int>>, size_t> by_layers;
    std::map<std::vector<bool>, size_t> by_held;
    std::vector<size_t> a_part, an_entity;  // of each number
    for (size_t p = 0; p < parts_.size(); ++p) {
      std::vector<std::pair<int, int>> layers;
      for (const size_t s : parts_[p].stages) {
        const plan::Stage& stage = layout_.replicas[parts_[p].replica].stages[s];
        layers.emplace_back(stage.first_layer, stage.last_layer);
      }
      const auto [it, added] = by_layers.try_emplace(layers, a_part.size());
      if (added) a_part.push_back(p);
      parts_[p].layers = it->second;
    }
    for (size_t e = 0; e < entities_.size(); ++e) {
      const auto held = held_.find(First(e).node);
      const auto [it, added] = by_held.try_emplace(
          held == held_.end() ? std::vector<bool>() : held->second, an_entity.size());
      if (added) an_entity.push_back(e);
      entities_[e].held = it->second;
    }
    overlaps_.assign(a_part.size(), std::vector<double>(an_entity.size()));
    for (size_t p = 0; p < a_part.size(); ++p) {
      const Part& part = parts_[a_part[p]];
      for (size_t e = 0; e < an_entity.size(); ++e) {
        for (const size_t s : part.stages) {
          overlaps_[p][e] +=
              Overlap(layout_.replicas[part.replica].stages[s], entities_[an_entity[e]].devices[0]);
        }
      }
    }
  }

  double GetOverlap(size_t part, size_t entity) const {
    return overlaps_[parts_[part].layers][entities_[entity].held];
  }

  bool Fits(size_t part, size_t entity) const {
    const size_t has = parts_[part].entity;
    return entities_[entity].devices.size() == entities_[has].devices.size() &&
           (freedom_ != Freedom::kSameType || First(entity).type == First(has).type) &&
           (freedom_ != Freedom::kWithinReplica ||
            entities_[entity].replica == parts_[part].replica);
  }

  struct Match {
    double bytes = 0;
    int unchanged = 0;
    std::vector<std::pair<size_t, size_t>> pairs = {};  // part, entity
  };

  Match MatchParts(const std::vector<size_t>& parts, const std::vector<size_t>& entities) const {
    std::vector<std::tuple<double, bool, size_t, size_t>> all;
    for (size_t p = 0; p < parts.size(); ++p) {
      for (size_t e = 0; e < entities.size(); ++e) {
        if (!Fits(parts[p], entities[e])) continue;
        const double overlap = GetOverlap(parts[p], entities[e]);
        if (overlap <= 0) continue;
        all.emplace_back(-overlap, parts_[parts[p]].entity != entities[e], p, e);
      }
    }
    std::sort(all.begin(), all.end());
    Match match;
    std::set<size_t> given, matched;
    for (const auto& [overlap, moved, p, e] : all) {
      if (given.contains(p) || matched.contains(e)) continue;
      given.insert(p);
      matched.insert(e);
      match.bytes -= overlap;
      match.unchanged += moved ? 0 : 1;
      match.pairs.emplace_back(parts[p], entities[e]);
    }
    return match;
  }

  // Replicas of the plan that ran last which a replica of the layout is compared with: first those
  // whose devices it has.
  std::set<size_t> Compared(size_t replica, const std::vector<size_t>& parts) const {
    std::set<size_t> compared;
    for (const size_t part : parts) {
      const std::optional<size_t>& ran_in = entities_[parts_[part].entity].ran_in;
      if (ran_in) compared.insert(*ran_in);
    }
    for (size_t i = 0; i < ran_replicas_ && compared.size() < kComparedReplicas; ++i) {
      compared.insert((replica + i) % ran_replicas_);
    }
    return compared;
  }

  // Replicas that keep most of one that ran last get its devices, or each one its own.
  void ChooseReplicas() {
    const bool own = freedom_ == Freedom::kWithinReplica;
    std::vector<std::vector<size_t>> parts(layout_.replicas.size());
    std::vector<std::vector<size_t>> entities(own ? parts.size() : ran_replicas_);
    for (size_t p = 0; p < parts_.size(); ++p) parts[parts_[p].replica].push_back(p);
    for (size_t e = 0; e < entities_.size(); ++e) {
      const std::optional<size_t>& in = own ? entities_[e].replica : entities_[e].ran_in;
      if (in) entities[*in].push_back(e);
    }
    std::vector<std::tuple<double, int, size_t, size_t>> order;
    for (size_t r = 0; r < parts.size(); ++r) {
      for (const size_t from : own ? std::set<size_t>{r} : Compared(r, parts[r])) {
        const Match match = MatchParts(parts[r], entities[from]);
        if (match.bytes > 0) order.emplace_back(-match.bytes, -match.unchanged, r, from);
      }
    }
    std::sort(order.begin(), order.end());
    std::set<size_t> given, matched;
    for (const auto& [bytes, unchanged, r, from] : order) {
      if (given.contains(r) || matched.contains(from)) continue;
      given.insert(r);
      matched.insert(from);
      for (const auto& [part, entity] : MatchParts(parts[r], entities[from]).pairs) {
        chosen_[part] = entity;
        taken_[entity] = true;
      }
    }
  }

  // The entity that keeps most; among equals the one that has the part, then one of a site of the
  // replica.
  bool ChooseAlone(size_t part) {
    std::set<std::string> sites;
    for (size_t p = 0; p < parts_.size(); ++p) {
      if (chosen_[p] && parts_[p].replica == parts_[part].replica) {
        sites.insert(First(*chosen_[p]).site);
      }
    }
    std::optional<std::tuple<double, bool, bool>> best;
    for (size_t e = 0; e < entities_.size(); ++e) {
      if (taken_[e] || !Fits(part, e)) continue;
      const std::tuple rank(GetOverlap(part, e), parts_[part].entity == e,
                            sites.contains(First(e).site));
      if (best && *best >= rank) continue;
      best = rank;
      chosen_[part] = e;
    }
    if (!best) return false;
    taken_[*chosen_[part]] = true;
    return true;
  }

  const PlanningInput& input_;
  const plan::Layout& layout_;
  const Holdings held_;
  const std::map<std::string, int> indices_;
  std::vector<Part> parts_;
  std::vector<Entity> entities_;
  size_t ran_replicas_ = 0;
  std::vector<std::vector<double>> overlaps_;  // by Part::layers and Entity::held
  Freedom freedom_ = Freedom::kAnywhere;
  std::vector<std::optional<size_t>> chosen_;  // by part
  std::vector<bool> taken_;                    // entities
};

}  // namespace

void KeepStateInPlace(const PlanRequest& request, const PlanningInput& input, plan::Plan& plan) {
  if (request.ran.empty()) return;
  Placement placement(request, input, plan.layout);
  const double before = placement.CountInPlace(plan.layout);
  const plan::Ranking ranking(input.cluster, input.costs, input.job);
  const double worst = kWorseAtMost * ranking.Rank(plan.layout, plan.outcome.step_s);
  for (const Freedom freedom : {Freedom::kAnywhere, Freedom::kSameType, Freedom::kWithinReplica}) {
    std::optional<plan::Layout> layout = placement.PlaceState(freedom);
    if (!layout || placement.CountInPlace(*layout) <= before ||
        !plan::UsesLeader(input.cluster, *layout)) {
      continue;
    }
    auto outcome =
        plan::EvaluateLayout(input.cluster, input.costs, *layout,
                             {.restarts = 96, .seed = request.seed, .known = &plan.outcome});
    if (!outcome.ok() || ranking.Rank(*layout, outcome->step_s) > worst) continue;
    absl::StrAppendFormat(&plan.reason,
                          "; %.0f%% of its state stays where it is (%.0f%% before devices changed "
                          "places)",
                          100 * placement.CountInPlace(*layout) / placement.CountBytes(),
                          100 * before / placement.CountBytes());
    plan.layout = *std::move(layout);
    plan.outcome = *std::move(outcome);
    return;
  }
}

}  // namespace atl
