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
#include "coordinator/planner/commit.h"
#include "coordinator/planner/gradient_sync.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/replica_problem.h"
#include "coordinator/planner/together.h"
#include "coordinator/planning/recomputation.h"

namespace atl {
namespace {

double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

const PlanProgram* FindProgram(const IslandPlan& plan, const std::string& device) {
  for (const PlanProgram& program : plan.programs) {
    if (program.device == device) return &program;
  }
  return nullptr;
}

// The programs' order of F, B and W; chunks that the programs do not split are not split either.
absl::StatusOr<sim::Schedule> BuildSchedule(const IslandPlan& plan, const PlanReplica& replica,
                                            sim::Problem& problem) {
  sim::Schedule schedule;
  for (const std::vector<int>& stages : sim::ListChunksByDevice(problem)) {
    std::vector<sim::Op>& ops = schedule.device_ops.emplace_back();
    const std::string& device = replica.stages[stages[0]].devices[0];
    const PlanProgram* program = FindProgram(plan, device);
    if (program == nullptr) return absl::NotFoundError(absl::StrCat(device, " has no program"));
    for (const int32_t stage : UnsplitStages(*program)) {
      sim::UniteBackward(problem.chunks[stage]);
    }
    for (const PlanOp& op : program->ops) {
      if (op.kind == PlanOpKind::kForward) {
        ops.push_back({op.stage, op.micro_batch, sim::OpKind::kForward});
      } else if (op.kind == PlanOpKind::kInputGradient) {
        ops.push_back({op.stage, op.micro_batch, sim::OpKind::kBackward});
      } else if (op.kind == PlanOpKind::kWeightGradient && sim::IsSplit(problem.chunks[op.stage])) {
        ops.push_back({op.stage, op.micro_batch, sim::OpKind::kWeight});
      }
    }
  }
  return schedule;
}

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
        const plan::Link link = plan::LinkBetweenStages(cluster, sharing, *from, *to);
        trace->links.push_back({a, b, std::llround(link.latency_s * 1e9), link.bytes_per_s});
      }
    }
  }
}

// The ends of what follows a device's operations: its stages' all-reduces, all commit votes, the
// optimizer.
struct Ends {
  std::vector<double> synced_s;              // per stage
  std::vector<double> known_s, optimizer_s;  // per entity
};

void AddEnds(const plan::Replica& replica, const Ends& ends, size_t first_device,
             StepTrace* trace) {
  const std::vector<int> stage_entities = plan::MapStagesToEntities(replica);
  size_t index = first_device;
  for (int entity = 0; entity < static_cast<int>(ends.known_s.size()); ++entity) {
    double synced_s = 0;
    int32_t first_stage = -1;
    for (size_t s = 0; s < stage_entities.size(); ++s) {
      if (stage_entities[s] != entity) continue;
      if (first_stage < 0) first_stage = static_cast<int32_t>(s);
      synced_s = std::max(synced_s, ends.synced_s[s]);
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
      add(TraceKind::kCommit, 0, std::llround(ends.known_s[entity] * 1e9));
      add(TraceKind::kOptimizer, first_stage,
          device.end_ns + std::llround(ends.optimizer_s[entity] * 1e9));
      trace->step_ns = std::max(trace->step_ns, device.end_ns);
    }
  }
}

// When each replica's stages begin, and when their last gradients are there.
struct StageSpans {
  plan::StageTimes begun_s, done_s;
};

StageSpans ComputeStageSpans(const sim::Problem& problem, const sim::Result& played) {
  std::vector<double> begun(problem.chunks.size(), INFINITY);
  std::vector<double> done(problem.chunks.size(), 0);
  for (const std::vector<sim::OpSpan>& spans : played.timeline) {
    for (const sim::OpSpan& span : spans) {
      if (span.op.kind == sim::OpKind::kOptimizer) continue;
      begun[span.op.chunk] = std::min(begun[span.op.chunk], Seconds(span.start_ns));
      done[span.op.chunk] = std::max(done[span.op.chunk], Seconds(span.end_ns));
    }
  }
  StageSpans by_replica;
  for (const sim::Pipeline& pipeline : problem.pipelines) {
    const auto part = [&](const std::vector<double>& all) {
      const auto first = all.begin() + pipeline.first_chunk;
      return std::vector<double>(first, first + pipeline.chunk_count);
    };
    by_replica.begun_s.push_back(part(begun));
    by_replica.done_s.push_back(part(done));
  }
  return by_replica;
}

