// Two workers joined by two edges: what of the edges' rates messages between them get.

#ifndef ATOLL_BENCH_COLLECTIVES_TWO_EDGES_H_
#define ATOLL_BENCH_COLLECTIVES_TWO_EDGES_H_

namespace atl::bench {

// Goodput over the sum of 100 and 50 Mbit/s, of messages that follow one another and of messages of
// 4 MiB each of which waits for the one before. 0: this system does not allow such a network.
struct TwoEdges {
  double streamed = 0, one_by_one = 0;
};
// In a network namespace that this process enters and does not leave. REQUIRES: one thread.
TwoEdges MeasureTwoEdges();

}  // namespace atl::bench

#endif  // ATOLL_BENCH_COLLECTIVES_TWO_EDGES_H_
