#include "coordinator/core/shards/move_plan.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/estimate.h"
#include "coordinator/core/shards/replicas.h"

namespace atl {
namespace {

struct Load {
  const PlacementServer* server = nullptr;
  int64_t held = 0;
  int64_t moved = 0;  // elements that come
  double cost = 1;
};

class Planner {
 public:
  Planner(const std::vector<ShardDescriptor>& shards, int64_t replicas,
          const std::vector<PlacementServer>& servers, int64_t bytes_per_element, bool balanced)
      : bytes_per_element_(bytes_per_element), shards_(shards.size()), balanced_(balanced) {
    for (const PlacementServer& server : servers) {
      loads_[server.name] = {&server, 0, 0, server.cost};
    }
    for (int64_t rank = 0; rank < replicas; ++rank) {
      for (const ShardDescriptor& shard : shards) {
        const ShardReplica* holder =
            FindReplica(shard, rank == 0 ? ReplicaRole::kActive : ReplicaRole::kStandby);
        holder_.push_back(holder == nullptr ? NodeId() : holder->server);
        elements_.push_back(shard.elements);
        if (holder != nullptr) loads_[holder->server].held += shard.elements;
      }
    }
    before_ = holder_;
  }

  MovePlan Run() {
    MovePlan plan;
    plan.trouble = MakeCopies();
    const bool copies = holder_ != before_;
    if (!copies) {
      const std::string full = Empty();
      if (plan.trouble.empty()) plan.trouble = full;
    }
    const std::string balanced = copies ? "" : Balance();
    for (size_t i = 0; i < holder_.size(); ++i) {
      if (holder_[i] == before_[i]) continue;
      plan.moves.push_back({static_cast<ShardId>(i % shards_), holder_[i], before_[i]});
    }
    plan.reason = copies             ? "shards have one copy"
                  : emptied_.empty() ? balanced
                                     : absl::StrCat(emptied_, " is to hold none");
    plan.balances = balances_;
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
  // The holder of the other replica of a shard that is kept twice; "": no server.
  NodeId FindCounterpartHolder(size_t slot) const {
    const size_t counterpart = slot < shards_ ? slot + shards_ : slot - shards_;
    return counterpart < holder_.size() ? holder_[counterpart] : NodeId();
  }
  std::string FindServerSite(const NodeId& server) const {
    const auto load = loads_.find(server);
    return load == loads_.end() || load->second.server == nullptr ? "" : load->second.server->site;
  }
  bool IsApart(size_t slot, const NodeId& server) const {
    const NodeId counterpart = FindCounterpartHolder(slot);
    return counterpart.empty() || FindServerSite(counterpart) != FindServerSite(server);
  }
  // At another site than its counterpart if one has memory for it.
  NodeId Cheapest(size_t slot) const {
    const NodeId name = Cheapest(slot, /*apart=*/true);
    return name.empty() ? Cheapest(slot, /*apart=*/false) : name;
  }
  NodeId Cheapest(size_t slot, bool apart) const {
    const int64_t elements = elements_[slot];
    const NodeId counterpart = FindCounterpartHolder(slot);
    const Load* best = nullptr;
    NodeId name;
    for (const auto& [server, load] : loads_) {
      if (server == holder_[slot] || server == counterpart || !Fits(load, elements)) continue;
      if (apart && !IsApart(slot, server)) continue;
      if (best != nullptr && Cost(load, elements) >= Cost(*best, elements)) continue;
      best = &load;
      name = server;
    }
    return name;
  }
  // Returns whether the fullest server's load, which is `most`, falls enough by the move of this
  // shard.
  bool IsWorthMoving(size_t shard, const NodeId& to, double most) {
    constexpr double kLeastGain = 0.1;
    constexpr double kRounds = 50;      // that the estimates are sure to hold for
    constexpr double kBytesARound = 8;  // of an element, there and back
    const Load& load = loads_[to];
    const double gain = most - Cost(load, elements_[shard]);
    const double moved =
        static_cast<double>(elements_[shard]) * load.cost * static_cast<double>(bytes_per_element_);
    return gain >= kLeastGain * most && IsWorthChanging({gain, moved / kBytesARound, kRounds});
  }
  void Move(size_t shard, const NodeId& to) {
    if (!holder_[shard].empty()) loads_[holder_[shard]].held -= elements_[shard];
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

  std::string WhyNone(size_t slot) const {
    const NodeId counterpart = FindCounterpartHolder(slot);
    const bool any = std::any_of(loads_.begin(), loads_.end(), [&](const auto& entry) {
      return entry.first != counterpart && entry.second.server != nullptr &&
             entry.second.server->takes;
    });
    if (!any) return "no other parameter server is attached that takes shards";
    return absl::StrCat("no other attached server has ", elements_[slot] * bytes_per_element_,
                        " bytes free");
  }

  std::string MakeCopies() {
    std::string trouble;
    for (const size_t slot : LargestFirst()) {
      if (!holder_[slot].empty()) continue;
      const NodeId to = Cheapest(slot);
      if (to.empty()) {
        trouble = absl::StrCat("shard ", slot % shards_, " has one copy: ", WhyNone(slot));
        continue;
      }
      Move(slot, to);
    }
    return trouble;
  }

  std::string Empty() {
    std::string trouble;
    for (const size_t shard : LargestFirst()) {
      const NodeId from = holder_[shard];
      if (from.empty()) continue;
      const Load& load = loads_[from];
      if (load.server == nullptr || !load.server->leaves) continue;
      const NodeId to = Cheapest(shard);
      if (to.empty()) {
        trouble = absl::StrCat("server ", from, " cannot be emptied: no other attached server has ",
                               elements_[shard] * bytes_per_element_, " bytes free for shard ",
                               shard % shards_);
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
      if (balanced_ && !balances_ && most <= kUrgentImbalance * held / capacity) break;
      bool moved = false;
      for (const size_t shard : LargestFirst()) {
        if (holder_[shard] != fullest) continue;
        const NodeId to = Cheapest(shard, /*apart=*/IsApart(shard, fullest));
        if (to.empty() || !IsWorthMoving(shard, to, most)) continue;
        Move(shard, to);
        moved = balances_ = true;
        break;
      }
      if (!moved) break;
    }
    return absl::StrCat("a server had more than ", kImbalance, " times its share");
  }

  const int64_t bytes_per_element_;
  const size_t shards_;
  const bool balanced_;  // within the hour
  std::map<NodeId, Load> loads_;
  std::vector<NodeId> holder_, before_;  // first of the active replicas, then of the standbys
  std::vector<int64_t> elements_;
  std::string emptied_;
  bool balances_ = false;
};

}  // namespace

MovePlan PlanShardMoves(const std::vector<ShardDescriptor>& shards, int64_t replicas,
                        const std::vector<PlacementServer>& servers, int64_t bytes_per_element,
                        bool balanced) {
  return Planner(shards, replicas, servers, bytes_per_element, balanced).Run();
}

}  // namespace atl
