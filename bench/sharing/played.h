// The coordinator's own core divides workers among jobs on virtual time. Workers are scripted: they
// open a job, train sequences of one second each, push at a round's end, and leave as they are
// ordered.

#ifndef ATOLL_BENCH_SHARING_PLAYED_H_
#define ATOLL_BENCH_SHARING_PLAYED_H_

#include <cstdint>

#include "bench/sharing/schedules.h"

namespace atl::bench {

struct PlayOptions {
  int64_t open_seconds = 20;     // a worker opens a job's model and data
  int64_t steps_per_round = 30;  // of one second
  bool first_come = false;       // each job goes before those that come later, by its priority
};

struct Played {
  Ends ends;
  int64_t interruptions = 0;  // workers that left a job before its end
  int64_t lost_steps = 0;     // that were trained, and are in no version
};

// Times are rounded to seconds.
Played Play(const SharedCase& c, const PlayOptions& options = {});

}  // namespace atl::bench

#endif  // ATOLL_BENCH_SHARING_PLAYED_H_
