#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "coordinator/planner/groups/refine.h"
#include "coordinator/planner/replica_problem.h"

namespace atl::plan {
namespace {

constexpr size_t kMostMembers = 255;  // of a group

// Entities that are alike: of one type, size and site; and, where links are to distinguish them, of
// one node or device where these have links of their own.
using Like = std::tuple<int, size_t, std::string, std::string, int>;

Like MakeEntityKey(const Cluster& cluster, const Stage& stage, bool by_links) {
  const int first = stage.devices[0];
  const Device& device = cluster.devices[first];
  return {device.type, stage.devices.size(), device.site,
          by_links && !cluster.node_to_node.empty() ? device.node : "",
          by_links && !cluster.measured.empty() ? first : -1};
}

// One replica as a problem, and what its groups are.
class ReplicaMapping {
 public:
  ReplicaMapping(const Cluster& cluster, const Costs& costs, const Layout& layout,
                 const Replica& replica, bool by_links)
      : cluster_(cluster), layout_(layout), replica_(replica), by_links_(by_links) {
    problem_.micro_batches = replica.micro_batches;
    for (const Layer& layer : costs.model().layers) {
      problem_.out_bytes.push_back(static_cast<double>(layer.out_bytes) * layout.micro_batch);
    }
    std::map<Like, int> index;
    for (size_t s = 0; s < replica.stages.size(); ++s) {
      const auto [like, added] = index.try_emplace(
          MakeEntityKey(cluster, replica.stages[s], by_links), static_cast<int>(index.size()));
      if (added) members_.emplace_back();
      members_[static_cast<size_t>(like->second)].push_back(static_cast<int>(s));
      known_.groups.push_back(like->second);
      known_.cuts.push_back(replica.stages[s].first_layer);
    }
    known_.cuts.push_back(replica.stages.back().last_layer);
    AddGroups(costs);
  }

  const OrderProblem& problem() const { return problem_; }
  const GroupOrder& known() const { return known_; }  // as the layout has it
  bool IsTooLarge() const {
    return std::any_of(members_.begin(), members_.end(),
                       [](const auto& members) { return members.size() > kMostMembers; });
  }

  // Equal for replicas that are mapped alike.
  std::string Key() const {
    std::string key = absl::StrCat(replica_.micro_batches);
    for (const std::vector<int>& members : members_) {
      const auto [type, size, site, node, device] =
          MakeEntityKey(cluster_, replica_.stages[members[0]], by_links_);
      absl::StrAppend(&key, "|", type, ",", size, ",", site, ",", node, ",", device, ",",
                      members.size());
    }
    return key;
  }

  // Stage i becomes a member of groups[i].
  std::vector<Stage> BuildStages(const GroupOrder& mapping) const {
    std::vector<size_t> next(members_.size(), 0);
    std::vector<Stage> stages;
    for (size_t s = 0; s < mapping.groups.size(); ++s) {
      const auto g = static_cast<size_t>(mapping.groups[s]);
      const Stage& from = replica_.stages[members_[g][next[g]++]];
      stages.push_back({from.devices, mapping.cuts[s], mapping.cuts[s + 1]});
    }
    return stages;
  }

 private:
  void AddGroups(const Costs& costs) {
    for (const std::vector<int>& members : members_) {
      const std::vector<int>& devices = replica_.stages[members[0]].devices;
      costs_.push_back(GroupCosts(cluster_, costs, layout_.micro_batch, devices, {}));
    }
    for (size_t g = 0; g < members_.size(); ++g) {
      const DeviceType& type =
          cluster_.types[cluster_.devices[GetFirstDevice(members_[g][0])].type];
      problem_.groups.push_back(
          {static_cast<int>(members_[g].size()), &costs_[g], costs.UsableBytes(type)});
      problem_.links.emplace_back();
      for (const std::vector<int>& to : members_) {
        problem_.links.back().push_back(LinkBetween(members_[g], to));
      }
    }
  }

  int GetFirstDevice(int stage) const { return replica_.stages[stage].devices[0]; }

  Link LinkBetween(const std::vector<int>& from, const std::vector<int>& to) const {
    return LinkAtShare(cluster_, layout_, GetFirstDevice(from.front()), GetFirstDevice(to.back()));
  }

