// The planner: the best known layout of a job on a cluster, why, and how far it can be from the
// best.
//
//   auto plan = PlanJob(cluster, costs, job, {});
//   if (plan.ok()) use(plan->layout, plan->outcome, plan->reason);
//
// For every tensor-parallel size, micro-batch and number of replicas it forms groups of devices in
// two ways (AutoHet's by type counts, over the whole cluster and parts of it, and equal shares of
// everything), orders the sites along fast links and within a site weak devices first, balances the
// layers under memory, shares the samples by speed, and ranks by the cost model. The best are
// simulated with searched schedules, also with their groups in the order that SpanTrain's search
// likes best, or, if the job says so, as branch and bound maps their devices to stages; the winner,
// and of few devices the best of each kind that comes near it, is improved by moving cuts; where
// its devices idle and every replica stays in one site, it also competes with two stages per
// device, interleaved and V-shaped. Deterministic in the seed; a time budget, if any, is the
// caller's through Options::stop.

#ifndef ATOLL_COORDINATOR_PLANNER_PLANNER_H_
#define ATOLL_COORDINATOR_PLANNER_PLANNER_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/thread_pool.h"
#include "coordinator/planner/evaluation.h"

namespace atl::plan {

struct Plan;

struct Options {
  static constexpr int kThreadsMax = 4;  // that it has work for

  int simulate = 6;       // candidates to simulate, and those that are nearly as good
  int restarts = 12;      // simulations per kind of replica and candidate
  int improvements = 24;  // small changes to try on the winner

  uint64_t seed = 1;
  bool two_stages_per_device = true;  // also try interleaved and V-shaped placements
  ThreadPool* pool = nullptr;         // null: one thread; no plan depends on it
  std::function<bool()> stop;  // polled between candidates, by any thread; ends with what is best
  // Layouts that compete with all that is found, such as the one that runs: where the job allows
  // one, the plan is never worse.
  std::vector<Layout> starts = {};
  // Polled between rounds of more improvements after the search, until it is true; null: there are
  // none. More rounds are never worse.
  std::function<bool()> enough = nullptr;
};

// Parts of a step, in a row: what the busiest device of the slowest replica computes, what else
// that replica's operations take, all-reduces and votes that no operation hides.
struct StepParts {
  double work_s = 0, wait_s = 0, sync_s = 0, commit_s = 0;
};
StepParts GetStepParts(const Outcome& outcome);

struct Alternative {
  std::string what;
  std::string structure;  // "2 replicas x 3 stages, TP 2": equal for those that are alike
  double step_s = 0;
  double price = 0;  // of a step
  double rank = 0;
  std::optional<StepParts> parts = {};  // of one that was simulated; others are estimated

  bool simulated() const { return parts.has_value(); }
};

// Returns the best of the plan's alternatives of each structure but the plan's own, simulated ones
// before others, at most so many.
std::vector<Alternative> SelectUnlike(const Plan& plan, size_t most);
// Why a step of the one takes longer than one of the other: the part that grows most.
std::string WhyLonger(const StepParts& longer, const StepParts& than);

struct Plan {
  Layout layout;
  Outcome outcome;
  std::vector<Alternative> alternatives;  // what lost, best first
  double cluster_bound_s = 0;             // all devices busy all the time, each at its best
  double price = 0;                       // of a step
  double rank = 0;                        // by the job's objective (objective.h)
  std::string reason;                     // what was compared and what won by how much
  std::string times_from;  // "measured", "interpolated", "roofline at 45% of the datasheet"
  int candidates = 0;
  int simulated = 0;
  uint64_t seed = 0;
  // With Recompute::kAuto: some candidate saved memory, or none could. Otherwise nothing would be
  // other without.
  bool memory_binds = false;
};

// The error says what does not fit, where, and what would.
absl::StatusOr<Plan> PlanJob(const Cluster& cluster, const Costs& costs, const Job& job,
                             const Options& options);

// After a change of the plan's layout or outcome.
void Rerank(const Cluster& cluster, const Costs& costs, const Job& job, Plan& plan);

// Marks a layout's name whose devices branch and bound has mapped to stages.
inline constexpr char kByBranchAndBound[] = "mapped by branch and bound";

// Every device trains on its own, without communication, at its best size: no plan is faster.
double ClusterBoundSeconds(const Cluster& cluster, const Costs& costs, const Job& job);

// Why the step takes longer than the bound: memory, a link, or too few micro-batches. Empty within
// 5% of it.
std::string GapReason(const Layout& layout, const Outcome& outcome);

// Where a layout's times come from: the least certain source of any of its stages.
std::string TimesFrom(const Cluster& cluster, const Costs& costs, const Layout& layout);

// "2 replicas x 3 stages, TP 2, micro-batch 4": for tables and reasons. Without the micro-batch:
// its structure.
std::string Describe(const Layout& layout);
std::string DescribeStructure(const Layout& layout);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_PLANNER_H_
