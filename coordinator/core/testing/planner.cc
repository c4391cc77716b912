#include "coordinator/core/testing/planner.h"

#include <algorithm>

namespace atl::testing {

IslandPlan TestPlan(const MakePlan& ask, double slowness) {
  const auto layers = static_cast<int32_t>(ask.facts.layers.size());
  const int32_t stages = std::min(static_cast<int32_t>(ask.workers.size()), layers);
  IslandPlan plan;
  plan.number = ask.number;
  PlanReplica replica;
  replica.micro_batch_sequences = 1;
  replica.micro_batches = static_cast<int32_t>(ask.spec.inner.batch_sequences);
  for (int32_t s = 0; s < stages; ++s) {
    const int32_t first = layers * s / stages;
    plan.members.push_back(ask.workers[s].member);
    replica.stages.push_back(
        {first, layers * (s + 1) / stages - first, {ask.workers[s].member.worker + "/0"}, {}});
  }
  plan.replicas = {replica};
  for (int32_t s = 0; s < stages; ++s) {
    std::vector<PlanOp> compute;
    for (const PlanOpKind kind :
         {PlanOpKind::kForward, PlanOpKind::kInputGradient, PlanOpKind::kWeightGradient}) {
      for (int32_t m = 0; m < replica.micro_batches; ++m) compute.push_back({kind, s, m, 0, false});
    }
    plan.programs.push_back(CompleteProgram(plan, replica.stages[s].devices[0], compute));
  }
  plan.step_ns = static_cast<int64_t>(900e6 * slowness / stages);
  plan.schedule = "gpipe";
  return plan;
}

}  // namespace atl::testing
