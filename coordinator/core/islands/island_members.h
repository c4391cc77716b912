// Elastic membership of islands: which worker joins which island, which one leads it, which ones
// leave it.
//
// JobSpec.layout says which workers may share an island. The first worker of an island leads it;
// the others follow, in the order in which they came. A worker that ends costs the island a new
// plan (switching.h); a leader that dies costs it a new generation, under the first of those that
// remain.

#ifndef ATOLL_COORDINATOR_CORE_ISLANDS_ISLAND_MEMBERS_H_
#define ATOLL_COORDINATOR_CORE_ISLANDS_ISLAND_MEMBERS_H_

#include <string>
#include <vector>

#include "coordinator/core/state.h"

namespace atl::coord {

// Workers that a job needs to start: enough for outer.min_islands complete islands.
int64_t NeededWorkers(const JobSpec& spec);

// How many more workers the job's islands can take, those of its candidates counted.
class IslandCapacity {
 public:
  IslandCapacity(const State& s, const Job& job);
  // Assigns one more worker; false: no island can take it.
  bool Take(const Worker& worker);
  // `saved`: an earlier copy.
  void Restore(const IslandCapacity& saved) { islands_ = saved.islands_; }

 private:
  // An island as it is, or would be.
  struct OpenIsland {
    std::string group;
    bool shared = false;
    int64_t workers = 0;
  };
  const Job& job_;
  std::vector<OpenIsland> islands_;
};

// Returns whether workers can be assigned now: which of them share an island is not known while a
// leader is not back after the coordinator's restart.
bool CanAssignWorkers(const State& s, const Job& job);

// Assigns the worker to an island that can take it, else to an island of its own. REQUIRES: it is
// attached and has no assignment.
void Join(State& s, Job& job, Worker& worker);

// Records that the island goes on without the worker, or is vacant.
void NoteLost(const NodeId& worker, std::string reason, IslandRecord& island);

// The worker at `assignment` is unavailable.
void LoseWorker(State& s, const State::Assignment& assignment, const NodeId& worker,
                const Loss& loss);

// The island is vacant, of all its workers at once.
void LoseIsland(State& s, Job& job, IslandId id, const Loss& loss);

// A worker reports that it ends. One that shares an island works on until its part of the state has
// moved; false: it is no such one.
bool BeginLeaving(State& s, Worker& worker, const Loss& loss);

// Leader and followers, with what is known of their peer links.
std::vector<IslandMember> IslandMembers(const State& s, const IslandRecord& island);
// Lists the members of its next plan: without a leader that is to hand over, the successor first.
std::vector<IslandMember> NextIslandMembers(const State& s, const Job& job,
                                            const IslandRecord& island);
bool SameWorkers(const std::vector<IslandMember>& a, const std::vector<IslandMember>& b);

// On a follower's heartbeat. Workers that serve an island without being in its plan are ordered to
// stop as soon as the plan is set up without them.
void OnMemberProgress(State& s, Worker& worker);
void DismissOutsiders(State& s, Job& job, IslandId id);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_ISLANDS_ISLAND_MEMBERS_H_
