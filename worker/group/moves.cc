#include "worker/group/moves.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/group/wire.h"

namespace atl::worker {
namespace {

class Planner {
 public:
  Planner(const Holdings& holdings, int64_t step) : holdings_(holdings), step_(step) {}

  LayerMoves Plan() {
    LayerMoves result;
    result.optimizer_step = step_;
    int64_t shards = 0;
    for (const auto& [worker, held] : holdings_) {
      for (const HeldLayer& layer : held) {
        if (layer.surplus || Valid(layer)) continue;
        std::vector<ShardMove>& moves = result.moves[worker];
        const bool known = std::any_of(moves.begin(), moves.end(), [&](const ShardMove& move) {
          return move.shard == layer.shard;
        });
        if (known) continue;  // two devices of the worker: written together
        const std::vector<ShardSource> sources = SourcesOf(layer.shard, worker);
        if (sources.empty()) {
          result.moves.clear();
          result.reason = absl::StrCat("nobody holds ", ToString(layer.shard), " at step ", step_);
          return result;
        }
        moves.push_back({layer.shard, sources});
        ++shards;
      }
    }
    std::erase_if(result.moves, [](const auto& entry) { return entry.second.empty(); });
    result.kept = true;
    result.reason = shards == 0 ? "no layer moves" : absl::StrCat(shards, " layers move");
    return result;
  }

 private:
  bool Valid(const HeldLayer& layer) const {
    return layer.written && layer.optimizer_step == step_;
  }

  // The receiver itself if it can, else who has lent least so far.
  std::optional<NodeId> Lender(const LayerShard& shard, const NodeId& receiver) {
    std::optional<NodeId> best;
    for (const auto& [worker, held] : holdings_) {
      const bool has = std::any_of(held.begin(), held.end(), [&](const HeldLayer& layer) {
        return layer.shard == shard && !layer.table_only && Valid(layer);
      });
      if (!has) continue;
      if (worker == receiver) return worker;
      if (!best || lent_[worker] < lent_[*best]) best = worker;
    }
    return best;
  }

  std::vector<ShardSource> SourcesOf(const LayerShard& shard, const NodeId& receiver) {
    std::set<std::vector<int32_t>> cuts;
    for (const auto& [worker, held] : holdings_) {
      for (const HeldLayer& layer : held) {
        if (layer.shard.layer == shard.layer) cuts.insert(layer.shard.tensor_shares);
      }
    }
    if (const auto lender = Lender(shard, receiver)) {
      ++lent_[*lender];
      return {{shard, *lender}};
    }
    cuts.erase(shard.tensor_shares);
    for (const std::vector<int32_t>& cut : cuts) {
      std::vector<ShardSource> all;
      for (int32_t rank = 0; rank < static_cast<int32_t>(cut.size()); ++rank) {
        const LayerShard part{shard.layer, rank, cut};
        const auto lender = Lender(part, receiver);
        if (!lender) break;
        all.push_back({part, *lender});
      }
      if (all.size() != cut.size()) continue;
      for (const ShardSource& source : all) ++lent_[source.from];
      return all;
    }
    return {};
  }

  const Holdings& holdings_;
  const int64_t step_;
  std::map<NodeId, int64_t> lent_;
};

}  // namespace

absl::Status CheckHoldings(const IslandPlan& plan, const Holdings& holdings) {
  const std::vector<int32_t> shares = TensorSharesOf(plan);
  // What is given to each device, by layer, and whether it has been listed.
  std::map<std::string, std::map<int32_t, bool>> given;
  std::map<std::string, int32_t> rank_of;
  for (const PlanReplica& replica : plan.replicas) {
    for (const PlanStage& stage : replica.stages) {
      for (size_t rank = 0; rank < stage.devices.size(); ++rank) {
        rank_of[stage.devices[rank]] = static_cast<int32_t>(rank);
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
      bool fits = device != given.end() && WorkerOfDevice(here.device) == worker &&
                  here.shard.rank == rank_of[here.device] && here.shard.tensor_shares == shares;
      if (fits && here.table_only) {
        fits = here.shard.layer == 0;
      } else if (fits) {
        const auto layer = device->second.find(here.shard.layer);
        fits = layer != device->second.end() && !std::exchange(layer->second, true);
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
      return absl::InternalError(absl::StrCat(WorkerOfDevice(device), " does not say that ", device,
                                              " holds layer ", layer, ", which plan ", plan.number,
                                              " gives it: are all workers of one version?"));
    }
  }
  return absl::OkStatus();
}

LayerMoves PlanMoves(const Holdings& holdings, std::vector<int64_t> steps) {
  if (steps.empty()) {
    std::set<int64_t, std::greater<>> seen;
    for (const auto& [worker, held] : holdings) {
      for (const HeldLayer& layer : held) {
        if (layer.written) seen.insert(layer.optimizer_step);
      }
    }
    steps.assign(seen.begin(), seen.end());
  }
  LayerMoves first;
  first.reason = "nobody holds anything yet";
  for (size_t i = 0; i < steps.size(); ++i) {
    LayerMoves moves = Planner(holdings, steps[i]).Plan();
    if (moves.kept) return moves;
    if (i == 0 || steps.size() == 1) first.reason = moves.reason;
  }
  return first;
}

}  // namespace atl::worker
