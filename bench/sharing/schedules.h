// Jobs that share equal workers, and when they end by other rules than the product's. A job on n
// workers does n seconds of its work a second. Nothing else takes time here: neither starts, nor
// moves of workers, nor the ends of rounds. Pure.

#ifndef ATOLL_BENCH_SHARING_SCHEDULES_H_
#define ATOLL_BENCH_SHARING_SCHEDULES_H_

#include <cstdint>
#include <vector>

namespace atl::bench {

struct SharedJob {
  double arrives = 0;  // seconds
  double work = 1;     // of one worker, seconds
  int64_t needed = 1;  // workers, or it waits
  int64_t most = 1;    // workers that it can use
  double weight = 1;
};

// The jobs of a cluster, in the order of their arrival.
struct SharedCase {
  int64_t workers = 1;
  std::vector<SharedJob> jobs;
};

// Seconds at which each job ends.
using Ends = std::vector<double>;

// Sums each job's seconds from its arrival to its end, times its weight.
double WeightedTime(const SharedCase& c, const Ends& ends);
// Seconds from the first arrival until all have ended.
double Makespan(const SharedCase& c, const Ends& ends);

// The least weighted time of all schedules that change workers when jobs arrive and end, by trying
// them. A few jobs and workers: its time is their exponential.
Ends EndBest(const SharedCase& c);
// The least makespan that any schedule has, at least.
double LeastMakespan(const SharedCase& c);

}  // namespace atl::bench

#endif  // ATOLL_BENCH_SHARING_SCHEDULES_H_
