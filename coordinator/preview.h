// Previews of plans before an island runs them: `atoll plan JOB`, `atoll plan --live`.
//
// A preview is made as the islands' plans are (plan_answer.h), of what is known when it is
// requested: nothing is measured for it and nothing is stored. The pool of the islands' planner
// makes it when no island waits for a plan.

#ifndef ATOLL_COORDINATOR_PREVIEW_H_
#define ATOLL_COORDINATOR_PREVIEW_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/island_planner.h"

namespace atl {

// A preview of one island's plan.
struct PreviewedPlan {
  PlanMade made;
  int64_t current_number = 0;             // of the plan in force; 0: none
  std::vector<std::string> idle_devices;  // offered, and not in the plan
};

struct Preview {
  JobId job;             // empty: it is not submitted
  std::string grouping;  // why its islands are of these workers, where that had to be found
  std::vector<PreviewedPlan> plans;
};

using OnPreview = std::function<void(absl::StatusOr<Preview>)>;

// Plans of a job's islands. `on_done` is called once, on a thread of the pool or, where too many
// wait, at once. What is best when the limit is over is the plan.
void QueryPreview(Instant now, IslandPlanner& planner, const std::vector<MakePlan>& queries,
                  Duration limit, OnPreview on_done);

// Plans of a job that these workers would get if it were submitted now: which workers share an
// island is found first.
void QueryPreview(Instant now, IslandPlanner& planner, const GroupWorkers& query, Duration limit,
                  OnPreview on_done);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PREVIEW_H_
