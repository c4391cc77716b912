#include "worker/state/save_plan.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "common/check.h"
#include "common/element_ranges.h"

namespace atl::worker {
namespace {

// Returns the worker that may and has least so far; the first of equals.
template <typename May>
const NodeId* Least(const std::map<NodeId, int64_t>& loads, const May& may) {
  const std::pair<const NodeId, int64_t>* best = nullptr;
  for (const auto& load : loads) {
    if (may(load.first) && (best == nullptr || load.second < best->second)) best = &load;
  }
  return best == nullptr ? nullptr : &best->first;
}

using Owners = std::map<NodeId, std::vector<Range>>;

struct Owned {
  LayerShard shard;
  int64_t elements = 0;
  Owners owners;
};

std::vector<Owned> OwnedShards(const Holdings& holdings) {
  std::vector<Owned> shards;
  for (const auto& [worker, held] : holdings) {
    for (const HeldLayer& layer : held) {
      if (layer.surplus || layer.table_only) continue;
      auto shard = std::find_if(shards.begin(), shards.end(),
                                [&](const Owned& s) { return s.shard == layer.shard; });
      if (shard == shards.end()) {
        shard = shards.insert(shards.end(), {layer.shard, layer.elements, {}});
      }
      if (layer.owned.size() > 0) shard->owners[worker].push_back(layer.owned);
    }
  }
  std::sort(shards.begin(), shards.end(), [](const Owned& a, const Owned& b) {
    return std::tuple(a.shard.layer, a.shard.rank) < std::tuple(b.shard.layer, b.shard.rank);
  });
  return shards;
}

// The member that is to keep one more copy of what these have; null: none is left.
const NodeId* SelectCopyHolder(const std::set<NodeId>& holders,
                               const std::map<NodeId, int64_t>& kept, const Sites& sites) {
  const auto find_site = [&](const NodeId& worker) {
    const auto found = sites.find(worker);
    return found == sites.end() ? std::string() : found->second;
  };
  std::set<std::string> have;
  for (const NodeId& holder : holders) have.insert(find_site(holder));
  const NodeId* elsewhere = Least(
      kept, [&](const NodeId& w) { return !holders.contains(w) && !have.contains(find_site(w)); });
  if (elsewhere != nullptr) return elsewhere;
  return Least(kept, [&](const NodeId& w) { return !holders.contains(w); });
}

// How far what a worker owns goes on from `at`; `at`: it does not own it.
int64_t FindRangeEnd(const std::vector<Range>& owned, int64_t at) {
  int64_t end = at;
  for (const Range& range : owned) {
    if (range.begin <= at) end = std::max(end, range.end);
  }
  return end;
}

}  // namespace

SavePlan PlanSave(const Holdings& holdings, int64_t copies, const Sites& sites) {
  SavePlan plan;
  std::map<NodeId, int64_t> kept;  // elements
  for (const auto& [worker, held] : holdings) {
    const bool has_part = std::any_of(held.begin(), held.end(),
                                      [](const HeldLayer& layer) { return !layer.surplus; });
    if (!has_part) continue;
    kept[worker] = 0;
    plan.orders[worker];
  }
  plan.by_owners = true;
  for (const Owned& shard : OwnedShards(holdings)) {
    for (int64_t at = 0; at < shard.elements;) {
      std::vector<NodeId> owners;
      int64_t end = shard.elements;
      for (const auto& [worker, ranges] : shard.owners) {
        const int64_t until = FindRangeEnd(ranges, at);
        if (until == at) continue;
        owners.push_back(worker);
        end = std::min(end, until);
      }
      ATOLL_CHECK(!owners.empty(), ToString(shard.shard), " is not owned from element ", at);
      plan.by_owners = plan.by_owners && owners.size() > 1;
      // Each is the first of some of what they own together.
      for (size_t first = 0; first < owners.size(); ++first) {
        const auto cut = [&](size_t i) {
          return at + (end - at) * static_cast<int64_t>(i) / std::ssize(owners);
        };
        const Unit unit{shard.shard, {cut(first), cut(first + 1)}};
        if (unit.elements.size() == 0) continue;
        plan.units.push_back(unit);
        std::set<NodeId> holders;
        for (size_t i = 0; i < owners.size() && std::ssize(holders) <= copies; ++i) {
          const NodeId& owner = owners[(first + i) % owners.size()];
          plan.orders[owner].own.push_back(unit);
          holders.insert(owner);
        }
        while (std::ssize(holders) <= copies) {
          const NodeId* peer = SelectCopyHolder(holders, kept, sites);
          if (peer == nullptr) break;
          kept[*peer] += unit.elements.size();
          plan.orders[*peer].fetch.push_back({unit, owners[first], shard.elements});
          plan.copied = true;
          holders.insert(*peer);
        }
      }
      at = end;
    }
  }
  plan.by_owners = plan.by_owners && !plan.copied;
  return plan;
}

std::vector<int64_t> ListSaves(const HeldSaves& saves) {
  std::set<int64_t, std::greater<>> numbers;
  for (const auto& [worker, held] : saves) {
    for (const HeldSave& save : held) numbers.insert(save.save);
  }
  return {numbers.begin(), numbers.end()};
}

namespace {

// Lists what this save has of every shard that a member keeps, in tiers up to `farthest`, by
// member. What a member has is nearer to all than the remote tier, which may be behind one link: of
// that only what no member has.
std::vector<std::pair<NodeId, HeldLayer>> LayersIn(const HeldSaves& saves, int64_t number,
                                                   Tier farthest) {
  std::vector<std::pair<LayerShard, ElementRanges>> with_members;
  const auto find_ranges = [&](const LayerShard& shard) -> ElementRanges& {
    for (auto& [known, ranges] : with_members) {
      if (known == shard) return ranges;
    }
    return with_members.emplace_back(shard, ElementRanges()).second;
  };
  std::vector<std::pair<NodeId, HeldLayer>> layers;
  for (const bool remote : {false, true}) {
    for (const auto& [worker, all] : saves) {
      for (const HeldSave& save : all) {
        if (save.save != number) continue;
        for (const HeldUnit& held : save.units) {
          if (held.tier > farthest || (held.tier == Tier::kRemote) != remote) continue;
          HeldLayer layer;
          layer.shard = held.unit.shard;
          layer.elements = held.elements;
          layer.optimizer_step = save.optimizer_step;
          layer.written = layer.surplus = true;
          const ElementRange all_of_it{held.unit.elements.begin, held.unit.elements.end};
          ElementRanges& here = find_ranges(layer.shard);
          for (const ElementRange& range :
               remote ? here.Missing(all_of_it) : std::vector{all_of_it}) {
            layer.owned = {range.begin, range.end};
            layers.emplace_back(worker, layer);
          }
          if (!remote) here.Add(all_of_it);
        }
      }
    }
  }
  return layers;
}

}  // namespace

StateTransferPlan PlanRestore(const Holdings& holdings, const HeldSaves& saves, int64_t number) {
  StateTransferPlan transfers;
  for (const Tier farthest : {Tier::kMemory, Tier::kDisk, Tier::kRemote}) {
    Holdings held;
    int64_t optimizer_step = 0;
    for (const auto& [worker, layers] : holdings) {
      for (HeldLayer layer : layers) {
        if (layer.surplus) continue;
        layer.parameters_since = layer.moments_since = {};
        layer.written = layer.whole = false;
        held[worker].push_back(std::move(layer));
      }
    }
    for (auto& [worker, layer] : LayersIn(saves, number, farthest)) {
      optimizer_step = layer.optimizer_step;
      held[worker].push_back(std::move(layer));
    }
    transfers = PlanStateTransfer(held, {{{}, {}, optimizer_step}});
    if (!transfers.kept) continue;
    for (auto& [worker, all] : transfers.transfers) {
      for (StateTransfer& move : all) {
        for (StateSource& source : move.sources) source.save = number;
      }
    }
    return transfers;
  }
  return transfers;
}

SavedState DescribeSave(const SavePlan& plan, const LocalCheckpoint& about,
                        const std::vector<IslandMember>& members, const std::vector<Tier>& tiers) {
  SavedState state;
  state.about = about;
  for (const Unit& unit : plan.units) {
    state.units.push_back({unit.shard.layer, unit.shard.rank, unit.shard.tensor_split_ratios,
                           unit.elements.begin, unit.elements.end});
  }
  for (const auto& [worker, order] : plan.orders) {
    const auto member = std::find_if(members.begin(), members.end(),
                                     [&](const IslandMember& m) { return m.worker == worker; });
    if (member == members.end()) continue;
    for (const Tier tier : tiers) {
      SavedHolder holder{worker, member->incarnation, tier, {}};
      holder.units.resize((plan.units.size() + 63) / 64);
      const auto add = [&](const Unit& unit) {
        const auto at = std::find(plan.units.begin(), plan.units.end(), unit) - plan.units.begin();
        holder.units[static_cast<size_t>(at / 64)] |= uint64_t{1} << (at % 64);
      };
      for (const Unit& unit : order.own) add(unit);
      if (tier == Tier::kMemory) {
        for (const SaveFetch& fetch : order.fetch) add(fetch.unit);
      }
      state.holders.push_back(std::move(holder));
    }
  }
  return state;
}

}  // namespace atl::worker
