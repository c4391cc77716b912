// The real planner for rehearsed islands, and its plans in the form that cores carry.
//
// A search is made once for each kind of island: members in the same order, with the same devices
// and like links between their sites, have the same plan under other names.
//
// A core carries of a plan its members, its step's time and one replica a member: cores decide by
// who takes part, and their messages stay small. The real plan says what survives a loss.

#ifndef ATOLL_REHEARSAL_PLANNER_H_
#define ATOLL_REHEARSAL_PLANNER_H_

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/core.h"
#include "rehearsal/scene.h"

namespace atl::rehearsal {

// The searches of all worlds of one scene. Thread-safe.
class Searches {
 public:
  // `scene` outlives it.
  explicit Searches(const Scene* scene) : scene_(*scene) {}

  absl::StatusOr<IslandPlan> Find(const PlanRequest& query);

 private:
  absl::StatusOr<IslandPlan> Search(const PlanRequest& query,
                                    const std::map<NodeId, std::string>& names) const;
  std::string DescribeKind(const PlanRequest& query, bool by_name) const;

  const Scene& scene_;
  mutable std::mutex mutex_;
  std::map<std::string, absl::StatusOr<IslandPlan>> plans_;  // by kind, of members "m0", "m1", ...
};

// The plans of one world. Not thread-safe.
class Planner {
 public:
  // Both outlive it.
  Planner(const Scene* scene, Searches* searches) : scene_(*scene), searches_(*searches) {}

  // For `layers` layers, as the cores count them. Job, island and request are the caller's.
  PlanMade Plan(const PlanRequest& query, const std::optional<IslandPlan>& current, int32_t layers);
  // Returns whether parameters and moments are whole without these workers, by the newest real plan
  // of exactly these members with a part.
  bool Survives(const std::vector<NodeId>& members, const std::set<NodeId>& lost) const;
  // Returns whether that plan has everything on two workers at least.
  bool IsRedundant(const std::vector<NodeId>& members) const;

 private:
  const IslandPlan* FindReal(std::vector<NodeId> members) const;
  // By the job's objective; 0: steps' times decide.
  double Rank(const PlanRequest& query, const IslandPlan& real) const;

  const Scene& scene_;
  Searches& searches_;
  std::map<std::vector<NodeId>, IslandPlan> real_;  // by members with a part, sorted
};

}  // namespace atl::rehearsal

#endif  // ATOLL_REHEARSAL_PLANNER_H_
