#include "coordinator/planner/together.h"

#include <map>

#include "coordinator/planner/replica_problem.h"

namespace atl::plan {
namespace {

class Builder {
 public:
  Builder(const Cluster& cluster, const Layout& layout)
      : cluster_(cluster), layout_(layout), sharing_(ComputeLinkSharing(cluster, layout)) {
    // In their order messages have the links to themselves.
    for (auto& [id, shared_link] : sharing_.shared_links) shared_link.replicas = 1;
  }

  void Add(int r, const ReplicaOutcome& kind) {
    const sim::Problem& alone = kind.problem;
    sim::Problem& all = together_.problem;
    all.fixed_slots = alone.fixed_slots;
    const auto chunks = static_cast<int>(all.chunks.size());
    const auto devices = static_cast<int>(all.devices.size());
    const auto links = static_cast<int>(all.network.links.size());
    const auto trunks = static_cast<int>(all.network.trunks.size());
    all.devices.insert(all.devices.end(), alone.devices.begin(), alone.devices.end());
    all.network.trunks.insert(all.network.trunks.end(), alone.network.trunks.begin(),
                              alone.network.trunks.end());
    for (sim::Link link : alone.network.links) {
      link.lane = -1;
      for (sim::Edge& edge : link.edges) {
        for (int& trunk : edge.trunks) trunk += trunks;
      }
      all.network.links.push_back(std::move(link));
    }
    together_.devices.resize(all.devices.size());
    together_.link_ends.resize(all.network.links.size());
    const std::vector<Stage>& stages = layout_.replicas[r].stages;
    for (size_t s = 0; s < alone.chunks.size(); ++s) {
      sim::Chunk& chunk = all.chunks.emplace_back(alone.chunks[s]);
      chunk.device += devices;
      together_.devices[chunk.device] = stages[s].devices;
      if (chunk.forward_link == sim::kNoLink) continue;
      chunk.forward_link += links;
      chunk.backward_link += links;
      ShareLink(stages[s], stages[s + 1], chunk.forward_link);
      ShareLink(stages[s + 1], stages[s], chunk.backward_link);
    }
    all.pipelines.push_back(
        {chunks, static_cast<int>(alone.chunks.size()), alone.pipelines[0].micro_batches, r});
    for (std::vector<sim::Op> ops : kind.found.schedule.device_ops) {
      for (sim::Op& op : ops) op.chunk += chunks;
      together_.schedule.device_ops.push_back(std::move(ops));
    }
  }

  Together Take() { return std::move(together_); }

 private:
  // The link, once, at its own bandwidth and on its lane.
  void ShareLink(const Stage& from, const Stage& to, int link) {
    together_.link_ends[link] = {from.devices[0], to.devices[0]};
    sim::Link& shared = together_.problem.network.links[link];
    if (shared.lane >= 0 || FindSharedLink(cluster_, sharing_, from, to) == nullptr) return;
    const LinkSharing::Id id = *FindSharedLinkId(cluster_, from, to);
    const auto [lane, added] = lane_of_.try_emplace(id, lane_of_.size());
    if (added) {
      ++together_.problem.network.lanes;
      together_.lanes.push_back(id);
    }
    shared.lane = static_cast<int>(lane->second);
    const Link plan_link = LinkBetweenStages(cluster_, sharing_, from, to);
    shared.edges[0].bytes_per_s =
        plan_link.edges.empty() ? plan_link.bytes_per_s : plan_link.edges[0].bytes_per_s;
  }

  const Cluster& cluster_;
  const Layout& layout_;
  LinkSharing sharing_;
  std::map<LinkSharing::Id, size_t> lane_of_;
  Together together_;
};

}  // namespace

Together PutTogether(const Cluster& cluster, const Layout& layout, const Outcome& outcome) {
  std::vector<const ReplicaOutcome*> kinds(layout.replicas.size(), nullptr);
  for (const ReplicaOutcome& kind : outcome.kinds) {
    for (const int r : kind.replicas) kinds[r] = &kind;
  }
  Builder builder(cluster, layout);
  for (size_t r = 0; r < kinds.size(); ++r) builder.Add(static_cast<int>(r), *kinds[r]);
  return builder.Take();
}

}  // namespace atl::plan
