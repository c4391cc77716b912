// Pipelines of equal stages: what tests and the comparison with published figures start from.

#ifndef ATOLL_COORDINATOR_SIMULATOR_TESTING_UNIFORM_H_
#define ATOLL_COORDINATOR_SIMULATOR_TESTING_UNIFORM_H_

#include "coordinator/simulator/problem.h"

namespace atl::sim {

// A pipeline of `stages` equal chunks on devices of their own, neighbours joined by a link of this
// latency and serialisation time in each direction; memory holds `slots` forwards. Times in
// nanoseconds.
struct UniformPipeline {
  int stages = 1;
  int micro_batches = 1;
  Nanos forward_ns = 0;
  Nanos backward_ns = 0;
  Nanos weight_ns = 0;
  Nanos latency_ns = 0;
  Nanos serial_ns = 0;
  int slots = 1 << 20;
  double weight_share = 1;  // of the activation, held until W with a split backward
  int chunks_per_device = 1;
  // With several chunks per device: chunk c is on device c mod p (interleaved) or, in a V, goes
  // down the devices and comes back up (0 1 .. p-1 p-1 .. 1 0). Times are per chunk.
  bool v_shape = false;
};
Problem MakeUniform(const UniformPipeline& pipeline);

}  // namespace atl::sim

#endif  // ATOLL_COORDINATOR_SIMULATOR_TESTING_UNIFORM_H_
