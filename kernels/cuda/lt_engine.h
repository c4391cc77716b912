// Products by cuBLASLt.

#ifndef ATOLL_KERNELS_CUDA_LT_ENGINE_H_
#define ATOLL_KERNELS_CUDA_LT_ENGINE_H_

#include <memory>

#include "kernels/cuda/ops.h"

namespace atl::cuda {

// Creates the engine for the current device. fp32 products are fp32 (no TF32), bf16 ones accumulate
// in fp32. The algorithm of each shape is the heuristic's first, chosen once and kept. `declined`
// outlives it.
absl::StatusOr<std::unique_ptr<ProductEngine>> NewLtEngine(int compute_capability_major,
                                                           Declined* declined);

}  // namespace atl::cuda

#endif  // ATOLL_KERNELS_CUDA_LT_ENGINE_H_
