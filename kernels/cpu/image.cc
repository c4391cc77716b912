// Batch normalisation, pooling and gates of images.

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/bfloat16.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/simd.h"

namespace atl {
namespace {

using simd::kLanes;
using simd::LoadUpTo;
using simd::StoreUpTo;

// Sums over rows of x - shift, and of its square.
ATOLL_KERNEL(ColumnMoments,
             (const float* x, const float* shift, int64_t rows, int64_t n, float* sums,
              float* squares),
             (x, shift, rows, n, sums, squares)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t rest = n - i;
    const V from = LoadUpTo<V>(shift + i, rest);
    V sum{}, square{};
    for (int64_t row = 0; row < rows; ++row) {
      const V v = LoadUpTo<V>(x + row * n + i, rest) - from;
      sum += v;
      square += v * v;
    }
    StoreUpTo(sums + i, sum, rest);
    StoreUpTo(squares + i, square, rest);
  }
}

// z = x * scale + shift + add, add null for zero.
template <class V>
ATOLL_INLINE V Affine(const float* x, const float* add, const V& scale, const V& shift,
                      int64_t rest) {
  V z = LoadUpTo<V>(x, rest) * scale + shift;
  if (add != nullptr) z += LoadUpTo<V>(add, rest);
  return z;
}

// y = activation(z).
ATOLL_KERNEL(NormalizeRows,
             (Activation kind, const float* x, const float* add, const float* scale,
              const float* shift, int64_t rows, int64_t n, float* y),
             (kind, x, add, scale, shift, rows, n, y)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t rest = n - i;
    const V scales = LoadUpTo<V>(scale + i, rest), shifts = LoadUpTo<V>(shift + i, rest);
    for (int64_t at = i; at < rows * n; at += n) {
      const V z = Affine(x + at, add == nullptr ? nullptr : add + at, scales, shifts, rest);
      StoreUpTo(y + at, simd::Activate(kind, z), rest);
    }
  }
}

// Sums over rows of dz = dy * activation'(z), and of dz * (x - mean).
ATOLL_KERNEL(GradientMoments,
             (Activation kind, const float* x, const float* add, const float* dy,
              const float* scale, const float* shift, const float* mean, int64_t rows, int64_t n,
              float* sums, float* dots),
             (kind, x, add, dy, scale, shift, mean, rows, n, sums, dots)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t rest = n - i;
    const V scales = LoadUpTo<V>(scale + i, rest), shifts = LoadUpTo<V>(shift + i, rest);
    const V means = LoadUpTo<V>(mean + i, rest);
    V sum{}, dot{};
    for (int64_t at = i; at < rows * n; at += n) {
      const V z = Affine(x + at, add == nullptr ? nullptr : add + at, scales, shifts, rest);
      const V dz = LoadUpTo<V>(dy + at, rest) * simd::ActivateDerivative(kind, z);
      sum += dz;
      dot += dz * (LoadUpTo<V>(x + at, rest) - means);
    }
    StoreUpTo(sums + i, sum, rest);
    StoreUpTo(dots + i, dot, rest);
  }
}

// dx = dz * scale + (x - mean) * by_x + constant, and dadd = dz, null for none.
ATOLL_KERNEL(GradientRows,
             (Activation kind, const float* x, const float* add, const float* dy,
              const float* scale, const float* shift, const float* mean, const float* by_x,
              const float* constant, int64_t rows, int64_t n, float* dx, float* dadd),
             (kind, x, add, dy, scale, shift, mean, by_x, constant, rows, n, dx, dadd)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t rest = n - i;
    const V scales = LoadUpTo<V>(scale + i, rest), shifts = LoadUpTo<V>(shift + i, rest);
    const V means = LoadUpTo<V>(mean + i, rest);
    const V slopes = LoadUpTo<V>(by_x + i, rest), constants = LoadUpTo<V>(constant + i, rest);
    for (int64_t at = i; at < rows * n; at += n) {
      const V z = Affine(x + at, add == nullptr ? nullptr : add + at, scales, shifts, rest);
      const V dz = LoadUpTo<V>(dy + at, rest) * simd::ActivateDerivative(kind, z);
      const V from_mean = LoadUpTo<V>(x + at, rest) - means;
      StoreUpTo(dx + at, dz * scales + from_mean * slopes + constants, rest);
      if (dadd != nullptr) StoreUpTo(dadd + at, dz, rest);
    }
  }
}

// y = x * factor, sums += sum over rows of x * other: null for neither.
ATOLL_KERNEL(GateRows,
             (const float* x, const float* other, const float* factor, int64_t rows, int64_t n,
              float* y, float* sums),
             (x, other, factor, rows, n, y, sums)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t rest = n - i;
    const V factors = LoadUpTo<V>(factor + i, rest);
    V sum{};
    for (int64_t at = i; at < rows * n; at += n) {
      const V v = LoadUpTo<V>(x + at, rest);
      if (other != nullptr) sum += v * LoadUpTo<V>(other + at, rest);
      StoreUpTo(y + at, v * factors, rest);
    }
    if (sums != nullptr) StoreUpTo(sums + i, sum, rest);
  }
}

