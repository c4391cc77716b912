#include "coordinator/planner/estimate.h"

#include <algorithm>
#include <utility>

#include "coordinator/planner/gradient_sync.h"

namespace atl::plan {

double Estimator::Seconds(const Layout& layout) {
  CountSharing(layout);
  double slowest = 0;
  for (const Replica& replica : layout.replicas) {
    slowest = std::max(slowest, ReplicaSeconds(layout, replica));
  }
  return slowest + SyncSeconds(index_, costs_, job_, layout);
}

// Counts the shared links as ComputeLinkSharing has them.
void Estimator::CountSharing(const Layout& layout) {
  const auto links = static_cast<size_t>(index_.sites()) * index_.sites();
  shared_links_.assign(links + index_.nodes(), {});
  std::vector<int> own;  // of a replica
  for (const Replica& replica : layout.replicas) {
    own.clear();
    for (size_t s = 0; s + 1 < replica.stages.size(); ++s) {
      const Stage &here = replica.stages[s], &next = replica.stages[s + 1];
      for (const auto& [from, to] : {std::pair(&here, &next), std::pair(&next, &here)}) {
        const int index = GetSharedLinkIndex(*from, *to);
        if (index < 0) continue;
        LinkSharing::SharedLink& shared_link = shared_links_[index];
        ++shared_link.stage_links;
        if (static_cast<size_t>(index) >= links) {
          shared_link.card_bytes_per_s = index_.CardBytesPerSecond(from->devices[0]);
        }
        if (std::count(own.begin(), own.end(), index) > 0) continue;
        own.push_back(index);
        ++shared_link.replicas;
      }
    }
  }
}

int Estimator::GetSharedLinkIndex(const Stage& from, const Stage& to) const {
  const int a = from.devices[0], b = to.devices[0];
  const int site = index_.GetSiteIndex(a), other = index_.GetSiteIndex(b);
  if (site != other) return site * index_.sites() + other;
  const int node = index_.GetNode(a);
  return node == index_.GetNode(b) ? -1 : index_.sites() * index_.sites() + node;
}

const StageCosts& Estimator::GetStageCosts(const Stage& stage, int micro_batch) {
  const int type = cluster_.devices[stage.devices[0]].type;
  const std::tuple key(type, stage.devices.size(), micro_batch);
  const auto known = alike_.find(key);
  if (known != alike_.end()) return known->second;
  const int size = static_cast<int>(stage.devices.size());
  return alike_.emplace(key, costs_.For(cluster_.types[type], size, micro_batch)).first->second;
}

double Estimator::ReplicaSeconds(const Layout& layout, const Replica& replica) {
  const std::vector<int> stage_entities = MapStagesToEntities(replica);
  std::vector<double> work(stage_entities.size(), 0);
  double fill = 0;
  double beat = 0;
  for (size_t s = 0; s < replica.stages.size(); ++s) {
    const Stage& stage = replica.stages[s];
    const LayerTimes times = GetStageCosts(stage, layout.micro_batch)
                                 .Of(stage.first_layer, stage.last_layer, stage.saving);
    double& work_s = work[stage_entities[s]];
    work_s += times.forward_s + times.backward_s + times.weight_s;
    beat = std::max(beat, work_s);
    if (s + 1 == replica.stages.size()) break;
    fill += times.forward_s + times.backward_s;
    if (stage_entities[s] == stage_entities[s + 1]) continue;
    const Stage& next = replica.stages[s + 1];
    Link link = index_.LinkBetween(stage.devices[0], next.devices[0]);
    const int index = GetSharedLinkIndex(stage, next);
    const LinkSharing::SharedLink* shared_link = index < 0 ? nullptr : &shared_links_[index];
    // The messages of all stage links use the shared link with each micro-batch.
    const double each = shared_link != nullptr && IsPlain(link)
                            ? 1.0 * shared_link->stage_links / shared_link->replicas
                            : 1;
    ApplyLinkSharing(shared_link, stage, next, link);
    const double bytes = static_cast<double>(StageLinkBytes(costs_, stage, layout.micro_batch));
    fill += 2 * link.Seconds(bytes);
    if (costs_.options().runtime.blocking_messages) {
      work_s += 2 * link.Seconds(bytes);
      work[stage_entities[s + 1]] += 2 * link.Seconds(bytes);
      beat = std::max(beat, work_s);
    }
    beat = std::max(beat, each * link.SerialSeconds(bytes));
  }
  return fill + replica.micro_batches * beat;
}

double EstimateSeconds(const Cluster& cluster, const Costs& costs, const Job& job,
                       const Layout& layout) {
  return Estimator(cluster, costs, job).Seconds(layout);
}

}  // namespace atl::plan
