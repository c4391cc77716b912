#include "worker/state/state_transfer.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/model/ownership.h"
#include "common/protocol/tensor_groups.h"

namespace atl::worker {
namespace {

// Chooses the sources of what is held at one step.
class SourceMembers {
 public:
  // No state: everything counts.
  SourceMembers(const Holdings& holdings, std::optional<StateName> state)
      : holdings_(holdings), state_(state) {}

  bool Current(const HeldLayer& layer) const { return !state_ || state_->Names(layer); }

  // Adds sources of these elements; false: no member holds some of them.
  bool Cover(const LayerShard& shard, int32_t parts, Range elements, const NodeId& receiver,
             std::vector<StateSource>* sources) {
    for (int64_t at = elements.begin; at < elements.end;) {
      const std::optional<Offer> offer = Best(shard, parts, at, receiver);
      if (!offer) return false;
      const int64_t end = std::min(offer->end, elements.end);
      if (offer->from != receiver) ++sent_counts_[offer->from];
      sources->push_back({shard, offer->from, parts, {at, end}});
      at = end;
    }
    return true;
  }

 private:
  struct Offer {
    NodeId from;
    int64_t end = 0;
  };

  Range Has(const HeldLayer& layer, int32_t parts) const {
    const bool all = parts == kParametersPart && (layer.whole || !state_);
    return all ? Range{0, layer.elements} : layer.owned;
  }

  // For the element `at` and those behind it: the receiver itself if it can, else the member with
  // the most of them, else the one that has sent least so far. Elements of the receiver are left to
  // it.
  std::optional<Offer> Best(const LayerShard& shard, int32_t parts, int64_t at,
                            const NodeId& receiver) {
    std::optional<Offer> best;
    int64_t own_begin = INT64_MAX;
    for (const auto& [worker, held] : holdings_) {
      for (const HeldLayer& layer : held) {
        if (!(layer.shard == shard) || layer.table_only || !Current(layer)) continue;
        const Range has = Has(layer, parts);
        if (worker == receiver && has.begin > at) own_begin = std::min(own_begin, has.begin);
        if (has.begin > at || has.end <= at) continue;
        const bool better =
            !best || std::tuple(worker == receiver, has.end, -sent_counts_[worker]) >
                         std::tuple(best->from == receiver, best->end, -sent_counts_[best->from]);
        if (better) best = {worker, has.end};
      }
    }
    if (best && best->from != receiver) best->end = std::min(best->end, own_begin);
    return best;
  }

  const Holdings& holdings_;
  const std::optional<StateName> state_;
  std::map<NodeId, int64_t> sent_counts_;
};

class Planner {
 public:
  Planner(const Holdings& holdings, const StateName& state)
      : holdings_(holdings), state_(state), source_members_(holdings, state) {}

  StateTransferPlan Plan() {
    StateTransferPlan result;
    result.state = state_;
    result.optimizer_step = state_.optimizer_step;
    int64_t shards = 0;
    for (const auto& [worker, held] : holdings_) {
      for (const HeldLayer& layer : held) {
        if (layer.surplus || layer.elements == 0) continue;
        if (source_members_.Current(layer) && layer.whole) continue;
        std::vector<StateTransfer>& transfers = result.transfers[worker];
        const bool known =
            std::any_of(transfers.begin(), transfers.end(),
                        [&](const StateTransfer& move) { return move.shard == layer.shard; });
        if (known) continue;  // two devices of the worker: written together
        std::vector<StateSource> sources = SelectSources(layer, worker);
        if (sources.empty()) {
          result.transfers.clear();
          result.reason = absl::StrCat("no member holds ", ToString(layer.shard), " at step ",
                                       state_.optimizer_step);
          return result;
        }
        transfers.push_back({layer.shard, std::move(sources)});
        ++shards;
      }
    }
    std::erase_if(result.transfers, [](const auto& entry) { return entry.second.empty(); });
    result.kept = true;
    result.reason = shards == 0 ? "no layer moves" : absl::StrCat(shards, " layers move");
    return result;
  }

 private:
  // Returns what the receiver's devices own of the shard together, from the first element to the
  // last.
  Range Owned(const LayerShard& shard, const NodeId& receiver) const {
    std::optional<Range> all;
    for (const HeldLayer& layer : holdings_.at(receiver)) {
      if (layer.surplus || !(layer.shard == shard) || layer.owned.size() == 0) continue;
      if (!all) all = layer.owned;
      all = {std::min(all->begin, layer.owned.begin), std::max(all->end, layer.owned.end)};
    }
    return all.value_or(Range{0, 0});
  }

  // None: not all of it is held.
  std::vector<StateSource> SelectSources(const HeldLayer& wanted, const NodeId& receiver) {
    const LayerShard& shard = wanted.shard;
    const Range owned = Owned(shard, receiver);
    std::vector<StateSource> sources;
    const auto cover = [&](int32_t parts, Range elements) {
      return source_members_.Cover(shard, parts, elements, receiver, &sources);
    };
    if (cover(kAllParts, owned) && cover(kParametersPart, {0, owned.begin}) &&
        cover(kParametersPart, {owned.end, wanted.elements})) {
      return sources;
    }
    std::map<std::vector<int32_t>, std::map<int32_t, int64_t>> cuts;  // elements by rank
    for (const auto& [worker, held] : holdings_) {
      for (const HeldLayer& layer : held) {
        if (layer.shard.layer != shard.layer) continue;
        cuts[layer.shard.tensor_split_ratios][layer.shard.rank] = layer.elements;
      }
    }
    cuts.erase(shard.tensor_split_ratios);
    for (const auto& [cut, elements] : cuts) {
      if (elements.size() != cut.size()) continue;
      std::vector<StateSource> all;
      const bool held = std::all_of(elements.begin(), elements.end(), [&](const auto& rank) {
        return source_members_.Cover({shard.layer, rank.first, cut}, kAllParts, {0, rank.second},
                                     receiver, &all);
      });
      if (held) return all;
    }
    return {};
  }

