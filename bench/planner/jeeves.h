// JEEVES's setting: GPT-3 175B, 96 layers, 64 replicas of 8 stages across two data centres.
//
// The paper hides its layer times. m = 32 micro-batches, F + B = 28.3 ms per stage of 12 layers
// with F : B = 1 : 2, and 7.76 ms for an activation over a replica's 1/64 of 1 Tbit/s fit its
// points of 1F1B. JEEVES is simulated as the paper describes it, a greedy order and one send
// order on the link for all replicas; the division of layers follows the model of section 3.2, or,
// as its extra time is given in prose only, is the best that its greedy schedule can have.

#ifndef ATOLL_BENCH_PLANNER_JEEVES_H_
#define ATOLL_BENCH_PLANNER_JEEVES_H_

namespace atl::bench {

// Memory and bandwidth sweeps at 1 and 20 ms: what is published, reproduced, and ours; with
// figures.
void PrintJeeves();

}  // namespace atl::bench

#endif  // ATOLL_BENCH_PLANNER_JEEVES_H_
