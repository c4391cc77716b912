#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "coordinator/planner/contest.h"
#include "coordinator/planner/groups/group_order.h"
#include "coordinator/planner/replica_problem.h"

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
      const int a = replica.stages[from.last - 1].devices[0];
      const int b = replica.stages[&from == &to ? from.first : to.first].devices[0];
      problem.links.back().push_back(LinkAtShare(cluster, layout, a, b));
    }
  }
  return OrderByBeam(problem);
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
bool MoveLayer(const Change& change, std::vector<Stage>& stages) {
  const int move = change.to > change.from ? -1 : 1;
  const size_t first = std::min(change.from, change.to), last = std::max(change.from, change.to);
  for (size_t boundary = first; boundary < last; ++boundary) {
    stages[boundary].last_layer += move;
    stages[boundary + 1].first_layer += move;
  }
  return std::ranges::all_of(
      stages, [](const Stage& stage) { return stage.first_layer < stage.last_layer; });
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

std::vector<Change> ListChanges(const Layout& layout, const Outcome& outcome) {
  const ReplicaOutcome& kind = SlowestKind(outcome);
  const size_t stages = layout.replicas[kind.replicas[0]].stages.size();
  const auto busy = [&](size_t s) {
    return kind.found.result.devices[kind.problem.chunks[s].device].busy_ns;
  };
  std::vector<Change> changes;
  for (size_t from = 0; from < stages; ++from) {
    for (size_t to = 0; to < stages; ++to) {
      if (from != to) changes.push_back({from, to});
    }
  }
  // By what the busier one loses.
  std::ranges::stable_sort(changes, {}, [&](const Change& c) { return busy(c.to) - busy(c.from); });
  return changes;
}

bool Apply(const Outcome& outcome, const Change& change, Layout& layout) {
  return std::ranges::all_of(SlowestKind(outcome).replicas,
                             [&](int r) { return MoveLayer(change, layout.replicas[r].stages); });
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
