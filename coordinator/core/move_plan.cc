#include "coordinator/core/move_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/placement.h"

namespace atl {
namespace {

struct Load {
  const MoveServer* server = nullptr;
  int64_t held = 0;
  int64_t moved = 0;  // elements that come
  double cost = 1;
};

class Planner {
 public:
  Planner(const std::vector<ShardPlacement>& shards, const std::vector<MoveServer>& servers,
          int64_t bytes_per_element)
      : bytes_per_element_(bytes_per_element) {
    for (const MoveServer& server : servers) {
      loads_[server.name] = {&server, 0, 0, server.cost};
    }
    for (const ShardPlacement& shard : shards) {
      holder_.push_back(shard.server);
      elements_.push_back(shard.elements);
      loads_[shard.server].held += shard.elements;
    }
    before_ = holder_;
  }

  MovePlan Run() {
    MovePlan plan;
    plan.trouble = Empty();
    const std::string balanced = Balance();
    for (size_t i = 0; i < holder_.size(); ++i) {
      if (holder_[i] == before_[i]) continue;
      plan.moves.push_back({static_cast<ShardId>(i), holder_[i], /*fill=*/false});
    }
    plan.reason = emptied_.empty() ? balanced : absl::StrCat(emptied_, " is to hold none");
    return plan;
  }

 private:
  bool Fits(const Load& load, int64_t elements) const {
    return load.server != nullptr && load.server->takes &&
           (load.moved + elements) * bytes_per_element_ <= load.server->free_bytes;
  }
  static double Cost(const Load& load, int64_t more) {
    return static_cast<double>(load.held + more) * load.cost;
  }
  NodeId Cheapest(int64_t elements, const NodeId& except) const {
    const Load* best = nullptr;
    NodeId name;
    for (const auto& [server, load] : loads_) {
      if (server == except || !Fits(load, elements)) continue;
      if (best != nullptr && Cost(load, elements) >= Cost(*best, elements)) continue;
      best = &load;
      name = server;
    }
    return name;
  }
  void Move(size_t shard, const NodeId& to) {
    loads_[holder_[shard]].held -= elements_[shard];
    loads_[to].held += elements_[shard];
    loads_[to].moved += elements_[shard];
    holder_[shard] = to;
  }
  std::vector<size_t> LargestFirst() const {
    std::vector<size_t> order(holder_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return elements_[a] > elements_[b]; });
    return order;
  }

  std::string Empty() {
    std::string trouble;
    for (const size_t shard : LargestFirst()) {
      const NodeId from = holder_[shard];
      const Load& load = loads_[from];
      if (load.server == nullptr || !load.server->leaves) continue;
      const NodeId to = Cheapest(elements_[shard], from);
      if (to.empty()) {
        trouble =
            absl::StrCat("server ", from, " cannot be emptied: no other attached server has ",
                         elements_[shard] * bytes_per_element_, " bytes free for shard ", shard);
        continue;
      }
      emptied_ = absl::StrCat("server ", from);
      Move(shard, to);
    }
    return trouble;
  }

  std::string Balance() {
    for (size_t turn = 0; turn < holder_.size(); ++turn) {
      NodeId fullest;
      double held = 0, capacity = 0, most = 0;
      int count = 0;
      for (const auto& [name, load] : loads_) {
        if (load.server == nullptr || (!load.server->takes && load.held == 0)) continue;
        held += static_cast<double>(load.held);
        capacity += 1 / load.cost;
        ++count;
        if (Cost(load, 0) > most) most = Cost(load, 0), fullest = name;
      }
      if (count < 2 || most <= kImbalance * held / capacity || fullest.empty()) break;
      bool moved = false;
      for (const size_t shard : LargestFirst()) {
        if (holder_[shard] != fullest) continue;
        const NodeId to = Cheapest(elements_[shard], fullest);
        if (to.empty() || Cost(loads_[to], elements_[shard]) > 0.9 * most) continue;
        Move(shard, to);
        moved = true;
        break;
      }
      if (!moved) break;
    }
    return absl::StrCat("a server had more than ", kImbalance, " times its share");
  }

  const int64_t bytes_per_element_;
  std::map<NodeId, Load> loads_;
  std::vector<NodeId> holder_, before_;
  std::vector<int64_t> elements_;
  std::string emptied_;
};

}  // namespace

MovePlan PlanShardMoves(const std::vector<ShardPlacement>& shards,
                        const std::vector<MoveServer>& servers, int64_t bytes_per_element) {
  return Planner(shards, servers, bytes_per_element).Run();
}

}  // namespace atl
