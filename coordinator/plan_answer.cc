#include "coordinator/plan_answer.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/planning/island_scope.h"
#include "coordinator/planning/objective.h"
#include "coordinator/planning/planning.h"
#include "coordinator/planning/predicted_step.h"

namespace atl {
namespace {

// Both plans as the job's objective ranks them today.
void RankBoth(const PlanRequest& request, const IslandPlan& current, PlanMade& made) {
  const LayoutSpec& layout = request.spec.layout;
  if (layout.objective == PlanObjective::kTime && layout.budget == 0) return;
  const absl::StatusOr<PlanningInput> input = MakePlanningInput(request);
  if (!input.ok() || made.current_step_ns == 0) return;
  const auto rank = [&](const IslandPlan& plan, int64_t step_ns) {
    return Rate(request, *input, plan, 1e-9 * static_cast<double>(step_ns)).rank;
  };
  made.rank = rank(*made.plan, made.plan->step_ns);
  made.current_rank = rank(current, made.current_step_ns);
}

}  // namespace

PlanMade AnswerPlan(PlanRequest& request, const std::optional<IslandPlan>& current) {
  PlanMade made;
  made.left_out = ExcludeUnreachable(request);
  made.plan = PlanIsland(request);
  for (const auto& [worker, why] : made.left_out) {
    if (made.plan.ok()) absl::StrAppend(&made.plan->reason, "; without ", worker, ": ", why);
  }
  if (made.plan.ok() && current) {
    made.current_step_ns = EstimateStepNs(request, *current);
    RankBoth(request, *current, made);
  }
  return made;
}

WorkersGrouped AnswerGrouping(const PlanRequest& request) {
  WorkersGrouped grouped{{}, 0, IslandScope::kSite, "by measured links"};
  if (request.spec.layout.island == IslandScope::kAuto) {
    const absl::StatusOr<IslandScopeChoice> choice = ChooseIslandScope(request);
    grouped.island_scope = choice.ok() ? choice->island_scope : IslandScope::kAll;
    grouped.reason = choice.ok() ? choice->reason : std::string(choice.status().message());
  }
  return grouped;
}

}  // namespace atl
