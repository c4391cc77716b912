#include <algorithm>
#include <vector>

#include "coordinator/planner/contest.h"

namespace atl::plan {
namespace {

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
