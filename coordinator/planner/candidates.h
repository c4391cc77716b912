// Enumerates layouts for the planner to rank, and says why there is none. Internal to the planner.

#ifndef ATOLL_COORDINATOR_PLANNER_CANDIDATES_H_
#define ATOLL_COORDINATOR_PLANNER_CANDIDATES_H_

#include <functional>
#include <string>
#include <vector>

#include "coordinator/planner/cluster/entities.h"
#include "coordinator/planner/groups/grouping.h"
#include "coordinator/planner/layout.h"

namespace atl::plan {

struct Candidate {
  Layout layout;
  std::string how;  // "by type counts in paris alone", "equal shares"
  double estimate_s = 0;
  double rank = 0;         // by the job's objective, of the estimate
  std::string scope = "";  // which entities it was to use; empty: all
  int stages = 0;          // of every replica, to be kept so; 0: any number
  EntitySizes sizes = {};  // of the entities that it chooses from
};

// Up to so many devices a search looks at more layouts than the best by estimate: it takes little
// time.
inline constexpr int64_t kFewDevices = 48;

// Returns whether the replicas have as many stages as the candidate is to have.
bool KeepsStages(const Candidate& candidate, const Layout& layout);

// Micro-batches for each replica by the speed of its slowest stage.
void ShareMicroBatches(const Cluster& cluster, const Costs& costs, int total, Layout& layout);

// All candidates, the best rank first. `why_not` receives the last reason for which a layout
// was dropped, `over_limit` the last limit of traffic that one would go over. Stops early when
// `stop` says so and there is a candidate.
std::vector<Candidate> Enumerate(const Cluster& cluster, const Costs& costs, const Job& job,
                                 const std::function<bool()>& stop, absl::Status* why_not,
                                 absl::Status* over_limit);

// Call when no layout fits. Names the device that lacks most and how much: its share of the whole
// model if all devices held one replica together, or the largest layer if that alone is too much;
// and what would do: more devices, fewer bytes of state per parameter, a smaller micro-batch, more
// tensor parallelism. `last`: what the last layout tried was refused for.
absl::Status ExplainNoFit(const Cluster& cluster, const Costs& costs, const Job& job,
                          const absl::Status& last);

// INVALID_ARGUMENT where no layout of this cluster can be as the job fixes it: too few devices,
// layers or micro-batches, or no such schedule. Names the keys of [layout].
absl::Status CheckConstraints(const Cluster& cluster, const Costs& costs, const Job& job);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_CANDIDATES_H_
