// Lower bounds on the time of any schedule, to say how far a plan can be from the best.
//
// Per pipeline, with r_c = sum over chunks before c of (F + transfer forward), q_c = the same of B
// backward, and per device the work of all its chunks:
//   compute:  earliest start of the device + m * work + latest way out
//   link:     fill + serialisation of all messages that share the link or exclusive trunk + way out
//   memory:   with room for K micro-batches, only K can be between a chunk's F and the release
//   sync:     earliest completion of each gradient, then the channel's collectives one by one, then
//             the optimizer step of a chunk
// The largest over all of these is returned with its name.

#ifndef ATOLL_COORDINATOR_SIMULATOR_BOUNDS_H_
#define ATOLL_COORDINATOR_SIMULATOR_BOUNDS_H_

#include <string>

#include "coordinator/simulator/problem.h"

namespace atl::sim {

struct Bound {
  Nanos time_ns = 0;
  std::string reason;  // "compute of device 3", "link 2", "memory of chunk 0", ...
};

// Bounds Result::makespan_ns.
// REQUIRES: Validate(problem) is OK.
Bound MakespanBound(const Problem& problem);

// Bounds Result::period_ns: the most loaded device's work, and memory's round trips.
Bound PeriodBound(const Problem& problem);

}  // namespace atl::sim

#endif  // ATOLL_COORDINATOR_SIMULATOR_BOUNDS_H_
