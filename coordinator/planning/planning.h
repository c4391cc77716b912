// From a job and the workers of one island to the plan that they run: the bridge between the
// control plane's words and the planner.
//
//   absl::StatusOr<IslandPlan> plan = PlanIsland(request);
//
// Pure and deterministic: the same request gives the same plan. Takes seconds for hundreds of
// devices, twice as long where memory binds, so the coordinator calls it from a thread of its own.

#ifndef ATOLL_COORDINATOR_PLANNING_PLANNING_H_
#define ATOLL_COORDINATOR_PLANNING_PLANNING_H_

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "coordinator/planning/request.h"

namespace atl {

// The best known layout that satisfies the constraints, in runtime form; Validate() accepts it. An
// island that has trained before (number > 1) and has lost what the job's numbers of stages,
// replicas and tensor-parallel devices need goes on without them, and its plan's reason says so.
// Micro-batches divide the batch exactly: sizes are chosen so, or, where the job fixes one that
// does not, the request is refused. Members without a stage are left out of plan.members, but for
// the leader: a layout that leaves the leader's devices idle is not chosen. Where the programs need
// more memory than the search has reserved for them, it searches again with more, a few times, and
// the reason says so. Where layout.recompute is "auto" and memory binds, two plans are compared:
// the best one that recomputes nothing, and the best one whose stages recompute as few of their
// blocks as they have to, which is taken where nothing else fits, or where its step is at least 1%
// shorter. Devices of different speed that share layers share them unevenly where that makes the
// step shorter, or as layout.tensor_split_ratios says. A plan in layout.plan is not searched for
// but checked (plan_changes.h). RESOURCE_EXHAUSTED: which device lacks how much memory and what
// would fit.
absl::StatusOr<IslandPlan> PlanIsland(const PlanRequest& request);

// The same for described workers: `make_input` stands for MakePlanningInput.
using MakeInput = absl::FunctionRef<absl::StatusOr<PlanningInput>(const PlanRequest&)>;
absl::StatusOr<IslandPlan> PlanIsland(const PlanRequest& request, MakeInput make_input);

// A plan in the planner's words, and in the runtime's.
struct FoundPlan {
  plan::Plan plan;
  // The same; programs have the memory that PredictProgramMemory (plan_memory.h) says, where that
  // is known.
  IslandPlan island;
};

// PlanIsland's search by itself, for plans with devices that are not there, too: `input` may have
// another cluster, other costs or other sizes than MakePlanningInput made of the request. Without
// input.cluster.leader any worker may lead. The plan has not been validated.
absl::StatusOr<FoundPlan> FindPlan(const PlanRequest& request, const PlanningInput& input);

// A plan for an island that is like another one of its job, or for a loss of workers that is like
// another loss. Jobs of many islands have them of like workers: one is searched for, and what was
// found is checked by the measurements of each other one, which takes a third of a search's time or
// less.

// Returns whether the two requests are of one job and differ in names and noise alone: members in
// the same order have the same devices, their layers' times are within 5% of each other, the links
// between them within 25%, sites separate them alike, and they hold the same layers. Both are first
// plans, or neither is, and the job pins none.
bool AreAlike(const PlanRequest& a, const PlanRequest& b);

// `plan`, which PlanIsland made of `other`, with the members of `request` in the assignments of
// those of `other`, and with times, programs and memory by the measurements of `request`. An error:
// it does not fit, or a step takes over 5% longer than in `plan`, which is what another plan has to
// gain to be worth a change. REQUIRES: AreAlike(request, other).
absl::StatusOr<IslandPlan> PlanLike(const PlanRequest& request, const PlanRequest& other,
                                    const IslandPlan& plan);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLANNING_PLANNING_H_
