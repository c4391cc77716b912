#include "coordinator/planner/groups/estimate.h"

#include <algorithm>

#include "coordinator/planner/gradient_sync.h"

namespace atl::plan {

double Estimator::Seconds(const Layout& layout) {
  sharing_.Count(layout);
  double slowest = 0;
  for (const Replica& replica : layout.replicas) {
    slowest = std::max(slowest, ReplicaSeconds(layout, replica));
  }
  return slowest + SyncSeconds(sharing_.index(), costs_, layout);
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
    const Link link = sharing_.LinkBetween(stage, next);
    // The messages of all stage links use the shared link with each micro-batch.
    double each = 1;
    if (const int lane = sharing_.FindLane(stage, next); lane >= 0) {
      const LinkSharing::SharedLink& shared = sharing_.links()[lane];
      each = 1.0 * shared.stage_links / shared.replicas;
    }
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

double EstimateSeconds(const Cluster& cluster, const Costs& costs, const Layout& layout) {
  return Estimator(cluster, costs).Seconds(layout);
}

}  // namespace atl::plan