ATOLL_KERNEL(AddRow, (const float* x, float factor, float* y, int64_t n), (x, factor, y, n)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    StoreUpTo(y + i, LoadUpTo<V>(y + i, n - i) + LoadUpTo<V>(x + i, n - i) * factor, n - i);
  }
}

ATOLL_KERNEL(MaxRow, (const float* x, float* y, int64_t n), (x, y, n)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const V v = LoadUpTo<V>(x + i, n - i), most = LoadUpTo<V>(y + i, n - i);
    StoreUpTo(y + i, simd::Max(v, most), n - i);
  }
}

// Rows of a block: some tens of microseconds of work.
int64_t BlockRows(int64_t cols) { return std::max<int64_t>(1, kBlockElements / cols); }

// Two rows of C sums for each block of rows, and 5 rows of C for what they make.
constexpr int64_t kFactorRows = 5;
int64_t NormBytes(const Tensor& x) {
  const int64_t blocks = Blocks(x.rows, BlockRows(x.cols));
  return (2 * blocks + kFactorRows) * x.cols * static_cast<int64_t>(sizeof(float));
}

// Runs work(row begin, rows, sums, squares) on blocks and joins the two sums in their order.
template <typename Work, typename Take>
void SumBlocks(ThreadPool& pool, const Tensor& x, float* scratch, const Work& work,
               const Take& take) {
  const int64_t n = x.cols, block_rows = BlockRows(n), blocks = Blocks(x.rows, block_rows);
  pool.For(blocks, [&](int64_t block, int) {
    const int64_t begin = block * block_rows;
    work(begin, std::min(block_rows, x.rows - begin), scratch + 2 * block * n,
         scratch + (2 * block + 1) * n);
  });
  for (int64_t c = 0; c < n; ++c) {
    double first = 0, second = 0;
    for (int64_t block = 0; block < blocks; ++block) {
      first += scratch[2 * block * n + c];
      second += scratch[(2 * block + 1) * n + c];
    }
    take(c, first, second);
  }
}

// Computes the factors of normalisation as one product and one sum: the same in all passes, so that
// all of them find the same sign of z.
void ScaleAndShift(double w, double b, double mean, double rstd, float* scale, float* shift) {
  *scale = static_cast<float>(w * rstd);
  *shift = static_cast<float>(b - mean * w * rstd);
}

float ComputeSigmoid(float x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

void CpuBackend::Run(Stream&, const PixelsForward& op) {
  op.Check();
  const int64_t channels = op.y.cols;
  const int32_t* pixels = op.pixels.as<int32_t>();
  ForRowBlocks(pool_, op.y.rows, channels, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t c = 0; c < channels; ++c) {
        const auto channel = static_cast<size_t>(c);
        op.y.f32()[n * channels + c] =
            static_cast<float>(pixels[n * channels + c]) * op.scale[channel] + op.shift[channel];
      }
    }
  });
}

int64_t CpuBackend::WorkspaceBytes(const BatchNormForward& op) const { return NormBytes(op.x); }
int64_t CpuBackend::WorkspaceBytes(const BatchNormBackwardInput& op) const {
  return NormBytes(op.x);
}

void CpuBackend::Run(Stream&, const BatchNormForward& op, Workspace workspace) {
  op.Check();
  const int64_t n = op.x.cols, rows = op.x.rows;
  float* const factors = Scratch<float>(workspace, NormBytes(op.x) / sizeof(float));
  float* const scale = factors;
  float* const shift = factors + n;
  if (op.running_mean.present()) {
    for (int64_t c = 0; c < n; ++c) {
      // A pseudo-gradient of few bits may have made it negative.
      const double variance = std::max(0.0f, op.running_variance.f32()[c]);
      ScaleAndShift(op.w.f32()[c], op.b.f32()[c], op.running_mean.f32()[c],
                    1 / std::sqrt(variance + op.eps), scale + c, shift + c);
    }
  } else {
    // Moments around the first row lose nothing where means are far from zero.
    const float* first = op.x.f32();
    const auto moments = [&](int64_t begin, int64_t count, float* sums, float* squares) {
      ColumnMoments(Pointer(op.x, begin), first, count, n, sums, squares);
    };
    SumBlocks(pool_, op.x, factors + kFactorRows * n, moments,
              [&](int64_t c, double sum, double square) {
                const double from = sum / static_cast<double>(rows);
                const double variance = square / static_cast<double>(rows) - from * from;
                const double rstd = 1 / std::sqrt(std::max(0.0, variance) + op.eps);
                op.mean.f32()[c] = static_cast<float>(first[c] + from);
                op.rstd.f32()[c] = static_cast<float>(rstd);
                ScaleAndShift(op.w.f32()[c], op.b.f32()[c], op.mean.f32()[c], op.rstd.f32()[c],
                              scale + c, shift + c);
              });
  }
  ForRowBlocks(pool_, rows, n, [&](int64_t begin, int64_t end) {
    NormalizeRows(op.activation, Pointer(op.x, begin), PointerOrNull(op.add, begin), scale, shift,
                  end - begin, n, Pointer(op.y, begin));
  });
}