  const Cluster& cluster_;
  const Layout& layout_;
  const Replica& replica_;
  const bool by_links_;
  std::vector<std::vector<int>> members_;  // stages of the replica, by group
  std::vector<StageCosts> costs_;          // by group; the problem points into it
  OrderProblem problem_;
  GroupOrder known_;
};

// With as many micro-batches in flight as memory allows.
std::optional<GroupOrder> Map(const ReplicaMapping& replica,
                              const MappingOptions& requested_options) {
  MappingOptions options = requested_options;
  for (int in_flight = replica.problem().micro_batches;; in_flight = (in_flight + 1) / 2) {
    options.in_flight = in_flight;
    GroupOrder known = replica.known();
    known.seconds = MappingSeconds(replica.problem(), known, options);
    const bool fits = known.seconds < INFINITY;
    std::optional<GroupOrder> found =
        MapStages(replica.problem(), fits ? &known : nullptr, options);
    if (found || in_flight == 1) return found;
  }
}

// Each group's layers split evenly among its members.
GroupOrder SplitGroups(const OrderProblem& problem, const GroupOrder& order) {
  GroupOrder split;
  for (size_t i = 0; i < order.groups.size(); ++i) {
    const OrderGroup& group = problem.groups[order.groups[i]];
    const std::vector<int> cuts =
        SplitEvenly(*group.costs, order.cuts[i], order.cuts[i + 1], group.members);
    for (int member = 0; member < group.members; ++member) {
      if (cuts[member] == cuts[member + 1]) continue;
      split.groups.push_back(order.groups[i]);
      split.cuts.push_back(cuts[member]);
    }
  }
  split.cuts.push_back(order.cuts.back());
  return split;
}

bool SamePlacement(const Replica& a, const Replica& b) {
  return std::equal(a.stages.begin(), a.stages.end(), b.stages.begin(), b.stages.end(),
                    [](const Stage& x, const Stage& y) {
                      return x.devices == y.devices && x.first_layer == y.first_layer &&
                             x.last_layer == y.last_layer;
                    });
}

// `find` is called once for replicas that are alike; those for which it finds nothing stay as they
// are.
template <class Find>
std::optional<Layout> MapReplicas(const Cluster& cluster, const Costs& all_costs,
                                  const Layout& layout, bool by_links, const Find& find) {
  const Costs& costs = all_costs.ForReplicas(layout.replicas.size());
  if (layout.shape != Shape::kPlain || !layout.tensor_split_ratios.empty()) return std::nullopt;
  Layout mapped = layout;
  std::map<std::string, std::optional<GroupOrder>> known;
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    const ReplicaMapping replica(cluster, costs, layout, layout.replicas[r], by_links);
    const auto [mapping, added] = known.try_emplace(replica.Key());
    if (added) mapping->second = find(replica);
    if (!mapping->second) continue;
    Replica& target = mapped.replicas[r];
    target.stages = replica.BuildStages(*mapping->second);
    SaveMemory(cluster, costs, layout.micro_batch, target.micro_batches, target);
  }
  return mapped;
}

}  // namespace

std::optional<Layout> Reordered(const Cluster& cluster, const Costs& costs, const Layout& layout) {
  std::optional<Layout> ordered =
      MapReplicas(cluster, costs, layout, /*by_links=*/false,
                  [](const ReplicaMapping& replica) -> std::optional<GroupOrder> {
                    const OrderProblem& problem = replica.problem();
                    if (problem.groups.size() < 2) return std::nullopt;
                    const std::optional<GroupOrder> order = OrderByBeam(problem);
                    return order ? std::optional(SplitGroups(problem, *order)) : std::nullopt;
                  });
  if (ordered && std::ranges::equal(layout.replicas, ordered->replicas, SamePlacement)) {
    return std::nullopt;
  }
  return ordered;
}

std::optional<Layout> Mapped(const Cluster& cluster, const Costs& costs, const Layout& layout,
                             const MappingOptions& options) {
  MappingOptions left = options;
  bool all = true;
  const auto find = [&](const ReplicaMapping& replica) -> std::optional<GroupOrder> {
    std::optional<GroupOrder> found;
    if (all && !replica.IsTooLarge()) found = Map(replica, left);
    all = found.has_value();
    if (found) left.max_nodes -= found->nodes;  // none left: as it is
    return found;
  };
  std::optional<Layout> mapped = MapReplicas(cluster, costs, layout, /*by_links=*/true, find);
  return all ? mapped : std::nullopt;
}

}  // namespace atl::plan