// The plan's programs, a kind for each replica.
absl::StatusOr<plan::Outcome> BuildOutcome(const PlanningInput& input, const plan::Layout& layout,
                                           const IslandPlan& plan) {
  const plan::LinkSharing sharing = plan::ComputeLinkSharing(input.cluster, layout);
  plan::Outcome outcome;
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    ATOLL_ASSIGN_OR_RETURN(
        plan::ReplicaOutcome kind,
        plan::BuildReplica(input.cluster, input.costs.ForReplicas(layout.replicas.size()), layout,
                           sharing, layout.replicas[r]));
    kind.replicas = {static_cast<int>(r)};
    ATOLL_ASSIGN_OR_RETURN(kind.found.schedule,
                           BuildSchedule(plan, plan.replicas[r], kind.problem));
    outcome.kinds.push_back(std::move(kind));
  }
  return outcome;
}

// A plan's programs, simulated.
struct Played {
  PlanningInput input;
  plan::Layout layout;
  plan::Outcome outcome;
  plan::Together all;
  sim::Result result;
  StageSpans spans;
  plan::StageTimes synced_s, optimizer_s;
};

absl::StatusOr<Played> Play(const PlanRequest& request, const IslandPlan& plan) {
  ATOLL_ASSIGN_OR_RETURN(PlanningInput input, MakePlanningInput(request));
  ATOLL_ASSIGN_OR_RETURN(plan::Layout layout,
                         LayoutFromIslandPlan(input.cluster, input.costs, plan));
  MakeRoom(layout, plan, input);  // it fits, and may have been found with less kept back
  Played played{std::move(input), std::move(layout), {}, {}, {}, {}, {}, {}};
  ATOLL_ASSIGN_OR_RETURN(played.outcome, BuildOutcome(played.input, played.layout, plan));
  played.all = plan::PutTogether(played.input.cluster, played.layout, played.outcome);
  ATOLL_ASSIGN_OR_RETURN(played.result,
                         sim::Simulate(played.all.problem, played.all.schedule, {.record = true}));
  if (played.result.verdict == sim::Verdict::kStuck) {
    return absl::InternalError(played.result.reason);
  }
  played.spans = ComputeStageSpans(played.all.problem, played.result);
  played.synced_s =
      plan::SynchroniseGradients(played.input.cluster, played.input.costs, played.input.job,
                                 played.layout, played.spans.done_s);
  for (const plan::ReplicaOutcome& kind : played.outcome.kinds) {
    std::vector<double>& optimizer_s = played.optimizer_s.emplace_back();
    for (const sim::Nanos ns : kind.optimizer_ns) optimizer_s.push_back(Seconds(ns));
  }
  return played;
}

}  // namespace

int64_t EstimateStepNs(const PlanRequest& request, const IslandPlan& plan) {
  const absl::StatusOr<Played> played = Play(request, plan);
  if (!played.ok()) return 0;
  double end_s = Seconds(played->result.makespan_ns);
  for (size_t r = 0; r < played->layout.replicas.size(); ++r) {
    const std::vector<int> stage_entities = plan::MapStagesToEntities(played->layout.replicas[r]);
    for (size_t s = 0; s < stage_entities.size(); ++s) {
      end_s = std::max(end_s, played->synced_s[r][s] + played->optimizer_s[r][stage_entities[s]]);
    }
  }
  end_s = std::max(end_s,
                   plan::CommittedSeconds(played->input.cluster, played->layout, played->synced_s,
                                          played->spans.begun_s, played->optimizer_s));
  return std::llround(end_s * 1e9);
}

absl::StatusOr<StepTrace> PredictStep(const PlanRequest& request, const IslandPlan& plan) {
  ATOLL_ASSIGN_OR_RETURN(const Played step, Play(request, plan));
  const plan::Cluster& cluster = step.input.cluster;
  const plan::Layout& layout = step.layout;
  const DeviceNames names = [&](const plan::Stage& stage) {
    std::vector<std::string> ids;
    for (const int d : stage.devices) ids.push_back(cluster.devices[d].id);
    return ids;
  };
  const plan::StageTimes known_s = plan::KnownSeconds(cluster, layout, step.synced_s);
  StepTrace trace;
  trace.plan_number = plan.number;
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    trace.sequences += plan.replicas[r].micro_batch_sequences * plan.replicas[r].micro_batches;
    const size_t first_device = trace.devices.size();
    const int index = static_cast<int>(r);
    AddReplica(layout.replicas[r], index, step.all.problem, index, step.result, names, &trace);
    AddEnds(layout.replicas[r], {step.synced_s[r], known_s[r], step.optimizer_s[r]}, first_device,
            &trace);
  }
  plan::LinkSharing sharing = plan::ComputeLinkSharing(cluster, layout);
  for (auto& [sites, shared_link] : sharing.shared_links)
    shared_link.replicas = 1;  // in send order, at full bandwidth
  AddLinks(cluster, layout, sharing, &trace);
  trace.about = absl::StrCat("layer times ", plan::TimesFrom(cluster, step.input.costs, layout));
  if (!step.input.assumptions.empty()) {
    absl::StrAppend(&trace.about, "; ", step.input.assumptions);
  }
  return trace;
}

}  // namespace atl
