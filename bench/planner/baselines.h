// Layouts that others would use, for comparison. Each is the best of its kind by simulation over
// all sizes that the job allows. None splits its backward or fills bubbles by search; none knows of
// slow inter-site links unless it says so.
//
//   megatron       Megatron-LM's uniform 3D: equal stages of equal layers, equal samples for every
//                  replica, all devices in use in the order of the description, tensor parallelism
//                  within nodes, 1F1B
//   whale          the same structure, layers in proportion to the speed of each stage's slowest
//                  member, cut alike in all replicas
//   data-parallel  every entity a replica of its own, equal samples, one ring (PyTorch DDP)
//   hierarchical   the same, gradients summed within sites, then between them
//   varuna         no tensor parallelism; pipelines of neighbouring devices, all of one length with
//                  equal layers, any number of them (what is left over stays idle); a backward
//                  before a forward whenever it is ready (Varuna's rule). Without its recomputation
//   dapple         1F1B across sites: a stage's replicas all lie in one site, so that activations
//                  cross slow links and gradients do not; every pipeline passes all sites in order;
//                  layers balanced as if all devices were like the first one
//   metis          Metis-like: depth-first search over sequences of device types and over how many
//                  stages each type gives to every pipeline, pruned by the cost model; layers in
//                  proportion to speed, equal samples, 1F1B. Unlike Metis, data parallelism is of
//                  one width in all stages

#ifndef ATOLL_BENCH_PLANNER_BASELINES_H_
#define ATOLL_BENCH_PLANNER_BASELINES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/planner.h"

namespace atl::plan {

std::vector<std::string> BaselineNames();

// The error says what does not fit, or which names there are.
absl::StatusOr<Layout> Baseline(const Cluster& cluster, const Costs& costs, const Job& job,
                                absl::string_view name);

}  // namespace atl::plan

#endif  // ATOLL_BENCH_PLANNER_BASELINES_H_
