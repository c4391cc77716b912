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

// Keys and values of one sequence, kept from one forward pass to the next, so that a pass takes
// only the tokens that are new.
class SequenceCache {
 public:
  virtual ~SequenceCache() = default;
  // The next forward pass takes tokens from `position` on: those before it have passed already, and
  // what was kept of later ones is forgotten. 0: a new sequence.
  virtual void StartPass(int64_t position) = 0;
};

// A CPU backend for forward passes of one sequence, whose attention also sees the tokens of earlier
// passes. Positions of embeddings and rotations count from the pass's start position. In every pass
// the model's layers must call attention in the same order. `cache` is a part of the backend.
struct CachedCpuBackend {
  std::unique_ptr<Backend> backend;
  SequenceCache* cache;
};
CachedCpuBackend NewCachedCpuBackend(int threads);

}  // namespace atl

#endif  // ATOLL_KERNELS_CPU_CPU_H_
