// Matrix products of one thread.

#ifndef ATOLL_KERNELS_CPU_GEMM_H_
#define ATOLL_KERNELS_CPU_GEMM_H_

#include <cstdint>

namespace atl {

// c = op(a) op(b) + (accumulate ? c : 0) for row-major matrices: c is m x n, op(a) m x k, op(b)
// k x n; a transposed operand is stored the other way round. ld: elements from row to row.
// Computes on the calling thread alone. Safe to call from several threads.
void Gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a,
          int64_t lda, const float* b, int64_t ldb, bool accumulate, float* c, int64_t ldc);

}  // namespace atl

#endif  // ATOLL_KERNELS_CPU_GEMM_H_
