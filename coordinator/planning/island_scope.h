// Which workers share an island: what the job says (layout.island), or, with "auto", what the
// planner finds best: all workers one island, those of each site one, or each worker one by itself.
// What is compared is planner/islands.h: samples a second, divided by how many more samples islands
// need.

#ifndef ATOLL_COORDINATOR_PLANNING_ISLAND_SCOPE_H_
#define ATOLL_COORDINATOR_PLANNING_ISLAND_SCOPE_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/islands.h"
#include "coordinator/planning/request.h"

namespace atl {

// More islands cost more state, transfers and rounds that can fail, and predictions from measured
// links are not exact: a scope with more islands is the better one if it is this many times as
// good.
inline constexpr double kWorthMoreIslands = 1.02;

struct IslandScopeChoice {
  IslandScope island_scope = IslandScope::kAll;
  std::string reason;  // all that were compared, and the model
};

// Each island takes steps of the job's whole batch. Numbers of islands outside outer.min_islands
// and max_islands are no choice. The error says what does not fit. Pure and deterministic.
absl::StatusOr<IslandScopeChoice> ChooseIslandScope(const PlanRequest& request);

// Rounds and encodings as the job has them.
plan::IslandOptions ToIslandOptions(const JobSpec& spec);

// Facts of a worker that its assignment to an island depends on.
struct ScopeWorker {
  std::string site;
  bool reachable = true;  // by other workers: otherwise it is an island by itself
};
// Returns which of the workers make up each island when a job begins
// (coordinator/core/islands/island_members.h), in this order; those beyond outer.max_islands are in
// none. REQUIRES: island_scope is not kAuto.
std::vector<std::vector<size_t>> AssignIslands(const std::vector<ScopeWorker>& workers,
                                               const JobSpec& spec, IslandScope island_scope);

// Plans of all islands.
struct ScopePlans {
  IslandScope island_scope = IslandScope::kAll;
  plan::Cluster cluster;  // what takes part; its sites are the islands where choice.use_islands
  plan::IslandChoice choice;
};

// Until when the next plan is improved (PlanRequest::enough), where so many plans are still to be
// made with it; null: as the request says of all.
using EnoughFunction = std::function<std::function<bool()>(size_t plans_left)>;

// The island scope that the job gets, and the plans of its islands: with `island_scope` kAuto what
// ChooseIslandScope chooses, by the same comparison; otherwise that one. For devices that are not
// there (`input` of files). The error says what does not fit, or names a key that such devices
// cannot satisfy.
absl::StatusOr<ScopePlans> PlanScope(const PlanRequest& request, const PlanningInput& input,
                                     IslandScope island_scope, const plan::IslandOptions& islands,
                                     const EnoughFunction& make_enough = nullptr);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLANNING_ISLAND_SCOPE_H_