void CpuBackend::Run(Stream&, const BatchNormBackwardInput& op, Workspace workspace) {
  op.Check();
  const int64_t n = op.x.cols, rows = op.x.rows;
  float* const factors = Scratch<float>(workspace, NormBytes(op.x) / sizeof(float));
  float* const scale = factors;
  float* const shift = factors + n;
  float* const by_x = factors + 2 * n;
  float* const constant = factors + 3 * n;
  const float* const mean = op.mean.f32();
  for (int64_t c = 0; c < n; ++c) {
    ScaleAndShift(op.w.f32()[c], op.b.f32()[c], mean[c], op.rstd.f32()[c], scale + c, shift + c);
  }
  const auto moments = [&](int64_t begin, int64_t count, float* sums, float* dots) {
    GradientMoments(op.activation, Pointer(op.x, begin), PointerOrNull(op.add, begin),
                    Pointer(op.dy, begin), scale, shift, mean, count, n, sums, dots);
  };
  SumBlocks(pool_, op.x, factors + kFactorRows * n, moments,
            [&](int64_t c, double sum, double dot) {
              const double rstd = op.rstd.f32()[c], slope = op.w.f32()[c] * rstd;
              op.sums.f32()[c] = static_cast<float>(sum);
              op.sums.f32()[n + c] = static_cast<float>(dot * rstd);
              by_x[c] = static_cast<float>(-slope * rstd * rstd * dot / static_cast<double>(rows));
              constant[c] = static_cast<float>(-slope * sum / static_cast<double>(rows));
            });
  ForRowBlocks(pool_, rows, n, [&](int64_t begin, int64_t end) {
    GradientRows(op.activation, Pointer(op.x, begin), PointerOrNull(op.add, begin),
                 Pointer(op.dy, begin), scale, shift, mean, by_x, constant, end - begin, n,
                 Pointer(op.dx, begin), PointerOrNull(op.dadd, begin));
  });
}

void CpuBackend::Run(Stream&, const BatchNormBackwardWeight& op) {
  op.Check();
  const int64_t n = op.sums.cols;
  const auto samples = static_cast<float>(op.samples);
  const double unbiased =
      op.rows > 1 ? static_cast<double>(op.rows) / static_cast<double>(op.rows - 1) : 1;
  for (int64_t c = 0; c < n; ++c) {
    const double rstd = op.rstd.f32()[c];
    op.db.f32()[c] += op.sums.f32()[c];
    op.dw.f32()[c] += op.sums.f32()[n + c];
    op.dmean.f32()[c] += samples * op.mean.f32()[c];
    op.dvariance.f32()[c] += samples * static_cast<float>((1 / (rstd * rstd) - op.eps) * unbiased);
  }
}

void CpuBackend::Run(Stream&, const RunningMean& op) {
  op.Check();
  float* const running = op.running.f32();
  float* const sums = op.sums.f32();
  for (int64_t i = 0; i < op.running.cols; ++i) {
    running[i] += op.momentum * (sums[i] / op.samples - running[i]);
    if (op.zero_sums) sums[i] = 0;
    if (op.param_copy.present()) op.param_copy.as<Bfloat16>()[i] = RoundToBfloat16(running[i]);
  }
}

namespace {

// Calls visit(input row of the tap) in the order of taps, for one window.
template <typename Visit>
void ForTaps(const WindowShape& s, int64_t out_row, const Visit& visit) {
  const int64_t size = s.out_height() * s.out_width();
  const int64_t image = out_row / size, oy = out_row % size / s.out_width();
  const int64_t ox = out_row % s.out_width();
  for (int64_t ky = 0; ky < s.kernel; ++ky) {
    const int64_t y = oy * s.stride + ky - s.pad;
    if (y < 0 || y >= s.in_height) continue;
    for (int64_t kx = 0; kx < s.kernel; ++kx) {
      const int64_t x = ox * s.stride + kx - s.pad;
      if (x < 0 || x >= s.in_width) continue;
      visit((image * s.in_height + y) * s.in_width + x);
    }
  }
}

float AverageShare(const WindowShape& s) { return 1.0f / static_cast<float>(s.kernel * s.kernel); }

}  // namespace

