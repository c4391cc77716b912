// Published runs under failures, rehearsed: how far the rehearsal is from what was measured.

#ifndef ATOLL_BENCH_REHEARSAL_PUBLISHED_H_
#define ATOLL_BENCH_REHEARSAL_PUBLISHED_H_

namespace atl::bench {

// Prints a row for each figure, and FIGURE lines of those that have a goal.
void RehearsePublished();

}  // namespace atl::bench

#endif  // ATOLL_BENCH_REHEARSAL_PUBLISHED_H_
