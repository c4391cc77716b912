// Lower bounds on the time of any schedule, to say how far a plan can be from the best.
//
// Per pipeline, with r_c = sum over chunks before c of (F + transfer forward), q_c = the same of B
// backward, and per device the work of all its chunks:
//   compute:  earliest start of the device + m * work + latest path out, optimizer steps included
//   link:     fill + serialisation of all messages that share the link, lane or trunk + path out;
//   and,
//             of the pipelines that share it, the last to send its first activation waits for those
//             of all others, then still needs all its work after that link
//   memory:   see below
//   gradients: earliest completion of each chunk's, then its optimizer step
// The largest over all of these is returned with its name.
//
// Memory. Let a device have memory for K micro-batches of a chunk, RT be the shortest time from the
// start of a micro-batch's F there to the moment that releases it, and rel(k) the k-th release in
// time. When the (k+K)-th micro-batch starts its F, at most K - 1 of the k + K - 1 before it are
// held, so k have been released: start(k+K) >= rel(k). Of the k + K micro-batches that have been
// released at rel(k+K), one has started as the (k+K)-th or later, so rel(k+K) >= start(k+K) + RT >=
// rel(k) + RT. With m = i + jK, i in 1..K, rel(m) >= rel(i) + j RT; and rel(i) is at least the time
// in which i micro-batches pass any later chunk, with the path there and back. (For i = 1 this is
// RT itself. j is as large as possible: the bound is linear or convex in it, and j = 0 is the
// compute bound.)

#ifndef ATOLL_COORDINATOR_SIMULATOR_BOUNDS_H_
#define ATOLL_COORDINATOR_SIMULATOR_BOUNDS_H_

#include <string>
#include <vector>

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

// Per chunk, a bound of the moment at which its gradients are complete, by its own work, by B's way
// back from a later chunk that has run all its F and B, and by all messages over a link on the way.
// REQUIRES: Validate(problem) is OK.
std::vector<Nanos> GradientsDone(const Problem& problem);

}  // namespace atl::sim

#endif  // ATOLL_COORDINATOR_SIMULATOR_BOUNDS_H_
