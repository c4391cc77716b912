#include "coordinator/planner/layout.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "common/check.h"
#include "common/status.h"
#include "coordinator/planner/balance.h"

namespace atl::plan {
namespace {

sim::Nanos ToNanos(double seconds) {
  return static_cast<sim::Nanos>(std::llround(std::min(seconds, 1e6) * 1e9));
}

const DeviceType& TypeOf(const Cluster& cluster, const Stage& stage) {
  return cluster.types[cluster.devices[stage.devices[0]].type];
}

using Sites = std::pair<std::string, std::string>;

Sites SitesOf(const Cluster& cluster, const Stage& from, const Stage& to) {
  return {cluster.devices[from.devices[0]].site, cluster.devices[to.devices[0]].site};
}

// How many replicas send activations from one site to another: they share that wire.
std::map<Sites, int> CrossingsOf(const Cluster& cluster, const Layout& layout) {
  std::map<Sites, int> crossings;
  for (const Replica& replica : layout.replicas) {
    for (size_t s = 0; s + 1 < replica.stages.size(); ++s) {
      const Sites there = SitesOf(cluster, replica.stages[s], replica.stages[s + 1]);
      if (there.first == there.second) continue;
      ++crossings[there];
      ++crossings[{there.second, there.first}];
    }
  }
  return crossings;
}

// A boundary activation is the same on all members of a tensor-parallel set, which send a part
// each.
Wire StageWire(const Cluster& cluster, const std::map<Sites, int>& crossings, const Stage& from,
               const Stage& to) {
  Wire wire = cluster.WireBetween(from.devices[0], to.devices[0]);
  const auto shared = crossings.find(SitesOf(cluster, from, to));
  if (shared != crossings.end()) {
    wire.bytes_per_s /= std::max(1, shared->second);
  } else if (cluster.devices[from.devices[0]].node == cluster.devices[to.devices[0]].node) {
    wire.bytes_per_s *= static_cast<double>(std::min(from.devices.size(), to.devices.size()));
  }
  return wire;
}

int64_t BoundaryBytes(const Costs& costs, const Stage& stage, int micro_batch) {
  return costs.model().layers[stage.last_layer - 1].out_bytes * micro_batch;
}

// What makes two replicas equal to the simulator.
std::string KindOf(const Cluster& cluster, const Layout& layout,
                   const std::map<Sites, int>& crossings, const Replica& replica) {
  std::string kind = absl::StrCat(layout.tensor_parallel, ",", layout.micro_batch, ",",
                                  layout.schedule, ",", replica.micro_batches);
  for (size_t s = 0; s < replica.stages.size(); ++s) {
    const Stage& stage = replica.stages[s];
    absl::StrAppend(&kind, "|", cluster.devices[stage.devices[0]].type, ":", stage.first_layer, "-",
                    stage.last_layer);
    if (s + 1 < replica.stages.size()) {
      for (const bool forward : {true, false}) {
        const Wire wire = forward ? StageWire(cluster, crossings, stage, replica.stages[s + 1])
                                  : StageWire(cluster, crossings, replica.stages[s + 1], stage);
        absl::StrAppend(&kind, ",", wire.latency_s, ",", wire.bytes_per_s);
      }
    }
  }
  return kind;
}

absl::Status LacksMemory(const Cluster& cluster, const Stage& stage, int64_t needs, int64_t has) {
  return absl::ResourceExhaustedError(
      absl::StrCat("device \"", cluster.devices[stage.devices[0]].id, "\" lacks ", needs - has,
                   " bytes: layers ", stage.first_layer, " to ", stage.last_layer - 1, " need ",
                   needs, " with one micro-batch, it has ", has));
}

absl::StatusOr<ReplicaOutcome> BuildKind(const Cluster& cluster, const Costs& costs,
                                         const Layout& layout,
                                         const std::map<Sites, int>& crossings,
                                         const Replica& replica) {
  ReplicaOutcome kind;
  const int stages = static_cast<int>(replica.stages.size());
  kind.problem.pipelines = {{0, stages, replica.micro_batches, 0}};
  for (int s = 0; s < stages; ++s) {
    const Stage& stage = replica.stages[s];
    const DeviceType& type = TypeOf(cluster, stage);
    const StageCosts stage_costs = costs.For(type, layout.tensor_parallel, layout.micro_batch);
    const LayerTimes times = stage_costs.Of(stage.first_layer, stage.last_layer);
    sim::Chunk chunk;
    chunk.device = s;
    chunk.forward_ns = ToNanos(times.forward_s);
    chunk.backward_ns = ToNanos(times.backward_s);
    chunk.weight_ns = ToNanos(times.weight_s);
    chunk.optimizer_ns = ToNanos(times.optimizer_s);
    chunk.activation_bytes = stage_costs.StashBytes(stage.first_layer, stage.last_layer);
    chunk.weight_bytes = chunk.weight_ns == 0
                             ? 0
                             : static_cast<int64_t>(costs.options().weight_share *
                                                    static_cast<double>(chunk.activation_bytes));
    if (s + 1 < stages) {
      const Stage& next = replica.stages[s + 1];
      for (const bool forward : {true, false}) {
        const Wire wire = forward ? StageWire(cluster, crossings, stage, next)
                                  : StageWire(cluster, crossings, next, stage);
        const int link = static_cast<int>(kind.problem.network.links.size());
        kind.problem.network.links.push_back(
            {{sim::Edge{ToNanos(wire.latency_s), wire.bytes_per_s, {}, -1}}});
        (forward ? chunk.forward_link : chunk.backward_link) = link;
      }
      chunk.forward_bytes = chunk.backward_bytes = BoundaryBytes(costs, stage, layout.micro_batch);
    }
    const int64_t state = stage_costs.StateBytes(stage.first_layer, stage.last_layer);
    const int64_t usable = costs.UsableBytes(type);
    if (state + chunk.activation_bytes > usable) {
      return LacksMemory(cluster, stage, state + chunk.activation_bytes, usable);
    }
    kind.state_bytes.push_back(state);
    kind.memory_bytes.push_back(usable);
    kind.problem.devices.push_back({usable - state});
    kind.problem.chunks.push_back(chunk);
  }
  return kind;
}

absl::StatusOr<ReplicaOutcome> EvaluateKind(const Cluster& cluster, const Costs& costs,
                                            const Layout& layout,
                                            const std::map<Sites, int>& crossings,
                                            const Replica& replica, const std::string& name,
                                            const Evaluation& evaluation) {
  if (evaluation.known != nullptr) {
    for (const ReplicaOutcome& known : evaluation.known->kinds) {
      if (known.kind != name) continue;
      ReplicaOutcome kind = known;
      kind.replicas.clear();
      return kind;
    }
  }
  ATOLL_ASSIGN_OR_RETURN(ReplicaOutcome kind,
                         BuildKind(cluster, costs, layout, crossings, replica));
  kind.kind = name;
  if (layout.schedule == "1f1b" || layout.schedule == "gpipe") {
    kind.problem = sim::WithUnsplitBackward(std::move(kind.problem));
  }
  const int64_t operations =
      3 * int64_t{replica.micro_batches} * static_cast<int64_t>(replica.stages.size());
  const int64_t most = std::max<int64_t>(4, evaluation.operations / operations);
  sim::SearchOptions options{
      .restarts = static_cast<int>(std::min<int64_t>(evaluation.restarts, most)),
      .seed = evaluation.seed};
  ATOLL_ASSIGN_OR_RETURN(kind.found, sim::ScheduleByName(kind.problem, layout.schedule, options));
  if (kind.found.result.verdict != sim::Verdict::kFits) {
    return absl::ResourceExhaustedError(kind.found.result.reason);
  }
  kind.bound = sim::MakespanBound(kind.problem);
  return kind;
}

}  // namespace

absl::Status CutReplica(const Cluster& cluster, const Costs& costs, int tensor_parallel,
                        int micro_batch, Replica& replica) {
  std::map<int, StageCosts> by_type;
  std::vector<StageSlot> slots;
  const int stages = static_cast<int>(replica.stages.size());
  for (const Stage& stage : replica.stages) {
    const int type = cluster.devices[stage.devices[0]].type;
    by_type.try_emplace(type, costs.For(cluster.types[type], tensor_parallel, micro_batch));
  }
  for (int s = 0; s < stages; ++s) {
    const Stage& stage = replica.stages[s];
    const int in_flight = std::max(1, std::min(replica.micro_batches, stages - s));
    slots.push_back({&by_type.at(cluster.devices[stage.devices[0]].type),
                     costs.UsableBytes(TypeOf(cluster, stage)), in_flight});
  }
  ATOLL_ASSIGN_OR_RETURN(const std::vector<int> cuts, BalanceLayers(slots));
  std::vector<Stage> kept;
  for (int s = 0; s < stages; ++s) {
    Stage stage = replica.stages[s];
    stage.first_layer = cuts[s];
    stage.last_layer = cuts[s + 1];
    if (stage.first_layer < stage.last_layer) kept.push_back(std::move(stage));
  }
  replica.stages = std::move(kept);  // a stage without layers is an idle device
  return absl::OkStatus();
}

double SyncSeconds(const Cluster& cluster, const Costs& costs, const Job& job,
                   const Layout& layout) {
  const int layers = static_cast<int>(costs.model().layers.size());
  const double n = static_cast<double>(layout.replicas.size());
  if (layout.replicas.size() < 2) return 0;
  const double factor = 2 * (n - 1) / n * job.gradient_bytes;
  // The stage that holds each layer, per replica.
  std::vector<std::vector<const Stage*>> holders(layout.replicas.size());
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    holders[r].assign(layers, nullptr);
    for (const Stage& stage : layout.replicas[r].stages) {
      for (int l = stage.first_layer; l < stage.last_layer; ++l) holders[r][l] = &stage;
    }
  }
  std::map<const Stage*, double> device_s;  // per stage: its layers' rings one after another
  std::map<Sites, double> card_bytes;       // out of each (site, node)
  std::map<Sites, double> wan_bytes;
  double latency_s = 0;
  for (int l = 0; l < layers; ++l) {
    const double bytes = factor * static_cast<double>(costs.model().layers[l].parameters);
    if (bytes == 0) continue;
    for (size_t r = 0; r < holders.size(); ++r) {
      const Stage* from = holders[r][l];
      const Stage* to = holders[(r + 1) % holders.size()][l];
      if (from == nullptr || to == nullptr) continue;
      const Device& a = cluster.devices[from->devices[0]];
      const Device& b = cluster.devices[to->devices[0]];
      const Wire wire = cluster.WireBetween(from->devices[0], to->devices[0]);
      const double tp = static_cast<double>(from->devices.size());
      latency_s = std::max(latency_s, 2 * (n - 1) * wire.latency_s);
      if (a.site != b.site) {
        wan_bytes[{a.site, b.site}] += bytes;
      } else if (a.node != b.node) {
        card_bytes[{a.site, a.node}] += bytes;
      }
      device_s[from] += bytes / tp / wire.bytes_per_s;
    }
  }
  double slowest = 0;
  for (const auto& [stage, seconds] : device_s) slowest = std::max(slowest, seconds);
  for (const auto& [node, bytes] : card_bytes) {
    const Wire& wire = cluster.WireBetweenSites(node.first, node.first);
    slowest = std::max(slowest, bytes / wire.bytes_per_s);
  }
  for (const auto& [sites, bytes] : wan_bytes) {
    const Wire& wire = cluster.WireBetweenSites(sites.first, sites.second);
    slowest = std::max(slowest, bytes / wire.bytes_per_s);
  }
  return slowest + latency_s;
}

