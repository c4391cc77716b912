#include "coordinator/planner/estimate.h"

#include <algorithm>

#include "coordinator/planner/gradient_sync.h"

namespace atl::plan {

double Estimator::Seconds(const Layout& layout) {
  CountLines(layout);
  double slowest = 0;
  for (const Replica& replica : layout.replicas) {
    slowest = std::max(slowest, ReplicaSeconds(layout, replica));
  }
  return slowest + SyncSeconds(index_, costs_, job_, layout);
}

// As ComputeLinkSharing has them.
void Estimator::CountLines(const Layout& layout) {
  shared_links_.assign(static_cast<size_t>(index_.sites()) * index_.sites(), {});
  std::vector<int> own;  // of a replica
  for (const Replica& replica : layout.replicas) {
    own.clear();
    for (size_t s = 0; s + 1 < replica.stages.size(); ++s) {
      const Stage &here = replica.stages[s], &next = replica.stages[s + 1];
      if (index_.GetSiteIndex(here.devices[0]) == index_.GetSiteIndex(next.devices[0])) continue;
      for (const int shared_link : {GetSitePairIndex(here, next), GetSitePairIndex(next, here)}) {
        ++shared_links_[shared_link].stage_links;
        if (std::count(own.begin(), own.end(), shared_link) > 0) continue;
        own.push_back(shared_link);
        ++shared_links_[shared_link].replicas;
      }
    }
  }
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
    work[stage_entities[s]] += times.forward_s + times.backward_s + times.weight_s;
    beat = std::max(beat, work[stage_entities[s]]);
    if (s + 1 == replica.stages.size()) break;
    fill += times.forward_s + times.backward_s;
    if (stage_entities[s] == stage_entities[s + 1]) continue;
    const Stage& next = replica.stages[s + 1];
    const int from = stage.devices[0], to = next.devices[0];
    Link link = index_.LinkBetween(from, to);
    const bool far = index_.GetSiteIndex(from) != index_.GetSiteIndex(to);
    const LinkSharing::SharedLink* shared_link =
        far ? &shared_links_[GetSitePairIndex(stage, next)] : nullptr;
    // The messages of all stage links use the shared link with each micro-batch.
    const double each =
        far && IsPlain(link) ? 1.0 * shared_link->stage_links / shared_link->replicas : 1;
    ApplyLinkSharing(shared_link, index_.GetNode(from) == index_.GetNode(to), stage, next, link);
    const double bytes = static_cast<double>(StageLinkBytes(costs_, stage, layout.micro_batch));
    fill += 2 * link.Seconds(bytes);
    beat = std::max(beat, each * link.SerialSeconds(bytes));
  }
  return fill + replica.micro_batches * beat;
}

double EstimateSeconds(const Cluster& cluster, const Costs& costs, const Job& job,
                       const Layout& layout) {
  return Estimator(cluster, costs, job).Seconds(layout);
}

}  // namespace atl::plan
