#include "kernels/cpu/gemm.h"

#include <dnnl.h>
#include <omp.h>

#include <algorithm>

#include "common/check.h"

namespace atl {
namespace {

// A matrix in memory: op(a) or op(b) of a product.
struct Operand {
  bool transposed;
  const float* data;
  int64_t stride;
};

void Multiply(const Operand& a, const Operand& b, int64_t m, int64_t n, int64_t k, bool accumulate,
              float* c, int64_t ldc) {
  const dnnl_status_t status =
      dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, 1.0f, a.data,
                 a.stride, b.data, b.stride, accumulate ? 1.0f : 0.0f, c, ldc);
  ATOLL_CHECK(status == dnnl_success, "oneDNN refused a product: status ",
              static_cast<int>(status));
}

// At a time, where operands are copied.
constexpr int64_t kDepth = 512, kColumns = 512;
// Between the rows of a copy, as well.
constexpr int64_t kGap = 16;

// Rows that are 2 KiB or a multiple apart share sets of the cache. oneDNN's products of up to some
// 380 rows or columns read them where they lie, as many rows at a time as they have to add up:
// twice as slow at 4 KiB, by a fifth at 2.
bool SharesSets(int64_t stride, int64_t k) { return stride % 512 == 0 && k >= 64; }

// `rows` x `columns` elements at `from`, to a stride of columns + kGap.
Operand Copied(const Operand& from, int64_t rows, int64_t columns, float* to) {
  const int64_t stride = columns + kGap;
  for (int64_t row = 0; row < rows; ++row) {
    std::copy_n(from.data + row * from.stride, columns, to + row * stride);
  }
  return {from.transposed, to, stride};
}

}  // namespace

void Gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a,
          int64_t lda, const float* b, int64_t ldb, bool accumulate, float* c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  // oneDNN would start its own OpenMP threads; the setting belongs to the calling thread alone.
  omp_set_num_threads(1);
  // Operands whose rows are added up are copied.
  const bool copies_a = transpose_a && SharesSets(lda, k);
  const bool copies_b = !transpose_b && SharesSets(ldb, k);
  if (!copies_a && !copies_b) {
    return Multiply({transpose_a, a, lda}, {transpose_b, b, ldb}, m, n, k, accumulate, c, ldc);
  }
  const int64_t most_depth = std::min(k, kDepth), most_columns = std::min(n, kColumns);
  const int64_t room_of_a = copies_a ? most_depth * (m + kGap) : 0;
  const int64_t room_of_b = copies_b ? most_depth * (most_columns + kGap) : 0;
  const auto room = std::make_unique_for_overwrite<float[]>(room_of_a + room_of_b);
  for (int64_t begin = 0; begin < k; begin += kDepth) {
    const int64_t depth = std::min(kDepth, k - begin);
    Operand left{transpose_a, a + begin * (transpose_a ? lda : 1), lda};
    if (copies_a) left = Copied(left, depth, m, room.get());
    for (int64_t column = 0; column < n; column += kColumns) {
      const int64_t columns = std::min(kColumns, n - column);
      Operand right{transpose_b, transpose_b ? b + column * ldb + begin : b + begin * ldb + column,
                    ldb};
      if (copies_b) right = Copied(right, depth, columns, room.get() + room_of_a);
      Multiply(left, right, m, columns, depth, accumulate || begin > 0, c + column, ldc);
    }
  }
}

}  // namespace atl
