// Layouts of an island in a few words, for tests and benchmarks: their programs come from the
// planner's schedules.

#ifndef ATOLL_TESTS_ISLAND_LAYOUTS_H_
#define ATOLL_TESTS_ISLAND_LAYOUTS_H_

#include <string>
#include <vector>

#include "common/protocol/island_plan.h"

namespace atl {

struct ReplicaSpec {
  std::vector<int32_t> stage_layers;  // adds up to the model's layers
  int32_t micro_batches = 1;
  int64_t micro_batch_sequences = 1;
  std::vector<int> stage_ranks = {};  // empty: tensor_parallel everywhere; one chunk a device
};

struct IslandLayout {
  std::string name;  // for display
  std::vector<ReplicaSpec> replicas;
  std::string schedule = "1f1b";  // a name of coordinator/simulator/search.h
  int chunks_per_device = 1;
  bool v_shape = false;
  int tensor_parallel = 1;
  std::vector<int32_t> tensor_split_ratios;
  int recompute = 0;     // every so many-th layer: 1: all; 0: none
  int workers = 1;       // the devices are assigned to w1, w2, ... in order, as evenly as can be
  bool unsplit = false;  // W with its B
  int optimizer_copies = 0;  // see IslandPlan
  int sites = 0;             // the workers are assigned to them likewise; 0: not known
};

// A plan of number 1. CHECKs that the schedule exists for the layout.
IslandPlan MakePlan(const IslandLayout& spec);

}  // namespace atl

#endif  // ATOLL_TESTS_ISLAND_LAYOUTS_H_
