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
  const auto rank = [&](const IslandChoice& one) {
    return ComputeSampleRank(job, one.samples_per_s, one.price_per_sample, one.factor);
  };
  return rank(choice) < rank(single) ? std::move(choice) : std::move(single);
}

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_TESTING_CHOOSE_ISLANDS_H_
