// One way to lay a job out over a cluster, and what it costs.
//
// A layout is built from entities: sets of `tensor_parallel` devices of one type in one node that
// act as one stage. Replicas may be cut differently and take different numbers of micro-batches.

#ifndef ATOLL_COORDINATOR_PLANNER_LAYOUT_H_
#define ATOLL_COORDINATOR_PLANNER_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/cluster.h"
#include "coordinator/planner/costs.h"
#include "coordinator/simulator/bounds.h"
#include "coordinator/simulator/search.h"

namespace atl::plan {

struct Job {
  int global_batch = 1;              // samples per step
  std::vector<int> micro_batches;    // sizes to try; empty: 1, 2, 4, 8
  std::vector<int> tensor_parallel;  // sizes to try; empty: 1, 2, 4, 8
  double gradient_bytes = 4;         // per parameter on the wire
};

struct Stage {
  std::vector<int> devices;  // the tensor-parallel set, in order
  int first_layer = 0;       // layers [first_layer, last_layer)
  int last_layer = 0;
};

struct Replica {
  std::vector<Stage> stages;
  int micro_batches = 1;
};

struct Layout {
  int tensor_parallel = 1;
  int micro_batch = 1;            // samples
  std::string schedule = "best";  // a family of the simulator; "1f1b" runs an unsplit backward
  std::vector<Replica> replicas;
};

// The simulated step of one kind of replica (equal replicas are played once).
struct ReplicaOutcome {
  std::string kind;           // equal for replicas that take equally long
  std::vector<int> replicas;  // indices of all that are equal
  sim::Problem problem;
  sim::Found found;
  sim::Bound bound;
  std::vector<int64_t> state_bytes;   // per stage, on each device
  std::vector<int64_t> memory_bytes;  // per stage: what a device has for state and activations
};

struct Outcome {
  double step_s = 0;  // slowest replica, then the synchronisation of gradients and the optimizer
  double sync_s = 0;
  double bound_s = 0;  // no schedule of this layout is faster
  std::vector<ReplicaOutcome> kinds;
};

struct Evaluation {
  int restarts = 24;  // simulations per kind of replica, for searched schedules
  uint64_t seed = 1;
  // Simulated operations per kind: large pipelines get fewer restarts, but at least 4.
  int64_t operations = 1'000'000;
  const Outcome* known = nullptr;  // kinds already evaluated are taken from here
};

// Cuts that balance the layers for this order of stages under memory, with 1F1B's activations.
absl::Status CutReplica(const Cluster& cluster, const Costs& costs, int tensor_parallel,
                        int micro_batch, Replica& replica);

// A quick estimate: slowest replica by the cost model (fill and drain, bottleneck stage or link per
// micro-batch) plus synchronisation. Never simulates.
double EstimateSeconds(const Cluster& cluster, const Costs& costs, const Job& job,
                       const Layout& layout);

// Plays the layout. The error says which device lacks how much memory. Replicas that send between
// the same two sites share that wire evenly.
absl::StatusOr<Outcome> EvaluateLayout(const Cluster& cluster, const Costs& costs, const Job& job,
                                       const Layout& layout, const Evaluation& evaluation);

// Time of the gradients' rings, layer by layer: layer L's ring joins the stages that hold it in
// each replica; rings over a node's card share it, and so do rings between two sites.
double SyncSeconds(const Cluster& cluster, const Costs& costs, const Job& job,
                   const Layout& layout);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_LAYOUT_H_
