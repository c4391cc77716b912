// Equal replicas: one schedule for all of them.
//
// Where a shared lane has bandwidth to spare, replicas that are equal run well in step: one order
// of operations, found for one of them with the lanes and trunks to itself, and copied to all.
// Their messages then request a shared lane one after another, (micro-batch, replica) round robin,
// each at full speed. Searching over one replica is as many times cheaper as there are replicas.
// (Near saturation it pays to schedule all at once: SearchReplicas tries both.)

#ifndef ATOLL_BENCH_PLANNER_REPLICATE_H_
#define ATOLL_BENCH_PLANNER_REPLICATE_H_

#include <vector>

#include "coordinator/simulator/problem.h"
#include "coordinator/simulator/search.h"

namespace atl::sim {

// One kind of pipeline. Member i of a kind is like member 0, chunk by chunk: times, bytes, memory,
// links. What they share (lanes, trunks) may differ.
struct Kind {
  std::vector<int> pipelines;
};

// The kinds in the order of their first members; empty if a device works for two pipelines, which
// then have no order of their own.
std::vector<Kind> FindPipelineKinds(const Problem& problem);

// The problem of one pipeline alone: its chunks, its devices by rising index, its links, and the
// lanes and trunks as they are. REQUIRES: its devices work for it alone.
Problem Alone(const Problem& problem, int pipeline);

// Every pipeline in the order that its kind has: `orders[k]` is a schedule of Alone(problem,
// kinds[k].pipelines[0]).
Schedule Together(const Problem& problem, const std::vector<Kind>& kinds,
                  const std::vector<Schedule>& orders);

// The best of sim::Search over all replicas at once, with few restarts, and of one order per kind,
// found for one replica with what is shared to itself and at its even share of it. Without kinds as
// sim::Search.
absl::StatusOr<Found> SearchReplicas(const Problem& problem, const SearchOptions& options);

}  // namespace atl::sim

#endif  // ATOLL_BENCH_PLANNER_REPLICATE_H_
