// The real planner for rehearsed islands, and its plans in the form that cores carry.
//
// A search is made once for each kind of island: members in the same order, with the same devices
// and like links between their sites, have the same plan under other names.
//
// A core carries of a plan its members, its step's time and one replica of them all: cores decide
// by who takes part, and their messages stay small. The real plan says what survives a loss.

#ifndef ATOLL_REHEARSAL_PLANNER_H_
#define ATOLL_REHEARSAL_PLANNER_H_

#include <deque>
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
  explicit Searches(const Scene* scene);

  absl::StatusOr<IslandPlan> Find(const PlanRequest& query);
  const SceneWorker& Describe(const NodeId& worker) const { return *described_.at(worker); }

 private:
  absl::StatusOr<IslandPlan> Search(const PlanRequest& query,
                                    const std::map<NodeId, std::string>& names) const;
  std::string DescribeKind(const PlanRequest& query, bool by_name) const;

  const Scene& scene_;
  std::map<NodeId, const SceneWorker*> described_;
  mutable std::mutex mutex_;
  std::map<std::string, absl::StatusOr<IslandPlan>> plans_;  // by kind, of members "m0", "m1", ...
};

// The plans of one world. Not thread-safe.
class Planner {
 public:
  // Both outlive it.
  Planner(const Scene* scene, Searches* searches) : scene_(*scene), searches_(*searches) {}

  // For `layers` layers, as the cores count them. Job and request are the caller's.
  PlanMade Plan(IslandId island, const PlanRequest& query, const std::optional<IslandPlan>& current,
                int32_t layers);
  // Returns whether parameters and moments are whole without these workers, by the island's
  // newest real plan of exactly these members with a part.
  bool Survives(IslandId island, const std::vector<NodeId>& members,
                const std::set<NodeId>& lost) const;
  // Returns the share of the model that owners at each site push and pull, by that plan.
  std::map<std::string, double> ShareBySite(IslandId island,
                                            const std::vector<NodeId>& members) const;
  // Returns how many devices of each member have a part in that plan.
  std::map<NodeId, int64_t> CountDevices(IslandId island, const std::vector<NodeId>& members) const;
  // Returns whether that plan has everything on two workers at least.
  bool IsRedundant(IslandId island, const std::vector<NodeId>& members) const;

 private:
  struct Kept {
    std::vector<NodeId> members;  // with a part, sorted
    IslandPlan plan;
    std::set<std::set<NodeId>> holders;  // of each part of the state
  };
  const Kept* FindReal(IslandId island, std::vector<NodeId> members) const;
  void Keep(IslandId island, std::vector<NodeId> members, IslandPlan real);
  // By the job's objective; 0: steps' times decide.
  double Rank(const PlanRequest& query, const IslandPlan& real) const;

  const Scene& scene_;
  Searches& searches_;
  std::map<IslandId, std::deque<Kept>> real_;  // the newest of each island, the newest last
};

}  // namespace atl::rehearsal

#endif  // ATOLL_REHEARSAL_PLANNER_H_
