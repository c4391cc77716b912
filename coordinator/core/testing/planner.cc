#include "coordinator/core/testing/planner.h"

#include <algorithm>

namespace atl::testing {

namespace {

// A stage each for neighbours among the workers, as far as there are layers.
PlanReplica MakeReplica(const MakePlan& query, size_t first_worker, size_t last_worker,
                        int32_t micro_batches, IslandPlan* plan) {
  const auto layers = static_cast<int32_t>(query.facts.layers.size());
  const int32_t stages = std::min(static_cast<int32_t>(last_worker - first_worker), layers);
  PlanReplica replica;
  replica.micro_batch_sequences = 1;
  replica.micro_batches = micro_batches;
  for (int32_t s = 0; s < stages; ++s) {
    const IslandMember& member = query.members[first_worker + static_cast<size_t>(s)].member;
    const int32_t first = layers * s / stages;
    plan->members.push_back(member);
    replica.stages.push_back(
        {first, layers * (s + 1) / stages - first, {member.worker + "/0"}, {}});
  }
  return replica;
}

}  // namespace

IslandPlan TestPlan(const MakePlan& query, double slowness, int32_t replicas) {
  const auto batch = static_cast<int32_t>(query.spec.inner.batch_sequences);
  replicas = std::clamp(replicas, 1, std::min(batch, static_cast<int32_t>(query.members.size())));
  IslandPlan plan;
  plan.number = query.number;
  for (int32_t r = 0; r < replicas; ++r) {
    const auto cut = [&](int32_t i) {
      return query.members.size() * static_cast<size_t>(i) / static_cast<size_t>(replicas);
    };
    const int32_t micro_batches = batch * (r + 1) / replicas - batch * r / replicas;
    plan.replicas.push_back(MakeReplica(query, cut(r), cut(r + 1), micro_batches, &plan));
  }
  for (const PlanReplica& replica : plan.replicas) {
    for (int32_t s = 0; s < static_cast<int32_t>(replica.stages.size()); ++s) {
      std::vector<PlanOp> compute;
      for (const PlanOpKind kind :
           {PlanOpKind::kForward, PlanOpKind::kInputGradient, PlanOpKind::kWeightGradient}) {
        for (int32_t m = 0; m < replica.micro_batches; ++m) {
          compute.push_back({kind, s, m, 0, false});
        }
      }
      plan.programs.push_back(CompleteProgram(plan, replica.stages[s].devices[0], compute));
    }
  }
  plan.step_ns = static_cast<int64_t>(900e6 * slowness / static_cast<double>(plan.members.size()));
  plan.schedule = "gpipe";
  return plan;
}

}  // namespace atl::testing
