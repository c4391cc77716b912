// When an island gets a new plan, and whether the one that the planner made is taken.
//
// A plan is urgent when the one in force cannot be run: there is none, its leader is another, or
// one of its workers is unavailable. Otherwise a plan is wanted when a worker has joined, when the
// island sends a replan request (a saturated link), or when measurements have changed (a device or
// link that became slower or faster). It replaces the one in force only if its predicted step is
// shorter by CoordinatorOptions::plan_gain, or if it has the numbers of stages, replicas and
// devices that the job fixes and the one in force has not. docs/design/islands.md has
// the reasons.

#ifndef ATOLL_COORDINATOR_CORE_ISLANDS_PLANS_H_
#define ATOLL_COORDINATOR_CORE_ISLANDS_PLANS_H_

#include <string>
#include <vector>

#include "coordinator/core/state.h"

namespace atl::coord {

// Returns whether the island runs by plans. A worker of one device by itself does not, unless the
// job requests what only plans have, or does not fit it otherwise: then it has measured its
// device, which such a worker does for nothing else.
bool NeedsPlan(const State& s, const Job& job, const IslandRecord& island);

// Returns whether the worker leads the plan's island or has a device in it. Its other members are
// only sources of the layers that they hold, until the island is set up.
bool HasPart(const IslandPlan& plan, const NodeId& worker);

// The island's plan if all that have a part in it are still its workers; else null.
const IslandPlan* PlanInForce(const Job& job, const IslandRecord& island);

// Returns whether the leader reports that the island is set up for the plan.
bool IsSetUp(const State& s, const Job& job, const IslandRecord& island, const IslandPlan& plan);

// The same layout under a new number, for a new generation of the same workers.
void RenumberPlan(Job& job, IslandRecord& island);

void OnPlanMade(State& s, const PlanMade& made);
void OnProfileChanged(State& s, const ProfileChanged& event);
// Requests the plans that are wanted now.
void AdvancePlans(State& s, Job& job);
Instant NextPlanDeadline(const State& s, const Job& job);

// See CoordinatorCore.
std::vector<MakePlan> PlanRequests(const State& s, const Job& job);
std::string WhyPlanIsKept(const State& s, const Job& job, const PlanMade& made);
std::vector<PlanMember> IdleWorkers(const State& s, const LayoutSpec& layout);

// Describes what the island's planning waits for or failed with, human-readable; "" if there is
// nothing to say.
std::string DescribePlanning(const State& s, const Job& job, const IslandRecord& island);
// Names the plans of the islands that cannot train without one.
std::string MissingPlans(const State& s, const Job& job);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_ISLANDS_PLANS_H_
