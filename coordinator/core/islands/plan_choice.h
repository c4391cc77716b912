// Decides whether an island needs a new plan (replan request; straggler mitigation), and whether
// one that was made is taken: plans.h has the rules.

#ifndef ATOLL_COORDINATOR_CORE_ISLANDS_PLAN_CHOICE_H_
#define ATOLL_COORDINATOR_CORE_ISLANDS_PLAN_CHOICE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/state.h"

namespace atl::coord {

// `at`: where it is, usually.
bool Contains(const std::vector<IslandMember>& members, const IslandMember& member, size_t at = 0);

// Null: it is not attached.
const Worker* Leader(const State& s, const IslandRecord& island);

// Sets why the island needs a plan ("": it needs none), and whether that is urgent.
void FindReason(const State& s, const Job& job, const IslandRecord& island,
                const std::vector<IslandMember>& island_members, Planning& planning);

// A plan from the planner is checked like an untrusted one. `requested`: the workers of its
// request.
absl::Status CheckPlan(const Job& job, const std::vector<IslandMember>& requested,
                       const IslandPlan& plan);

// Returns why the plan in force is kept although another one was made; "" if it is not.
std::string WhyKeep(const State& s, const Job& job, const IslandRecord& island,
                    const IslandPlan& current, const PlanMade& answer);

// "plan 3 by w1, w2: 1 replica of 2 stages, 1f1b, 12.5 ms a step predicted"
std::string DescribePlan(const IslandPlan& plan);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_ISLANDS_PLAN_CHOICE_H_
