// RMSNorm and LayerNorm. A row is read twice, the second time from the first-level cache.

#include "kernels/cpu/cpu_backend.h"
#include "kernels/simd.h"

namespace atl {
namespace {

using simd::kLanes;
using simd::LoadUpTo;
using simd::Splat;
using simd::StoreUpTo;

// Rows whose weight gradients one block sums.
constexpr int64_t kPartialRows = 128;

ATOLL_KERNEL(RmsNormRow,
             (const float* x, const float* w, float* y, float* rstd, int64_t n, float eps),
             (x, w, y, rstd, n, eps)) {
  V squares{};
  for (int64_t i = 0; i < n; i += kLanes) {
    const V v = LoadUpTo<V>(x + i, n - i);
    squares += v * v;
  }
  const float r = 1.0f / __builtin_sqrtf(simd::Sum(squares) / static_cast<float>(n) + eps);
  *rstd = r;
  for (int64_t i = 0; i < n; i += kLanes) {
    StoreUpTo(y + i, LoadUpTo<V>(x + i, n - i) * r * LoadUpTo<V>(w + i, n - i), n - i);
  }
}

// dx = rstd * (g - xh * mean(g * xh)) + add with g = dy * w, xh = x * rstd.
ATOLL_KERNEL(RmsNormBackwardRow,
             (const float* dy, const float* x, const float* w, const float* add, float* dx,
              float rstd, int64_t n),
             (dy, x, w, add, dx, rstd, n)) {
  V dots{};
  for (int64_t i = 0; i < n; i += kLanes) {
    dots += LoadUpTo<V>(dy + i, n - i) * LoadUpTo<V>(w + i, n - i) * LoadUpTo<V>(x + i, n - i);
  }
  const float slope = simd::Sum(dots) * rstd * rstd * rstd / static_cast<float>(n);
  for (int64_t i = 0; i < n; i += kLanes) {
    V result = LoadUpTo<V>(dy + i, n - i) * LoadUpTo<V>(w + i, n - i) * rstd -
               LoadUpTo<V>(x + i, n - i) * slope;
    if (add != nullptr) result += LoadUpTo<V>(add + i, n - i);
    StoreUpTo(dx + i, result, n - i);
  }
}

// dw += dy * x * rstd.
ATOLL_KERNEL(RmsNormWeightRow, (const float* dy, const float* x, float* dw, float rstd, int64_t n),
             (dy, x, dw, rstd, n)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const V term = LoadUpTo<V>(dy + i, n - i) * LoadUpTo<V>(x + i, n - i) * rstd;
    StoreUpTo(dw + i, LoadUpTo<V>(dw + i, n - i) + term, n - i);
  }
}

ATOLL_KERNEL(LayerNormRow,
             (const float* x, const float* w, const float* b, float* y, float* mean, float* rstd,
              int64_t n, float eps),
             (x, w, b, y, mean, rstd, n, eps)) {
  V sums{};
  for (int64_t i = 0; i < n; i += kLanes) sums += LoadUpTo<V>(x + i, n - i);
  const float m = simd::Sum(sums) / static_cast<float>(n);
  V squares{};
  for (int64_t i = 0; i < n; i += kLanes) {
    // Lanes behind the end must not count (0 - m)^2.
    const V v = simd::KeepFirst(LoadUpTo<V>(x + i, n - i) - m, n - i, 0.0f);
    squares += v * v;
  }
  const float r = 1.0f / __builtin_sqrtf(simd::Sum(squares) / static_cast<float>(n) + eps);
  *mean = m;
  *rstd = r;
  for (int64_t i = 0; i < n; i += kLanes) {
    const V normal = (LoadUpTo<V>(x + i, n - i) - m) * r;
    StoreUpTo(y + i, normal * LoadUpTo<V>(w + i, n - i) + LoadUpTo<V>(b + i, n - i), n - i);
  }
}

// dx = rstd * (g - mean(g) - xh * mean(g * xh)) + add with g = dy * w, xh = (x - mean) * rstd.
ATOLL_KERNEL(LayerNormBackwardRow,
             (const float* dy, const float* x, const float* w, const float* add, float* dx,
              float mean, float rstd, int64_t n),
             (dy, x, w, add, dx, mean, rstd, n)) {
  V sums{}, dots{};
  for (int64_t i = 0; i < n; i += kLanes) {
    const V g = LoadUpTo<V>(dy + i, n - i) * LoadUpTo<V>(w + i, n - i);
    sums += g;
    dots += g * (LoadUpTo<V>(x + i, n - i) - mean);
  }
  const float g_mean = simd::Sum(sums) / static_cast<float>(n);
  const float slope = simd::Sum(dots) * rstd * rstd / static_cast<float>(n);
  for (int64_t i = 0; i < n; i += kLanes) {
    const V g = LoadUpTo<V>(dy + i, n - i) * LoadUpTo<V>(w + i, n - i);
    V result = (g - g_mean - (LoadUpTo<V>(x + i, n - i) - mean) * slope) * rstd;
    if (add != nullptr) result += LoadUpTo<V>(add + i, n - i);
    StoreUpTo(dx + i, result, n - i);
  }
}

// dw += dy * (x - mean) * rstd, db += dy.
ATOLL_KERNEL(LayerNormWeightRow,
             (const float* dy, const float* x, float* dw, float* db, float mean, float rstd,
              int64_t n),
             (dy, x, dw, db, mean, rstd, n)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const V g = LoadUpTo<V>(dy + i, n - i);
    const V term = g * (LoadUpTo<V>(x + i, n - i) - mean) * rstd;
    StoreUpTo(dw + i, LoadUpTo<V>(dw + i, n - i) + term, n - i);
    StoreUpTo(db + i, LoadUpTo<V>(db + i, n - i) + g, n - i);
  }
}

