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

// As SharingOf has them.
void Estimator::CountLines(const Layout& layout) {
  lines_.assign(static_cast<size_t>(index_.sites()) * index_.sites(), {});
  std::vector<int> own;  // of a replica
  for (const Replica& replica : layout.replicas) {
    own.clear();
    for (size_t s = 0; s + 1 < replica.stages.size(); ++s) {
      const Stage &here = replica.stages[s], &next = replica.stages[s + 1];
      if (index_.SiteOf(here.devices[0]) == index_.SiteOf(next.devices[0])) continue;
      for (const int line : {LineOf(here, next), LineOf(next, here)}) {
        ++lines_[line].stage_links;
        if (std::count(own.begin(), own.end(), line) > 0) continue;
        own.push_back(line);
        ++lines_[line].replicas;
      }
    }
  }
}

const StageCosts& Estimator::CostsOf(const Stage& stage, int micro_batch) {
  const int type = cluster_.devices[stage.devices[0]].type;
  const std::tuple key(type, stage.devices.size(), micro_batch);
  const auto known = alike_.find(key);
  if (known != alike_.end()) return known->second;
  const int size = static_cast<int>(stage.devices.size());
  return alike_.emplace(key, costs_.For(cluster_.types[type], size, micro_batch)).first->second;
}

double Estimator::ReplicaSeconds(const Layout& layout, const Replica& replica) {
  const std::vector<int> places = PlacesOf(replica);
  std::vector<double> work(places.size(), 0);
  double fill = 0;
  double beat = 0;
  for (size_t s = 0; s < replica.stages.size(); ++s) {
    const Stage& stage = replica.stages[s];
    const LayerTimes times =
        CostsOf(stage, layout.micro_batch).Of(stage.first_layer, stage.last_layer, stage.saving);
    work[places[s]] += times.forward_s + times.backward_s + times.weight_s;
    beat = std::max(beat, work[places[s]]);
    if (s + 1 == replica.stages.size()) break;
    fill += times.forward_s + times.backward_s;
    if (places[s] == places[s + 1]) continue;
    const Stage& next = replica.stages[s + 1];
    const int from = stage.devices[0], to = next.devices[0];
    Wire wire = index_.WireBetween(from, to);
    const bool far = index_.SiteOf(from) != index_.SiteOf(to);
    const WireSharing::Line* line = far ? &lines_[LineOf(stage, next)] : nullptr;
    // The messages of all stage links pass a line with each micro-batch.
    const double each = far && IsPlain(wire) ? 1.0 * line->stage_links / line->replicas : 1;
    ShareWire(line, index_.NodeOf(from) == index_.NodeOf(to), stage, next, wire);
    const double bytes = static_cast<double>(StageLinkBytes(costs_, stage, layout.micro_batch));
    fill += 2 * wire.Seconds(bytes);
    beat = std::max(beat, each * wire.SerialSeconds(bytes));
  }
  return fill + replica.micro_batches * beat;
}

double EstimateSeconds(const Cluster& cluster, const Costs& costs, const Job& job,
                       const Layout& layout) {
  return Estimator(cluster, costs, job).Seconds(layout);
}

}  // namespace atl::plan
