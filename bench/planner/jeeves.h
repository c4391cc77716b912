// JEEVES's setting: GPT-3 175B, 96 layers, 64 replicas of 8 stages across two data centres.
//
// The paper hides its layer times. m = 32 micro-batches, F + B = 28.3 ms per stage of 12 layers
// with F : B = 1 : 2, and 7.76 ms for an activation over a replica's 1/64 of 1 Tbit/s fit its
// points.

#ifndef ATOLL_BENCH_PLANNER_JEEVES_H_
#define ATOLL_BENCH_PLANNER_JEEVES_H_

#include <vector>

namespace atl::bench {

struct JeevesCase {
  double latency_ms = 1;
  double tbit_per_s = 1;
  int slots = 8;  // micro-batches of 12 layers that a stage's memory holds; 1F1B needs 8
};

struct JeevesTimes {
  double intra_ms = 0;    // 1F1B without a slow cut
  double dapple_ms = 0;   // 1F1B, uniform stages, every replica on its share of the wire
  double jeeves_ms = 0;   // memory-aware division, coordinated sending, plain greedy
  double overrun_ms = 0;  // the same with the paper's counter, which lets memory overrun by one
  double ours_ms = 0;     // searched schedules over several divisions
  double bound_ms = 0;    // of our division
  std::vector<int> layers;
};

JeevesTimes PlayJeeves(const JeevesCase& c);

}  // namespace atl::bench

#endif  // ATOLL_BENCH_PLANNER_JEEVES_H_
