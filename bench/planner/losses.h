// How long an island waits for a plan when it loses a node.

#ifndef ATOLL_BENCH_PLANNER_LOSSES_H_
#define ATOLL_BENCH_PLANNER_LOSSES_H_

namespace atl::bench {

void PrintLosses();

}  // namespace atl::bench

#endif  // ATOLL_BENCH_PLANNER_LOSSES_H_
