// Enumerates layouts for the planner to rank. Internal to the planner.

#ifndef ATOLL_COORDINATOR_PLANNER_CANDIDATES_H_
#define ATOLL_COORDINATOR_PLANNER_CANDIDATES_H_

#include <functional>
#include <string>
#include <vector>

#include "coordinator/planner/grouping.h"
#include "coordinator/planner/layout.h"

namespace atl::plan {

// Entities of one type in one site, by node.
struct EntityPool {
  int type = 0;
  std::string site;
  double power = 0;           // samples per second of the whole model
  double price_per_hour = 0;  // of each entity
  int64_t memory_bytes = 0;   // of all members
  std::vector<std::vector<int>> entities;
};

struct Candidate {
  Layout layout;
  std::string how;  // "by type counts", "within sites in paris alone", "equal shares"
  double estimate_s = 0;
  double rank = 0;         // by the job's objective, of the estimate
  std::string scope = "";  // which entities it was to use; empty: all
  bool fitted = false;     // to the number of stages that the job fixes, and to be kept so
};

// Tensor-parallel sets of each node's devices, of one type where they come out even. What is left
// over of several types makes sets, too: of the type of their slowest device, which comes first and
// has no more memory than the others.
std::vector<EntityPool> PoolsOf(const Cluster& cluster, const Costs& costs, int tensor_parallel,
                                int micro_batch);

// Whether most tensor-parallel sets are the only ones of their type and site, and not too many.
bool AreUnlike(const std::vector<EntityPool>& pools);

// Sizes to try: the job's or the defaults.
std::vector<int> TensorParallelSizes(const Job& job);
std::vector<int> MicroBatchSizes(const Job& job);

// Micro-batches for each replica by the speed of its slowest stage.
void ShareMicroBatches(const Cluster& cluster, const Costs& costs, int total, Layout& layout);

// All candidates, the best rank first. `why_not` receives the last reason for which a layout
// was dropped. Stops early when `stop` says so and there is a candidate.
std::vector<Candidate> Enumerate(const Cluster& cluster, const Costs& costs, const Job& job,
                                 const std::function<bool()>& stop, absl::Status* why_not);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_CANDIDATES_H_
