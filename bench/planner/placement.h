// Where and in which order operators run, over multi-edge links: branch and bound.
//
// Given one or several models as graphs of operators, devices and directed links of several edges,
// minimise the weighted sum of the models' completion times. A device runs one operator at a time;
// an operator starts when its inputs have arrived. Results travel in the order in which their
// consumers are placed, split over a link's edges (see simulator/network.h); one transfer per
// consumer. Memory on a device is what is live: results until their last consumer is done, copies
// of inputs while an operator runs, and its workspace.
//
// The search is best first with a greedy incumbent, a batch of the frontier at a time, which
// workers may expand side by side. A node is an order of placements so far; it is dropped when its
// bound is no better than the incumbent, or when another with the same operators placed and the
// same results still wanted is nowhere later (where memory cannot bind and no edges exclude each
// other). Untouched identical devices are tried once.

#ifndef ATOLL_BENCH_PLANNER_PLACEMENT_H_
#define ATOLL_BENCH_PLANNER_PLACEMENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/thread_pool.h"
#include "coordinator/simulator/network.h"

namespace atl::plan {

struct Operator {
  std::vector<sim::Nanos> time_ns;  // per device; negative: cannot run there
  std::vector<int> inputs;          // operators whose results it needs, all before it in the list
  int64_t result_bytes = 0;
  int64_t workspace_bytes = 0;
  int model = 0;
};

struct PlacementProblem {
  std::vector<Operator> operators;                 // in a topological order, at most 64
  std::vector<int64_t> memory_bytes;               // per device
  std::map<std::pair<int, int>, sim::Link> links;  // from device to device; none: cannot send
  std::vector<double> weights;                     // per model
};

struct Placed {
  int op = 0;
  int device = 0;
  sim::Nanos start_ns = 0;
  sim::Nanos end_ns = 0;
};

struct Placement {
  std::vector<Placed> order;
  double cost_ns = 0;    // weighted sum of completion times
  double bound_ns = 0;   // nothing is better than this
  bool optimal = false;  // of the schedules described above
  int64_t nodes = 0;
};

// Places by the earliest end, most urgent operator first. The error says what fits nowhere.
absl::StatusOr<Placement> PlaceGreedily(const PlacementProblem& problem);

struct PlacementOptions {
  int64_t max_nodes = 1'000'000;  // expanded at most
  std::function<bool()> stop;     // polled between batches; true ends the search
  // Nodes taken from the frontier at once. The result depends on it, not on which thread expands
  // them.
  int batch = 32;
  ThreadPool* pool = nullptr;  // of a batch; null: one after another, here
};

// Never worse than greedy; ended early it returns what is best by then with its bound. The same for
// any number of workers.
absl::StatusOr<Placement> PlaceOptimally(const PlacementProblem& problem,
                                         const PlacementOptions& options);

}  // namespace atl::plan

#endif  // ATOLL_BENCH_PLANNER_PLACEMENT_H_
