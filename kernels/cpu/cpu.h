// The fast CPU backend, in fp32.

#ifndef ATOLL_KERNELS_CPU_CPU_H_
#define ATOLL_KERNELS_CPU_CPU_H_

#include <memory>

#include "kernels/backend.h"

namespace atl {

// Computes on `threads` >= 1 threads, the caller's included. Operations run inside the call.
// Results do not depend on the number of threads. `memory_bytes`: bound of all its buffers; 0:
// none.
std::unique_ptr<Backend> NewCpuBackend(int threads, int64_t memory_bytes = 0);

}  // namespace atl

#endif  // ATOLL_KERNELS_CPU_CPU_H_
