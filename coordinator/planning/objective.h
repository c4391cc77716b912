// A job's requirements of its plans ([layout] objective, deadline_hours, budget): limits of a step,
// and what training comes to by a plan. Pure.

#ifndef ATOLL_COORDINATOR_PLANNING_OBJECTIVE_H_
#define ATOLL_COORDINATOR_PLANNING_OBJECTIVE_H_

#include <string>

#include "absl/status/status.h"
#include "coordinator/planning/request.h"

namespace atl {

// `islands` of the job share its tokens evenly.
plan::Objective MakeObjective(const JobSpec& spec, int islands);

// The time that all islands of a job take for a sample, and its price.
struct TrainingRate {
  double seconds_per_sample = 0;
  double price_per_sample = 0;
};
// All of schedule.train_tokens.
double EstimateTrainingHours(const JobSpec& spec, const TrainingRate& rate);
double ComputePrice(const JobSpec& spec, const TrainingRate& rate);

// FAILED_PRECONDITION names the limit that is missed, by how much, and what to do.
absl::Status CheckLimits(const JobSpec& spec, const TrainingRate& rate);

// INVALID_ARGUMENT where the job requests a cheap plan and nothing has a price.
absl::Status CheckPrices(const JobSpec& spec, const plan::Cluster& cluster);

// "12.3 hours and 456 for 10000000 tokens"; without a price "12.3 hours for ...".
std::string TotalsText(const JobSpec& spec, const TrainingRate& rate);

// A plan in runtime form, of a step of so many seconds: how the job's objective ranks it, and its
// rate.
struct RatedPlan {
  double rank = 0;
  TrainingRate rate;
};
RatedPlan Rate(const PlanRequest& request, const PlanningInput& input, const IslandPlan& island,
               double step_s);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLANNING_OBJECTIVE_H_
