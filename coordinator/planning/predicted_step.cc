#include "coordinator/planning/predicted_step.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "coordinator/plan_io/island_plan_conversion.h"
#include "coordinator/plan_io/timeline.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/replica_problem.h"

namespace atl {
namespace {

// Between workers, in both directions, as the plan's messages find them.
void AddLinks(const plan::Cluster& cluster, const plan::Layout& layout,
              const plan::LinkSharing& sharing, StepTrace* trace) {
  std::set<std::pair<NodeId, NodeId>> seen;
  for (const plan::Replica& replica : layout.replicas) {
    for (size_t s = 0; s + 1 < replica.stages.size(); ++s) {
      const plan::Stage& here = replica.stages[s];
      const plan::Stage& next = replica.stages[s + 1];
      for (const auto& [from, to] : {std::pair(&here, &next), std::pair(&next, &here)}) {
        const NodeId& a = cluster.devices[from->devices[0]].node;
        const NodeId& b = cluster.devices[to->devices[0]].node;
        if (a == b || !seen.insert({a, b}).second) continue;
        const plan::Link link = sharing.LinkBetween(*from, *to);
        trace->links.push_back({a, b, std::llround(link.latency_s * 1e9), link.bytes_per_s});
      }
    }
  }
}

// The ends of what follows the operations of replica `r`.
void AddEnds(const plan::Replica& replica, const plan::StepEnds& ends, size_t r,
             size_t first_device, StepTrace* trace) {
  const std::vector<int> stage_entities = plan::MapStagesToEntities(replica);
  size_t index = first_device;
  for (int entity = 0; entity < static_cast<int>(ends.known_s[r].size()); ++entity) {
    double synced_s = 0;
    int32_t first_stage = -1;
    for (size_t s = 0; s < stage_entities.size(); ++s) {
      if (stage_entities[s] != entity) continue;
      if (first_stage < 0) first_stage = static_cast<int32_t>(s);
      synced_s = std::max(synced_s, ends.synced_s[r][s]);
    }
    for (size_t rank = 0; rank < replica.stages[first_stage].devices.size(); ++rank) {
      TraceDevice& device = trace->devices[index++];
      std::erase_if(device.spans,
                    [](const TraceSpan& span) { return span.kind == TraceKind::kOptimizer; });
      device.end_ns = 0;
      for (const TraceSpan& span : device.spans) {
        device.end_ns = std::max(device.end_ns, span.end_ns);
      }
      const auto add = [&device](TraceKind kind, int32_t stage, int64_t until_ns) {
        TraceSpan span;
        span.kind = kind;
        span.stage = stage;
        span.start_ns = device.end_ns;
        span.end_ns = device.end_ns = std::max(device.end_ns, until_ns);
        device.spans.push_back(span);
      };
      add(TraceKind::kSyncWait, 0, std::llround(synced_s * 1e9));
      add(TraceKind::kCommit, 0, std::llround(ends.known_s[r][entity] * 1e9));
      add(TraceKind::kOptimizer, first_stage,
          device.end_ns + std::llround(ends.optimizer_s[r][entity] * 1e9));
      trace->step_ns = std::max(trace->step_ns, device.end_ns);
    }
  }
}

// A plan's step by its own programs.
struct Played {
  PlanningInput input;
  plan::Layout layout;
  plan::Outcome outcome;
};

absl::StatusOr<Played> Play(const PlanRequest& request, const IslandPlan& plan) {
  if (plan.replicas.empty()) return absl::InvalidArgumentError("the plan has no layout");
  ATOLL_ASSIGN_OR_RETURN(PlanningInput input, MakePlanningInput(request));
  ATOLL_ASSIGN_OR_RETURN(plan::Layout layout,
                         LayoutFromIslandPlan(input.cluster, input.costs, plan));
  ATOLL_ASSIGN_OR_RETURN(const std::vector<plan::ReplicaOrder> orders,
                         OrdersFromIslandPlan(plan, layout));
  // It fits, since it runs.
  for (plan::DeviceType& type : input.cluster.types) type.memory_bytes = int64_t{1} << 56;
  ATOLL_ASSIGN_OR_RETURN(plan::Outcome outcome, plan::EvaluateLayout(input.cluster, input.costs,
                                                                     layout, {.orders = &orders}));
  return Played{std::move(input), std::move(layout), std::move(outcome)};
}

}  // namespace

int64_t EstimateStepNs(const PlanRequest& request, const IslandPlan& plan) {
  const absl::StatusOr<Played> played = Play(request, plan);
  return played.ok() ? std::llround(played->outcome.step_s * 1e9) : 0;
}

absl::StatusOr<StepTrace> PredictStep(const PlanRequest& request, const IslandPlan& plan) {
  ATOLL_ASSIGN_OR_RETURN(const Played step, Play(request, plan));
  const plan::Cluster& cluster = step.input.cluster;
  const plan::Layout& layout = step.layout;
  const plan::Together all = plan::PutTogether(cluster, layout, step.outcome);
  const sim::Result result = sim::SimulateUnchecked(all.problem, all.schedule, {.record = true});
  const DeviceNames names = [&](const plan::Stage& stage) {
    std::vector<std::string> ids;
    for (const int d : stage.devices) ids.push_back(cluster.devices[d].id);
    return ids;
  };
  StepTrace trace;
  trace.plan_number = plan.number;
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    trace.sequences += plan.replicas[r].micro_batch_sequences * plan.replicas[r].micro_batches;
    const size_t first_device = trace.devices.size();
    const int index = static_cast<int>(r);
    AddReplica(layout.replicas[r], index, all.problem, index, result, names, &trace);
    AddEnds(layout.replicas[r], step.outcome.ends, r, first_device, &trace);
  }
  plan::LinkSharing sharing(cluster, layout);
  sharing.SetAlone();  // in send order
  AddLinks(cluster, layout, sharing, &trace);
  trace.about = absl::StrCat("layer times ", plan::TimesFrom(cluster, step.input.costs, layout));
  if (!step.input.assumptions.empty()) {
    absl::StrAppend(&trace.about, "; ", step.input.assumptions);
  }
  return trace;
}

}  // namespace atl
