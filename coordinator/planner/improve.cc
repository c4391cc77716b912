#include "coordinator/planner/improve.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "coordinator/planner/groups/group_order.h"

namespace atl::plan {
namespace {

// Stages [first, last) of a replica on entities of one type and size in one site.
struct Run {
  int type = 0;
  int size = 1;
  std::string site;
  int first = 0;
  int last = 0;
};

std::vector<Run> FindRuns(const Cluster& cluster, const Replica& replica) {
  std::vector<Run> runs;
  for (size_t s = 0; s < replica.stages.size(); ++s) {
    const Device& device = cluster.devices[replica.stages[s].devices[0]];
    const int at = static_cast<int>(s);
    const int size = static_cast<int>(replica.stages[s].devices.size());
    if (!runs.empty() && runs.back().type == device.type && runs.back().size == size &&
        runs.back().site == device.site) {
      runs.back().last = at + 1;
    } else {
      runs.push_back({device.type, size, device.site, at, at + 1});
    }
  }
  return runs;
}

std::string MakeRunsKey(const std::vector<Run>& runs, int micro_batches) {
  std::string key = absl::StrCat(micro_batches);
  for (const Run& run : runs) {
    absl::StrAppend(&key, "|", run.site, ",", run.type, ",", run.size, ",", run.last);
  }
  return key;
}

// Replicas that cross between the same sites share the link: each is assumed to get its part.
Link LinkBetweenRuns(const Cluster& cluster, const Layout& layout, const Replica& replica,
                     const Run& from, const Run& to) {
  const int a = replica.stages[from.last - 1].devices[0];
  const int b = replica.stages[&from == &to ? from.first : to.first].devices[0];
  if (a == b) return {0, 1e18, {}};  // a group of one: nothing goes between its members
  Link link = cluster.LinkBetween(a, b);
  if (from.site != to.site) {
    const double share = 1.0 / static_cast<double>(layout.replicas.size());
    link.bytes_per_s *= share;
    for (LinkEdge& edge : link.edges) edge.bytes_per_s *= share;
  }
  return link;
}

std::optional<GroupOrder> OrderRuns(const Cluster& cluster, const Costs& costs,
                                    const Layout& layout, const Replica& replica,
                                    const std::vector<Run>& runs) {
  std::map<std::pair<int, int>, StageCosts> alike;  // by type and size
  for (const Run& run : runs) {
    if (alike.count({run.type, run.size}) > 0) continue;
    alike.emplace(std::pair(run.type, run.size),
                  costs.For(cluster.types[run.type], run.size, layout.micro_batch));
  }
  OrderProblem problem;
  problem.micro_batches = replica.micro_batches;
  for (const Layer& layer : costs.model().layers) {
    problem.out_bytes.push_back(static_cast<double>(layer.out_bytes) * layout.micro_batch);
  }
  for (const Run& from : runs) {
    problem.groups.push_back({from.last - from.first, &alike.at({from.type, from.size}),
                              costs.UsableBytes(cluster.types[from.type])});
    problem.links.emplace_back();
    for (const Run& to : runs) {
      problem.links.back().push_back(LinkBetweenRuns(cluster, layout, replica, from, to));
    }
  }
  return OrderByBeam(problem, {});
}

// The stages in the order found, each group's layers split evenly among its members.
std::vector<Stage> BuildStages(const Cluster& cluster, const Costs& costs, const Layout& layout,
                               const Replica& replica, const std::vector<Run>& runs,
                               const GroupOrder& order) {
  std::vector<Stage> stages;
  for (size_t g = 0; g < order.groups.size(); ++g) {
    const Run& run = runs[order.groups[g]];
    const StageCosts stage_costs = costs.For(cluster.types[run.type], run.size, layout.micro_batch);
    const std::vector<int> cuts =
        SplitEvenly(stage_costs, order.cuts[g], order.cuts[g + 1], run.last - run.first);
    for (int s = run.first; s < run.last; ++s) {
      const int first = cuts[s - run.first];
      const int last = cuts[s - run.first + 1];
      if (first < last) stages.push_back({replica.stages[s].devices, first, last});
    }
  }
  return stages;
}

// Moves a layer from one stage to another of the slowest kind, near or far: the stages between keep
// their numbers of layers. (Far moves find JEEVES's divisions, where the first stages, which hold
// the most micro-batches, get fewer layers than all others.)
bool MoveLayer(const Outcome& outcome, Rng& rng, Layout& layout) {
  const ReplicaOutcome& kind = SlowestKind(outcome);
  const size_t stages = layout.replicas[kind.replicas[0]].stages.size();
  if (stages < 2) return false;
  const size_t first = rng.Below(stages - 1);
  const size_t last = first + 1 + (rng.Chance(0.5) ? 0 : rng.Below(stages - 1 - first));
  const int move = rng.Chance(0.5) ? 1 : -1;
  for (const int r : kind.replicas) {
    std::vector<Stage>& all = layout.replicas[r].stages;
    for (size_t boundary = first; boundary < last; ++boundary) {
      all[boundary].last_layer += move;
      all[boundary + 1].first_layer += move;
    }
    for (size_t s = first; s <= last; ++s) {
      if (all[s].first_layer >= all[s].last_layer) return false;
    }
  }
  return true;
}

// Swaps the devices of two neighbouring stages in all slowest replicas, and cuts again.
bool SwapStages(const Cluster& cluster, const Costs& costs, const Outcome& outcome, Rng& rng,
                Layout& layout) {
  const ReplicaOutcome& kind = SlowestKind(outcome);
  const size_t stages = layout.replicas[kind.replicas[0]].stages.size();
  if (stages < 2) return false;
  const size_t first = rng.Below(stages - 1);
  for (const int r : kind.replicas) {
    Replica& replica = layout.replicas[r];
    std::swap(replica.stages[first].devices, replica.stages[first + 1].devices);
    if (!CutReplica(cluster, costs, layout.micro_batch, replica).ok()) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::optional<Layout> Reordered(const Cluster& cluster, const Costs& all_costs,
                                const Layout& layout) {
  const Costs& costs = all_costs.ForReplicas(layout.replicas.size());
  if (layout.shape != Shape::kPlain) return std::nullopt;
  Layout better = layout;
  std::map<std::string, std::optional<GroupOrder>> known;
  bool changed = false;
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    const Replica& replica = layout.replicas[r];
    const std::vector<Run> runs = FindRuns(cluster, replica);
    if (runs.size() < 2) continue;
    const auto [order, added] = known.try_emplace(MakeRunsKey(runs, replica.micro_batches));
    if (added) {
      order->second = OrderRuns(cluster, costs, layout, replica, runs);
    }
    if (!order->second.has_value()) continue;
    better.replicas[r].stages = BuildStages(cluster, costs, layout, replica, runs, *order->second);
    const std::vector<Stage>& before = replica.stages;
    const std::vector<Stage>& after = better.replicas[r].stages;
    changed = changed || !std::equal(before.begin(), before.end(), after.begin(), after.end(),
                                     [](const Stage& a, const Stage& b) {
                                       return a.devices == b.devices &&
                                              a.first_layer == b.first_layer &&
                                              a.last_layer == b.last_layer;
                                     });
  }
  if (!changed) return std::nullopt;
  return better;
}

bool Perturb(const Cluster& cluster, const Costs& costs, const Outcome& outcome, Rng& rng,
             Layout& layout) {
  if (layout.shape != Shape::kPlain || rng.Chance(0.5)) {
    return MoveLayer(outcome, rng, layout);
  }
  return SwapStages(cluster, costs.ForReplicas(layout.replicas.size()), outcome, rng, layout);
}

bool StaysInSites(const Cluster& cluster, const Layout& layout) {
  for (const Replica& replica : layout.replicas) {
    if (replica.stages.size() < 2) return false;
    const std::string& site = cluster.devices[replica.stages[0].devices[0]].site;
    for (const Stage& stage : replica.stages) {
      if (cluster.devices[stage.devices[0]].site != site) return false;
    }
  }
  return true;
}

double ComputeBubbleFraction(const Outcome& outcome) {
  const ReplicaOutcome& kind = SlowestKind(outcome);
  sim::Nanos busiest_ns = 1;
  for (const sim::DeviceUse& use : kind.found.result.devices) {
    busiest_ns = std::max(busiest_ns, use.busy_ns);
  }
  return static_cast<double>(kind.found.result.makespan_ns) / static_cast<double>(busiest_ns) - 1;
}

}  // namespace atl::plan