  const Holdings& holdings_;
  const StateName state_;
  SourceMembers source_members_;
};

}  // namespace

absl::Status CheckHoldings(const IslandPlan& plan, const Holdings& holdings,
                           const std::vector<std::vector<Range>>& undivided) {
  // The layers that are given to each device, and whether each has been listed.
  std::map<std::string, std::map<int32_t, bool>> given;
  std::map<std::string, int32_t> rank_of;
  std::map<std::string, std::vector<int32_t>> ratios_by_device;
  std::map<std::string, int> replica_of;
  const Ownership ownership = OwnershipFromPlan(plan);
  for (size_t r = 0; r < plan.replicas.size(); ++r) {
    for (const PlanStage& stage : plan.replicas[r].stages) {
      for (size_t rank = 0; rank < stage.devices.size(); ++rank) {
        rank_of[stage.devices[rank]] = static_cast<int32_t>(rank);
        ratios_by_device[stage.devices[rank]] = GetTensorSplitRatios(plan, stage.first_layer);
        replica_of[stage.devices[rank]] = static_cast<int>(r);
        for (int32_t l = 0; l < stage.layers; ++l) {
          given[stage.devices[rank]][stage.first_layer + l] = false;
        }
      }
    }
  }
  for (const auto& [worker, held] : holdings) {
    for (const HeldLayer& here : held) {
      if (here.surplus) continue;
      const auto device = given.find(here.device);
      bool fits = device != given.end() && WorkerFromDevice(here.device) == worker &&
                  here.shard.rank == rank_of[here.device] &&
                  here.shard.tensor_split_ratios == ratios_by_device[here.device];
      if (fits && here.table_only) {
        fits = here.shard.layer == 0;
      } else if (fits) {
        const auto layer = device->second.find(here.shard.layer);
        const auto index = static_cast<size_t>(here.shard.layer);
        const std::vector<Range> whole =
            index < undivided.size() ? undivided[index] : std::vector<Range>();
        fits = layer != device->second.end() && !std::exchange(layer->second, true) &&
               here.owned == ownership.Owned(replica_of[here.device], here.elements, whole);
      }
      if (fits) continue;
      return absl::InternalError(absl::StrCat(
          worker, " says that ", here.device, " holds ", ToString(here.shard), ", which plan ",
          plan.number, " does not give it: are all workers of one version?"));
    }
  }
  for (const auto& [device, layers] : given) {
    for (const auto& [layer, listed] : layers) {
      if (listed) continue;
      return absl::InternalError(absl::StrCat(
          WorkerFromDevice(device), " does not say that ", device, " holds layer ", layer,
          ", which plan ", plan.number, " gives it: are all workers of one version?"));
    }
  }
  return absl::OkStatus();
}

StateTransferPlan PlanStateTransfer(const Holdings& holdings,
                                    const std::vector<StateName>& states) {
  StateTransferPlan first;
  first.reason = "no member holds any layer yet";
  for (size_t i = 0; i < states.size(); ++i) {
    StateTransferPlan transfers = Planner(holdings, states[i]).Plan();
    if (transfers.kept) return transfers;
    if (i == 0) first.reason = transfers.reason;
  }
  return first;
}

std::vector<StateName> StatesIn(const Holdings& holdings) {
  std::vector<StateName> states;
  for (const bool any_parameters : {false, true}) {
    const size_t before = states.size();
    for (const auto& [worker, held] : holdings) {
      for (const HeldLayer& layer : held) {
        if (!layer.written || layer.elements == 0) continue;
        const StateName state{any_parameters ? StateStamp() : layer.parameters_since,
                              layer.moments_since, layer.optimizer_step, any_parameters};
        if (std::count(states.begin(), states.end(), state) == 0) states.push_back(state);
      }
    }
    std::sort(states.begin() + static_cast<std::ptrdiff_t>(before), states.end(),
              [](const StateName& a, const StateName& b) {
                return std::tuple(a.optimizer_step, a.parameters_since, a.moments_since) >
                       std::tuple(b.optimizer_step, b.parameters_since, b.moments_since);
              });
  }
  return states;
}

std::vector<StateSource> SelectSources(const Holdings& holdings, const LayerShard& shard,
                                       int32_t parts, const NodeId& receiver) {
  int64_t elements = -1;
  for (const auto& [worker, held] : holdings) {
    for (const HeldLayer& layer : held) {
      if (layer.shard == shard && !layer.table_only) elements = layer.elements;
    }
  }
  ATOLL_CHECK(elements >= 0, ToString(shard), " is nowhere");
  std::vector<StateSource> sources;
  ATOLL_CHECK(
      SourceMembers(holdings, std::nullopt).Cover(shard, parts, {0, elements}, receiver, &sources),
      ToString(shard), " is not whole");
  return sources;
}

}  // namespace atl::worker
