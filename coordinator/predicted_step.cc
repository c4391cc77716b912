#include "coordinator/predicted_step.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "coordinator/plan_io/timeline.h"
#include "coordinator/planner/gradient_sync.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/replica_problem.h"

namespace atl {
namespace {

double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

absl::StatusOr<plan::Layout> LayoutOf(const plan::Cluster& cluster, const IslandPlan& plan) {
  std::map<std::string, int> index;
  for (size_t d = 0; d < cluster.devices.size(); ++d) {
    index[cluster.devices[d].id] = static_cast<int>(d);
  }
  plan::Layout layout;
  layout.tensor_parallel = plan.tensor_parallel();
  for (const PlanReplica& replica : plan.replicas) {
    if (layout.replicas.empty()) {
      layout.micro_batch = static_cast<int>(replica.micro_batch_sequences);
    } else if (layout.micro_batch != replica.micro_batch_sequences) {
      return absl::UnimplementedError("its replicas have micro-batches of different sizes");
    }
    plan::Replica& added = layout.replicas.emplace_back();
    added.micro_batches = replica.micro_batches;
    for (const PlanStage& stage : replica.stages) {
      plan::Stage& s = added.stages.emplace_back();
      s.first_layer = stage.first_layer;
      s.last_layer = stage.first_layer + stage.layers;
      for (const std::string& device : stage.devices) {
        const auto found = index.find(device);
        if (found == index.end()) {
          return absl::NotFoundError(absl::StrCat("nothing is known of ", device));
        }
        s.devices.push_back(found->second);
      }
    }
  }
  return layout;
}

const PlanProgram* ProgramOf(const IslandPlan& plan, const std::string& device) {
  for (const PlanProgram& program : plan.programs) {
    if (program.device == device) return &program;
  }
  return nullptr;
}

// A stage whose every W follows its B at once does both in one operation, before B sends.
std::set<int32_t> UnsplitStages(const PlanProgram& program) {
  std::set<int32_t> unsplit, split;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const PlanOp& b = program.ops[i];
    if (b.kind != PlanOpKind::kInputGradient) continue;
    PlanOp w = b;
    w.kind = PlanOpKind::kWeightGradient;
    const bool follows = i + 1 < program.ops.size() && program.ops[i + 1] == w;
    (follows ? unsplit : split).insert(b.stage);
  }
  for (const int32_t stage : split) unsplit.erase(stage);
  return unsplit;
}

void Unsplit(sim::Chunk& chunk) {
  chunk.backward_ns += chunk.weight_ns;
  chunk.weight_ns = 0;
  chunk.weight_bytes = 0;
}

// The programs' order of F, B and W; chunks that the programs do not split are not split either.
absl::StatusOr<sim::Schedule> ScheduleOf(const IslandPlan& plan, const PlanReplica& replica,
                                         sim::Problem& problem) {
  sim::Schedule schedule;
  for (const std::vector<int>& stages : sim::ChunksOfDevices(problem)) {
    std::vector<sim::Op>& ops = schedule.device_ops.emplace_back();
    const std::string& device = replica.stages[stages[0]].devices[0];
    const PlanProgram* program = ProgramOf(plan, device);
    if (program == nullptr) return absl::NotFoundError(absl::StrCat(device, " has no program"));
    for (const int32_t stage : UnsplitStages(*program)) Unsplit(problem.chunks[stage]);
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

// Between workers, both ways, as the plan's messages find them.
void AddLinks(const plan::Cluster& cluster, const plan::Layout& layout,
              const plan::WireSharing& sharing, StepTrace* trace) {
  std::set<std::pair<NodeId, NodeId>> seen;
  for (const plan::Replica& replica : layout.replicas) {
    for (size_t s = 0; s + 1 < replica.stages.size(); ++s) {
      const plan::Stage& here = replica.stages[s];
      const plan::Stage& next = replica.stages[s + 1];
      for (const auto& [from, to] : {std::pair(&here, &next), std::pair(&next, &here)}) {
        const NodeId& a = cluster.devices[from->devices[0]].node;
        const NodeId& b = cluster.devices[to->devices[0]].node;
        if (a == b || !seen.insert({a, b}).second) continue;
        const plan::Wire wire = plan::StageWire(cluster, sharing, *from, *to);
        trace->links.push_back({a, b, std::llround(wire.latency_s * 1e9), wire.bytes_per_s});
      }
    }
  }
}

// Optimizers step when the sums of their stages' gradients are complete.
void AddSums(const plan::Replica& replica, const std::vector<double>& summed_s,
             const plan::ReplicaOutcome& kind, size_t first_device, StepTrace* trace) {
  const std::vector<std::vector<int>> stages = sim::ChunksOfDevices(kind.problem);
  size_t index = first_device;
  for (size_t entity = 0; entity < stages.size(); ++entity) {
    double end_s = 0;
    for (const int stage : stages[entity]) end_s = std::max(end_s, summed_s[stage]);
    for (size_t rank = 0; rank < replica.stages[stages[entity][0]].devices.size(); ++rank) {
      TraceDevice& device = trace->devices[index++];
      std::erase_if(device.spans,
                    [](const TraceSpan& span) { return span.kind == TraceKind::kOptimizer; });
      int64_t worked_ns = 0;
      for (const TraceSpan& span : device.spans) worked_ns = std::max(worked_ns, span.end_ns);
      TraceSpan wait;
      wait.kind = TraceKind::kSyncWait;
      wait.start_ns = worked_ns;
      wait.end_ns = std::max<int64_t>(worked_ns, std::llround(end_s * 1e9));
      TraceSpan optimizer;
      optimizer.kind = TraceKind::kOptimizer;
      optimizer.stage = stages[entity][0];
      optimizer.start_ns = wait.end_ns;
      optimizer.end_ns = wait.end_ns + kind.optimizer_ns[entity];
      device.spans.push_back(wait);
      device.spans.push_back(optimizer);
      device.end_ns = optimizer.end_ns;
      trace->step_ns = std::max(trace->step_ns, device.end_ns);
    }
  }
}

// When each stage's last gradient is there.
std::vector<double> DoneSeconds(const sim::Problem& problem, const sim::Result& played) {
  std::vector<double> done(problem.chunks.size(), 0);
  for (const std::vector<sim::OpSpan>& spans : played.timeline) {
    for (const sim::OpSpan& span : spans) {
      if (span.op.kind == sim::OpKind::kOptimizer) continue;
      done[span.op.chunk] = std::max(done[span.op.chunk], Seconds(span.end_ns));
    }
  }
  return done;
}

}  // namespace

absl::StatusOr<StepTrace> PredictStep(const PlanRequest& request, const IslandPlan& plan) {
  ATOLL_ASSIGN_OR_RETURN(const PlanningInput input, MakePlanningInput(request));
  const plan::Cluster& cluster = input.cluster;
  ATOLL_ASSIGN_OR_RETURN(const plan::Layout layout, LayoutOf(cluster, plan));
  const plan::WireSharing sharing = plan::SharingOf(cluster, layout);
  const DeviceNames names = [&](const plan::Stage& stage) {
    std::vector<std::string> ids;
    for (const int d : stage.devices) ids.push_back(cluster.devices[d].id);
    return ids;
  };
  StepTrace trace;
  trace.plan_number = plan.number;
  plan::StageTimes ready_s;
  std::vector<plan::ReplicaOutcome> kinds;
  std::vector<size_t> first_device;
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    const plan::Replica& replica = layout.replicas[r];
    trace.sequences += plan.replicas[r].micro_batch_sequences * plan.replicas[r].micro_batches;
    ATOLL_ASSIGN_OR_RETURN(plan::ReplicaOutcome kind,
                           plan::BuildReplica(cluster, input.costs, layout, sharing, replica));
    ATOLL_ASSIGN_OR_RETURN(const sim::Schedule schedule,
                           ScheduleOf(plan, plan.replicas[r], kind.problem));
    ATOLL_ASSIGN_OR_RETURN(const sim::Result played,
                           sim::Simulate(kind.problem, schedule, {.record = true}));
    if (played.verdict == sim::Verdict::kStuck) return absl::InternalError(played.reason);
    first_device.push_back(trace.devices.size());
    AddReplica(replica, static_cast<int>(r), kind.problem, played, names, &trace);
    ready_s.push_back(DoneSeconds(kind.problem, played));
    kinds.push_back(std::move(kind));
  }
  if (layout.replicas.size() > 1) {
    const plan::StageTimes summed_s =
        plan::SynchroniseGradients(cluster, input.costs, input.job, layout, ready_s);
    for (size_t r = 0; r < layout.replicas.size(); ++r) {
      AddSums(layout.replicas[r], summed_s[r], kinds[r], first_device[r], &trace);
    }
  }
  AddLinks(cluster, layout, sharing, &trace);
  trace.about = absl::StrCat("layer times ", plan::TimesFrom(cluster, input.costs, layout));
  if (!input.assumptions.empty()) absl::StrAppend(&trace.about, "; ", input.assumptions);
  return trace;
}

PlanRequest RequestFor(const JobView& job, const IslandPlan& plan,
                       const std::vector<MemberView>& members, const ProfileBook& book) {
  PlanRequest request;
  request.spec = job.spec;
  if (job.facts) request.facts = *job.facts;
  for (const IslandMember& member : plan.members) {
    PlanMember& added = request.members.emplace_back();
    added.member = member;
    for (const MemberView& seen : members) {
      if (seen.kind != MemberKind::kWorker || seen.name != member.worker) continue;
      added.site = seen.site;
      added.devices = seen.devices;
    }
  }
  std::erase_if(request.members, [](const PlanMember& m) { return m.devices.empty(); });
  book.FillIn(request);
  return request;
}

}  // namespace atl