// Sums over rows: every block of rows adds its own (add_row(row, partial)) into its own `cols`
// numbers of scratch memory; the blocks are then added to `total`, in order.
template <typename AddRow>
void SumRows(ThreadPool& pool, int64_t rows, int64_t cols, float* scratch, const AddRow& add_row,
             const auto& add_total) {
  const int64_t blocks = Blocks(rows, kPartialRows);
  pool.For(blocks, [&](int64_t block, int) {
    float* partial = scratch + block * cols;
    std::fill(partial, partial + cols, 0.0f);
    const int64_t end = std::min(rows, (block + 1) * kPartialRows);
    for (int64_t row = block * kPartialRows; row < end; ++row) add_row(row, partial);
  });
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t i = 0; i < cols; ++i) add_total(i, scratch[block * cols + i]);
  }
}

int64_t PartialFloats(int64_t rows, int64_t cols) { return Blocks(rows, kPartialRows) * cols; }

}  // namespace

void CpuBackend::Run(Stream&, const NormForward& op) {
  op.Check();
  const int64_t width = op.w.cols;
  ForRowBlocks(pool_, op.x.rows, op.x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t c = 0; c < op.x.cols; c += width) {
        const float* const x = Pointer(op.x, n, c);
        float *const y = Pointer(op.y, n, c), *const rstd = Pointer(op.rstd, c / width, n);
        if (op.centred()) {
          LayerNormRow(x, op.w.f32(), op.b.f32(), y, Pointer(op.mean, 0, n), rstd, width, op.eps);
        } else {
          RmsNormRow(x, op.w.f32(), y, rstd, width, op.eps);
        }
      }
    }
  });
}

void CpuBackend::Run(Stream&, const NormBackwardInput& op) {
  op.Check();
  const int64_t width = op.w.cols;
  ForRowBlocks(pool_, op.x.rows, op.x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t c = 0; c < op.x.cols; c += width) {
        const float *const dy = Pointer(op.dy, n, c), *const x = Pointer(op.x, n, c);
        const float* const add = PointerOrNull(op.add, n, c);
        float* const dx = Pointer(op.dx, n, c);
        const float rstd = *Pointer(op.rstd, c / width, n);
        if (op.centred()) {
          LayerNormBackwardRow(dy, x, op.w.f32(), add, dx, *Pointer(op.mean, 0, n), rstd, width);
        } else {
          RmsNormBackwardRow(dy, x, op.w.f32(), add, dx, rstd, width);
        }
      }
    }
  });
}

int64_t CpuBackend::WorkspaceBytes(const NormBackwardWeight& op) const {
  return PartialFloats(op.x.rows, (op.centred() ? 2 : 1) * op.dw.cols) * sizeof(float);
}

void CpuBackend::Run(Stream&, const NormBackwardWeight& op, Workspace workspace) {
  op.Check();
  const int64_t width = op.dw.cols, sums = (op.centred() ? 2 : 1) * width;
  float* scratch = Scratch<float>(workspace, PartialFloats(op.x.rows, sums));
  const auto add_row = [&](int64_t n, float* partial) {
    for (int64_t c = 0; c < op.x.cols; c += width) {
      const float *const dy = Pointer(op.dy, n, c), *const x = Pointer(op.x, n, c);
      const float rstd = *Pointer(op.rstd, c / width, n);
      if (op.centred()) {
        LayerNormWeightRow(dy, x, partial, partial + width, *Pointer(op.mean, 0, n), rstd, width);
      } else {
        RmsNormWeightRow(dy, x, partial, rstd, width);
      }
    }
  };
  SumRows(pool_, op.x.rows, sums, scratch, add_row, [&](int64_t i, float sum) {
    (i < width ? op.dw.f32()[i] : op.db.f32()[i - width]) += sum;
  });
}

}  // namespace atl
