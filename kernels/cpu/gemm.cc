#include "kernels/cpu/gemm.h"

#include <dnnl.h>
#include <omp.h>

#include <algorithm>

#include "common/check.h"

namespace atl {

void Gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a,
          int64_t lda, const float* b, int64_t ldb, bool accumulate, float* c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  // oneDNN would start its own OpenMP threads; the setting belongs to the calling thread alone.
  omp_set_num_threads(1);
  const dnnl_status_t status = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k,
                                          1.0f, a, lda, b, ldb, accumulate ? 1.0f : 0.0f, c, ldc);
  ATOLL_CHECK(status == dnnl_success, "oneDNN refused a product: status ",
              static_cast<int>(status));
}

}  // namespace atl
