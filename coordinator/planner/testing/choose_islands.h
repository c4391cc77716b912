// Islands or one plan, by the job's objective alone (planning/island_scope.h compares more).

#ifndef ATOLL_COORDINATOR_PLANNER_TESTING_CHOOSE_ISLANDS_H_
#define ATOLL_COORDINATOR_PLANNER_TESTING_CHOOSE_ISLANDS_H_

#include <utility>

#include "coordinator/planner/islands.h"

namespace atl::plan {

// REQUIRES: both can be planned.
inline IslandChoice ChooseIslands(const Cluster& cluster, const Costs& costs, const Job& job,
                                  const PlanFunction& make, const IslandOptions& islands) {
  IslandChoice single = *PlanSingle(cluster, costs, job, make, islands);
  IslandChoice choice = *PlanIslands(cluster, costs, job, make, islands);
  choice.single_samples_per_s = single.single_samples_per_s;
  choice.single_price = single.single_price;
  choice.single = std::move(single.single);
  choice.use_islands = ComputeSampleRank(job, choice.islands_samples_per_s, choice.islands_price,
                                         choice.islands_factor) <
                       ComputeSampleRank(job, choice.single_samples_per_s, choice.single_price, 1);
  if (!choice.use_islands) choice.steps_per_round = single.steps_per_round;
  return choice;
}

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_TESTING_CHOOSE_ISLANDS_H_
