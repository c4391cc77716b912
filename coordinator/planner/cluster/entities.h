// Tensor-parallel sets of devices, and of which sizes they may be. Internal to the planner.

#ifndef ATOLL_COORDINATOR_PLANNER_CLUSTER_ENTITIES_H_
#define ATOLL_COORDINATOR_PLANNER_CLUSTER_ENTITIES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/planner/layout.h"

namespace atl::plan {

// Entities of one type in one site, by node.
struct EntityPool {
  int type = 0;
  std::string site;
  int size = 1;               // devices of each
  double power = 0;           // samples per second of the whole model
  double price_per_hour = 0;  // of each entity
  int64_t memory_bytes = 0;   // of all members
  std::vector<std::vector<int>> entities;
};

// Devices of an entity, by type.
using EntitySizes = std::vector<int>;

EntitySizes EvenSizes(const Cluster& cluster, int size);

// Unlike sizes worth trying: as many devices as a node of the type has, up to each size that the
// job allows; and one type in single devices, or in the largest sets of its nodes, with all others
// the other way. None, where the job allows one size, or nodes of all types are alike in this.
std::vector<EntitySizes> UnlikeSizes(const Cluster& cluster, const Job& job);

// Tensor-parallel sets of each node's devices, of one type where they come out even. Where all are
// of one size, what is left over of several types makes sets, too: of the type of their slowest
// device, which comes first and has no more memory than the others.
std::vector<EntityPool> BuildEntityPools(const Cluster& cluster, const Costs& costs,
                                         const EntitySizes& sizes, int micro_batch);
std::vector<EntityPool> BuildEntityPools(const Cluster& cluster, const Costs& costs,
                                         int tensor_parallel, int micro_batch);

// Returns whether most tensor-parallel sets are the only ones of their type and site, and not too
// many.
bool AreUnlike(const std::vector<EntityPool>& pools);

// Sizes to try: the job's or the defaults.
std::vector<int> TensorParallelSizes(const Job& job);
std::vector<int> MicroBatchSizes(const Job& job);

// Exchanges entities of a pipeline, so that its first and last one are of one size, as a tied head
// and its embedding need them. False where there are no two such.
bool EqualizeFirstAndLastStage(std::vector<Stage>& stages);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_CLUSTER_ENTITIES_H_