void CpuBackend::Run(Stream&, const PoolForward& op) {
  op.Check();
  const int64_t n = op.x.cols;
  const int64_t taps = op.shape.kernel * op.shape.kernel;
  ForRowBlocks(pool_, op.y.rows, n * taps, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* const y = Pointer(op.y, row);
      bool first = true;
      if (op.kind == PoolKind::kAverage) std::fill(y, y + n, 0.0f);
      ForTaps(op.shape, row, [&](int64_t in) {
        const float* const x = Pointer(op.x, in);
        if (op.kind == PoolKind::kAverage) {
          AddRow(x, AverageShare(op.shape), y, n);
        } else if (first) {
          std::copy(x, x + n, y);
        } else {
          MaxRow(x, y, n);
        }
        first = false;
      });
    }
  });
}

// Windows of one image may overlap, so an image has one writer.
void CpuBackend::Run(Stream&, const PoolBackward& op) {
  op.Check();
  const int64_t n = op.dy.cols;
  const int64_t in = op.shape.in_height * op.shape.in_width;
  const int64_t out = op.shape.out_height() * op.shape.out_width();
  pool_.For(op.shape.batch, [&](int64_t image, int) {
    float* const dx = Pointer(op.dx, image * in);
    if (!op.add.present()) {
      std::fill(dx, dx + in * n, 0.0f);
    } else if (op.add.data != op.dx.data) {
      std::copy_n(Pointer(op.add, image * in), in * n, dx);
    }
    std::vector<const float*> largest(op.kind == PoolKind::kMax ? static_cast<size_t>(n) : 0);
    for (int64_t row = image * out; row < (image + 1) * out; ++row) {
      const float* const dy = Pointer(op.dy, row);
      if (op.kind == PoolKind::kAverage) {
        ForTaps(op.shape, row,
                [&](int64_t at) { AddRow(dy, AverageShare(op.shape), Pointer(op.dx, at), n); });
        continue;
      }
      std::fill(largest.begin(), largest.end(), nullptr);
      ForTaps(op.shape, row, [&](int64_t at) {
        const float* const x = Pointer(op.x, at);
        for (int64_t c = 0; c < n; ++c) {
          const float*& most = largest[static_cast<size_t>(c)];
          if (most == nullptr || x[c] > *most) most = x + c;
        }
      });
      for (int64_t c = 0; c < n; ++c) {
        op.dx.f32()[largest[static_cast<size_t>(c)] - op.x.f32()] += dy[c];
      }
    }
  });
}

void CpuBackend::Run(Stream&, const ChannelGateForward& op) {
  op.Check();
  const int64_t n = op.x.cols, rows = op.x.rows / op.gate.rows;
  pool_.For(op.gate.rows, [&](int64_t image, int) {
    std::vector<float> factors(static_cast<size_t>(n));
    const float* const gate = Pointer(op.gate, image);
    std::transform(gate, gate + n, factors.begin(), ComputeSigmoid);
    GateRows(Pointer(op.x, image * rows), nullptr, factors.data(), rows, n,
             Pointer(op.y, image * rows), nullptr);
  });
}

void CpuBackend::Run(Stream&, const ChannelGateBackward& op) {
  op.Check();
  const int64_t n = op.x.cols, rows = op.x.rows / op.gate.rows;
  pool_.For(op.gate.rows, [&](int64_t image, int) {
    std::vector<float> factors(static_cast<size_t>(n));
    const float* const gate = Pointer(op.gate, image);
    float* const dgate = Pointer(op.dgate, image);
    std::transform(gate, gate + n, factors.begin(), ComputeSigmoid);
    GateRows(Pointer(op.dy, image * rows), Pointer(op.x, image * rows), factors.data(), rows, n,
             Pointer(op.dx, image * rows), dgate);
    for (int64_t c = 0; c < n; ++c) {
      const float s = factors[static_cast<size_t>(c)];
      dgate[c] *= s * (1 - s);
    }
  });
}

void CpuBackend::Run(Stream&, const CountHits& op) {
  op.Check();
  int64_t hits = 0;
  for (int64_t row = 0; row < op.logits.rows; ++row) {
    const int32_t target = op.targets.as<int32_t>()[row];
    if (op.sums.present()) {
      hits += target >= 0 && *Pointer(op.sums, 1, row) == 0 && *Pointer(op.sums, 2, row) == 0;
      continue;
    }
    if (target < 0 || target >= op.logits.cols) continue;
    const float* const logits = Pointer(op.logits, row);
    bool best = true;
    for (int64_t c = 0; c < op.logits.cols; ++c) {
      best &= c < target ? logits[c] < logits[target] : logits[c] <= logits[target];
    }
    hits += best ? 1 : 0;
  }
  op.hits.f32()[0] += static_cast<float>(hits);
}

}  // namespace atl