double EstimateSeconds(const Cluster& cluster, const Costs& costs, const Job& job,
                       const Layout& layout) {
  const std::map<Sites, int> crossings = CrossingsOf(cluster, layout);
  std::map<int, StageCosts> by_type;
  std::set<std::string> seen;
  double slowest = 0;
  for (const Replica& replica : layout.replicas) {
    if (layout.replicas.size() > 1 &&
        !seen.insert(KindOf(cluster, layout, crossings, replica)).second) {
      continue;
    }
    double fill = 0;
    double beat = 0;
    for (size_t s = 0; s < replica.stages.size(); ++s) {
      const Stage& stage = replica.stages[s];
      const int type = cluster.devices[stage.devices[0]].type;
      if (by_type.find(type) == by_type.end()) {
        by_type.emplace(type,
                        costs.For(cluster.types[type], layout.tensor_parallel, layout.micro_batch));
      }
      const LayerTimes times = by_type.at(type).Of(stage.first_layer, stage.last_layer);
      beat = std::max(beat, times.forward_s + times.backward_s + times.weight_s);
      if (s + 1 == replica.stages.size()) break;
      const Wire wire = StageWire(cluster, crossings, stage, replica.stages[s + 1]);
      const double bytes = static_cast<double>(BoundaryBytes(costs, stage, layout.micro_batch));
      fill += times.forward_s + times.backward_s + 2 * wire.Seconds(bytes);
      beat = std::max(beat, bytes / wire.bytes_per_s);
    }
    slowest = std::max(slowest, fill + replica.micro_batches * beat);
  }
  return slowest + SyncSeconds(cluster, costs, job, layout);
}

