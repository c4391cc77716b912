// The CUDA backend's operations on the host, for tests: the same kernels and the same choice of
// fused products, run by emulator.h. Not for training.

#ifndef ATOLL_KERNELS_CUDA_TESTING_EMULATED_H_
#define ATOLL_KERNELS_CUDA_TESTING_EMULATED_H_

#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/declined.h"

namespace atl {

// `fused`: products go through the description that cuBLASLt would be given, computed by loops,
// with its epilogues; otherwise every product is our own kernel.
std::unique_ptr<Backend> NewEmulatedCudaBackend(bool fused);

// Does what DeclinedBy does. REQUIRES: such a backend.
std::vector<DeclinedWork> DeclinedByEmulated(const Backend& backend);

}  // namespace atl

#endif  // ATOLL_KERNELS_CUDA_TESTING_EMULATED_H_
