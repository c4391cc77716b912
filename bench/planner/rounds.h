// Outer rounds, simulated: what asynchronous rounds and overlapping gain, and how rounds scale.

#ifndef ATOLL_BENCH_PLANNER_ROUNDS_H_
#define ATOLL_BENCH_PLANNER_ROUNDS_H_

namespace atl::bench {

void PrintRounds();

}  // namespace atl::bench

#endif  // ATOLL_BENCH_PLANNER_ROUNDS_H_