absl::StatusOr<Outcome> EvaluateLayout(const Cluster& cluster, const Costs& costs, const Job& job,
                                       const Layout& layout, const Evaluation& evaluation) {
  ATOLL_CHECK(!layout.replicas.empty());
  const std::map<Sites, int> crossings = CrossingsOf(cluster, layout);
  Outcome outcome;
  std::map<std::string, size_t> kinds;
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    const std::string name = KindOf(cluster, layout, crossings, layout.replicas[r]);
    const auto [found, added] = kinds.try_emplace(name, outcome.kinds.size());
    if (added) {
      ATOLL_ASSIGN_OR_RETURN(
          ReplicaOutcome kind,
          EvaluateKind(cluster, costs, layout, crossings, layout.replicas[r], name, evaluation));
      outcome.kinds.push_back(std::move(kind));
    }
    outcome.kinds[found->second].replicas.push_back(static_cast<int>(r));
  }
  outcome.sync_s = SyncSeconds(cluster, costs, job, layout);
  for (const ReplicaOutcome& kind : outcome.kinds) {
    outcome.step_s =
        std::max(outcome.step_s, static_cast<double>(kind.found.result.makespan_ns) * 1e-9);
    outcome.bound_s = std::max(outcome.bound_s, static_cast<double>(kind.bound.time_ns) * 1e-9);
  }
  outcome.step_s += outcome.sync_s;
  outcome.bound_s += outcome.sync_s;
  return outcome;
}

}  // namespace atl::plan
