// The real planner for rehearsed islands, and its plans in the form that cores carry.
//
// A search is made once for each kind of island: members in the same order, with the same devices
// at the same sites, have the same plan under other names. Plans are the same for all seeds, so one
// planner serves them all. Not thread-safe.
//
// What cores carry of a plan is its members, its step's time and one replica a member: cores decide
// by who takes part, and their messages stay small. The real plan says what survives a loss.

#ifndef ATOLL_REHEARSAL_PLANNER_H_
#define ATOLL_REHEARSAL_PLANNER_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/core.h"
#include "rehearsal/scene.h"

namespace atl::rehearsal {

class Planner {
 public:
  // `scene` outlives it.
  explicit Planner(const Scene* scene) : scene_(*scene) {}

  // For `layers` layers, as the cores count them.
  absl::StatusOr<IslandPlan> Plan(const PlanRequest& query, int32_t layers);
  // Returns whether parameters and moments are whole without these workers, by the newest real plan
  // of exactly these members with a part.
  bool Survives(const std::vector<NodeId>& members, const std::set<NodeId>& lost) const;
  int64_t searches() const { return static_cast<int64_t>(plans_.size()); }

 private:
  absl::StatusOr<IslandPlan> FindReal(const PlanRequest& query);

  const Scene& scene_;
  struct Found {
    absl::StatusOr<IslandPlan> plan;
    std::vector<NodeId> members;  // of its request
  };
  std::map<std::string, Found> plans_;
  std::map<std::vector<NodeId>, IslandPlan> real_;  // by members with a part, sorted
};

}  // namespace atl::rehearsal

#endif  // ATOLL_REHEARSAL_PLANNER_H_
