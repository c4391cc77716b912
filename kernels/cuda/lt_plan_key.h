// The key of a cuBLASLt plan: what the choice of an algorithm depends on, and so what a plan may be
// used for again.

#ifndef ATOLL_KERNELS_CUDA_LT_PLAN_KEY_H_
#define ATOLL_KERNELS_CUDA_LT_PLAN_KEY_H_

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/product.h"

namespace atl {

// Besides the shape (which has the matrices' alignment): the heuristic reads off the addresses of
// the bias and of GELU's argument how wide it may access them (cublasLt.h has it at BIAS_POINTER
// and EPILOGUE_AUX_POINTER).
struct LtPlanKey {
  LtCall::Shape shape;
  int bias_alignment = 0, aux_alignment = 0;  // bytes, a power of two up to 256; 0: not accessed

  bool operator==(const LtPlanKey&) const = default;
  uint64_t Hash() const {
    const auto alignments = static_cast<uint64_t>(bias_alignment * 512 + aux_alignment);
    return (shape.Hash() ^ alignments) * 0x100000001b3u;
  }
};

inline LtPlanKey MakeLtPlanKey(const LtCall& call) {
  const auto alignment = [](const void* data) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    return static_cast<int>(std::min<uintptr_t>(address & -address, 256));
  };
  return {call.shape, UsesBias(call.shape.epilogue) ? alignment(call.bias) : 0,
          UsesAux(call.shape.epilogue) ? alignment(call.aux) : 0};
}

}  // namespace atl

#endif  // ATOLL_KERNELS_CUDA_LT_PLAN_KEY_H_
