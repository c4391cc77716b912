#include "coordinator/planner/planner.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/rng.h"
#include "common/status.h"
#include "coordinator/planner/candidates.h"

namespace atl::plan {
namespace {

absl::Status Validate(const Job& job) {
  if (job.global_batch < 1 || job.global_batch > 1 << 20) {
    return absl::InvalidArgumentError(
        absl::StrCat("global_batch = ", job.global_batch, " is not in 1 .. 1048576"));
  }
  for (const int size : job.micro_batches) {
    if (size < 1) return absl::InvalidArgumentError(absl::StrCat("micro-batch size ", size));
  }
  for (const int size : job.tensor_parallel) {
    if (size < 1 || size > 1024) {
      return absl::InvalidArgumentError(absl::StrCat("tensor-parallel size ", size));
    }
  }
  return absl::OkStatus();
}

// The kind of replica that the others wait for.
const ReplicaOutcome& Slowest(const Outcome& outcome) {
  return *std::max_element(outcome.kinds.begin(), outcome.kinds.end(),
                           [](const ReplicaOutcome& a, const ReplicaOutcome& b) {
                             return a.found.result.makespan_ns < b.found.result.makespan_ns;
                           });
}

// Moves one layer across a boundary of the slowest kind of replica, for all replicas of that kind.
bool MoveBoundary(const Outcome& outcome, Rng& rng, Layout& layout) {
  const ReplicaOutcome& kind = Slowest(outcome);
  const size_t stages = layout.replicas[kind.replicas[0]].stages.size();
  if (stages < 2) return false;
  const size_t boundary = rng.Below(stages - 1);
  const int move = rng.Chance(0.5) ? 1 : -1;
  for (const int r : kind.replicas) {
    Stage& before = layout.replicas[r].stages[boundary];
    Stage& after = layout.replicas[r].stages[boundary + 1];
    before.last_layer += move;
    after.first_layer += move;
    if (before.first_layer >= before.last_layer || after.first_layer >= after.last_layer) {
      return false;
    }
  }
  return true;
}

// Swaps the devices of two neighbouring stages in all slowest replicas, and cuts again.
bool SwapStages(const Cluster& cluster, const Costs& costs, const Outcome& outcome, Rng& rng,
                Layout& layout) {
  const ReplicaOutcome& kind = Slowest(outcome);
  const size_t stages = layout.replicas[kind.replicas[0]].stages.size();
  if (stages < 2) return false;
  const size_t first = rng.Below(stages - 1);
  for (const int r : kind.replicas) {
    Replica& replica = layout.replicas[r];
    std::swap(replica.stages[first].devices, replica.stages[first + 1].devices);
    if (!CutReplica(cluster, costs, layout.tensor_parallel, layout.micro_batch, replica).ok()) {
      return false;
    }
  }
  return true;
}

void Improve(const Cluster& cluster, const Costs& costs, const Job& job, const Options& options,
             Plan& plan) {
  Rng rng(options.seed);
  Evaluation quick{std::min(options.restarts, 24), options.seed};
  for (int i = 0; i < options.improvements; ++i) {
    if (options.stop && options.stop()) return;
    Layout layout = plan.layout;
    const bool moved = rng.Chance(0.5) ? MoveBoundary(plan.outcome, rng, layout)
                                       : SwapStages(cluster, costs, plan.outcome, rng, layout);
    if (!moved) continue;
    quick.known = &plan.outcome;
    auto outcome = EvaluateLayout(cluster, costs, job, layout, quick);
    ++plan.simulated;
    if (!outcome.ok() || outcome->step_s >= plan.outcome.step_s) continue;
    plan.layout = std::move(layout);
    plan.outcome = *std::move(outcome);
  }
}

// Different kinds of layout, not small changes of one.
std::string Family(const Candidate& c) { return absl::StrCat(Describe(c.layout), " ", c.how); }

std::string Reason(const Plan& plan) {
  std::string text = absl::StrFormat("%d layouts compared by the cost model, %d simulated; ",
                                     plan.candidates, plan.simulated);
  const Alternative* next = nullptr;
  for (const Alternative& other : plan.alternatives) {
    if (other.simulated && (next == nullptr || other.step_s < next->step_s)) next = &other;
  }
  if (next == nullptr) {
    absl::StrAppend(&text, "no other fits");
  } else {
    absl::StrAppendFormat(&text, "the next best, %s, takes %.1f%% longer", next->what,
                          100 * (next->step_s / plan.outcome.step_s - 1));
  }
  absl::StrAppendFormat(&text, "; at most %.1f%% above any schedule of this layout (%s)",
                        100 * (plan.outcome.step_s / plan.outcome.bound_s - 1),
                        plan.outcome.kinds[0].bound.reason);
  return text;
}

std::string TimesFrom(const Cluster& cluster, const Costs& costs, const Layout& layout) {
  Source worst = Source::kMeasured;
  for (const Replica& replica : layout.replicas) {
    for (const Stage& stage : replica.stages) {
      const DeviceType& type = cluster.types[cluster.devices[stage.devices[0]].type];
      worst = std::max(worst, costs.For(type, layout.tensor_parallel, layout.micro_batch).source());
    }
  }
  if (worst == Source::kMeasured) return "measured";
  if (worst == Source::kInterpolated) return "interpolated between measured sizes";
  return absl::StrFormat("roofline at %.0f%% of the datasheet", 100 * costs.options().efficiency);
}

// Uniform 3D layouts: entities in order of the description, equal numbers per replica.
std::vector<Layout> UniformLayouts(const Cluster& cluster, const Costs& costs, const Job& job,
                                   bool proportional, bool pipelines) {
  std::vector<Layout> layouts;
  const int layers = static_cast<int>(costs.model().layers.size());
  for (const int tp : TensorParallelSizes(job)) {
    for (const int micro_batch : MicroBatchSizes(job)) {
      if (micro_batch > job.global_batch) continue;
      std::vector<std::vector<int>> entities;
      for (const EntityPool& pool : PoolsOf(cluster, costs, tp, micro_batch)) {
        entities.insert(entities.end(), pool.entities.begin(), pool.entities.end());
      }
      const int count = static_cast<int>(entities.size());
      const int total = (job.global_batch + micro_batch - 1) / micro_batch;
      for (int stages = 1; stages <= (pipelines ? std::min(count, layers) : 1); ++stages) {
        if (count == 0 || count % stages != 0 || total < count / stages) continue;
        const int d = count / stages;
        Layout layout{tp, micro_batch, "1f1b", std::vector<Replica>(d)};
        bool fits = true;
        for (int r = 0; r < d; ++r) {
          Replica& replica = layout.replicas[r];
          replica.micro_batches = (total + d - 1) / d;
          for (int s = 0; s < stages; ++s) {
            replica.stages.push_back(
                {entities[s * d + r], s * layers / stages, (s + 1) * layers / stages});
          }
          if (proportional)
            fits = fits && CutReplica(cluster, costs, tp, micro_batch, replica).ok();
        }
        if (fits) layouts.push_back(std::move(layout));
      }
    }
  }
  return layouts;
}

}  // namespace

std::string Describe(const Layout& layout) {
  size_t least = SIZE_MAX;
  size_t most = 0;
  for (const Replica& replica : layout.replicas) {
    least = std::min(least, replica.stages.size());
    most = std::max(most, replica.stages.size());
  }
  const std::string stages = least == most ? absl::StrCat(most) : absl::StrCat(least, " to ", most);
  return absl::StrCat(layout.replicas.size(),
                      layout.replicas.size() == 1 ? " replica" : " replicas", " x ", stages,
                      most == 1 ? " stage" : " stages", ", TP ", layout.tensor_parallel,
                      ", micro-batch ", layout.micro_batch);
}

double ClusterBoundSeconds(const Cluster& cluster, const Costs& costs, const Job& job) {
  std::vector<double> rate_of_type(cluster.types.size(), 0);
  for (size_t t = 0; t < cluster.types.size(); ++t) {
    for (const int tp : TensorParallelSizes(job)) {
      for (const int micro_batch : MicroBatchSizes(job)) {
        const StageCosts all = costs.For(cluster.types[t], tp, micro_batch);
        rate_of_type[t] =
            std::max(rate_of_type[t], micro_batch / all.TotalSeconds(0, all.layers()) / tp);
      }
    }
  }
  double rate = 0;
  for (const Device& device : cluster.devices) rate += rate_of_type[device.type];
  return job.global_batch / rate;
}

absl::StatusOr<Plan> PlanJob(const Cluster& cluster, const Costs& costs, const Job& job,
                             const Options& options) {
  ATOLL_RETURN_IF_ERROR(Validate(cluster));
  ATOLL_RETURN_IF_ERROR(Validate(job));
  absl::Status why_not = absl::ResourceExhaustedError(
      absl::StrCat("model \"", costs.model().name, "\" needs ",
                   static_cast<int64_t>(static_cast<double>(costs.model().parameters()) *
                                        costs.options().state_bytes_per_parameter),
                   " bytes for weights, gradients and optimizer state; no group of devices has "
                   "that much. Add devices or use fewer bytes of state per parameter"));
  const std::vector<Candidate> candidates = Enumerate(cluster, costs, job, options.stop, &why_not);
  if (candidates.empty()) return Annotate(why_not, "no layout fits");
  Plan plan;
  plan.candidates = static_cast<int>(candidates.size());
  plan.seed = options.seed;
  plan.outcome.step_s = INFINITY;
  std::set<std::string> seen;
  std::string winner;
  for (const Candidate& candidate : candidates) {
    const std::string family = Family(candidate);
    // Two ways of grouping often lead to the same layout; its estimate tells.
    const std::string same =
        absl::StrFormat("%s %.9g", Describe(candidate.layout), candidate.estimate_s);
    if (!seen.insert(same).second || !seen.insert(family).second) continue;
    // Without a layout so far, look on: the estimate knows less of memory than the simulator.
    const bool enough = plan.simulated >= options.simulate || (options.stop && options.stop());
    if (enough && !plan.layout.replicas.empty()) {
      if (plan.alternatives.size() > 12) break;
      plan.alternatives.push_back({family, candidate.estimate_s, false});
      continue;
    }
    auto outcome =
        EvaluateLayout(cluster, costs, job, candidate.layout, {options.restarts, options.seed});
    ++plan.simulated;
    if (!outcome.ok()) {
      why_not = outcome.status();
      continue;
    }
    const bool better = outcome->step_s < plan.outcome.step_s;
    if (better && !plan.layout.replicas.empty()) {
      plan.alternatives.push_back({winner, plan.outcome.step_s, true});
    } else if (!better) {
      plan.alternatives.push_back({family, outcome->step_s, true});
    }
    if (!better) continue;
    winner = family;
    plan.layout = candidate.layout;
    plan.outcome = *std::move(outcome);
  }
  if (plan.layout.replicas.empty()) return Annotate(why_not, "no layout fits");
  Improve(cluster, costs, job, options, plan);
  std::stable_sort(plan.alternatives.begin(), plan.alternatives.end(),
                   [](const Alternative& a, const Alternative& b) { return a.step_s < b.step_s; });
  plan.cluster_bound_s = ClusterBoundSeconds(cluster, costs, job);
  plan.times_from = TimesFrom(cluster, costs, plan.layout);
  plan.reason = Reason(plan);
  return plan;
}

std::vector<std::string> BaselineNames() { return {"megatron", "whale", "data-parallel"}; }

absl::StatusOr<Layout> Baseline(const Cluster& cluster, const Costs& costs, const Job& job,
                                absl::string_view name) {
  ATOLL_RETURN_IF_ERROR(Validate(cluster));
  ATOLL_RETURN_IF_ERROR(Validate(job));
  if (name != "megatron" && name != "whale" && name != "data-parallel") {
    return absl::InvalidArgumentError(absl::StrCat(
        "there is no baseline \"", name, "\"; there are: megatron, whale, data-parallel"));
  }
  const std::vector<Layout> layouts =
      UniformLayouts(cluster, costs, job, name == "whale", name != "data-parallel");
  const Layout* best = nullptr;
  double best_s = INFINITY;
  absl::Status why_not = absl::ResourceExhaustedError("no uniform layout exists");
  for (const Layout& layout : layouts) {
    if (best != nullptr && EstimateSeconds(cluster, costs, job, layout) > 2 * best_s) continue;
    const auto outcome = EvaluateLayout(cluster, costs, job, layout, {1, 1});
    if (!outcome.ok()) {
      why_not = outcome.status();
    } else if (outcome->step_s < best_s) {
      best = &layout;
      best_s = outcome->step_s;
    }
  }
  if (best == nullptr) return Annotate(why_not, absl::StrCat("baseline ", name));
  return *best;
}

void NameSites(const Grouping& grouping, Cluster& cluster) {
  for (size_t s = 0; s < grouping.sites.size(); ++s) {
    for (const int d : grouping.sites[s]) cluster.devices[d].site = absl::StrCat("site", s);
  }
}

Cluster WithoutNode(const Cluster& cluster, absl::string_view site, absl::string_view node) {
  Cluster rest = cluster;
  rest.devices.clear();
  rest.measured.clear();
  std::vector<int> index(cluster.devices.size(), -1);
  for (size_t d = 0; d < cluster.devices.size(); ++d) {
    const Device& device = cluster.devices[d];
    if (device.site == site && device.node == node) continue;
    index[d] = static_cast<int>(rest.devices.size());
    rest.devices.push_back(device);
  }
  for (const auto& [pair, wire] : cluster.measured) {
    if (index[pair.first] < 0 || index[pair.second] < 0) continue;
    rest.measured[{index[pair.first], index[pair.second]}] = wire;
  }
  return rest;
}

std::map<std::string, absl::StatusOr<Plan>> PlansForLoss(const Cluster& cluster, const Costs& costs,
                                                         const Job& job, const Options& options) {
  std::set<std::pair<std::string, std::string>> nodes;
  for (const Device& device : cluster.devices) nodes.insert({device.site, device.node});
  std::map<std::string, absl::StatusOr<Plan>> plans;
  for (const auto& [site, node] : nodes) {
    plans.emplace(absl::StrCat(site, "/", node),
                  PlanJob(WithoutNode(cluster, site, node), costs, job, options));
  }
  return plans;
}

}  // namespace atl::plan
