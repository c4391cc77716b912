// Who shares an island where the job leaves it to the planner (layout.island = "auto"): all workers
// one island, those of each site one, or each worker one by itself. What is compared is
// planner/islands.h: samples a second, divided by how many more samples islands need.

#ifndef ATOLL_COORDINATOR_PLANNING_ISLAND_SCOPE_H_
#define ATOLL_COORDINATOR_PLANNING_ISLAND_SCOPE_H_

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/planning/request.h"

namespace atl {

struct ExtentChoice {
  IslandExtent extent = IslandExtent::kAll;
  std::string reason;  // all that were compared, and the model
};

// Each island takes steps of the job's whole batch. Numbers of islands outside outer.min_islands
// and max_islands are no choice. The error says what does not fit. Pure and deterministic.
absl::StatusOr<ExtentChoice> ChooseExtent(const PlanRequest& request);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLANNING_ISLAND_SCOPE_H_
