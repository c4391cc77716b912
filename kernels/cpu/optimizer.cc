// Loss, sums of squares and AdamW.

#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/simd.h"

namespace atl {
namespace {

using simd::D8;
using simd::F8;
using simd::kLanes;
using simd::LoadUpTo;
using simd::Splat;
using simd::StoreUpTo;
using simd::V16;

constexpr float kMinusInfinity = -__builtin_inff();

ATOLL_KERNEL(LargestOfRow, (const float* x, int64_t n, float* largest), (x, n, largest)) {
  V16 most = Splat(kMinusInfinity);
  for (int64_t i = 0; i < n; i += kLanes) {
    most = simd::Max(simd::KeepFirst(LoadUpTo(x + i, n - i), n - i, kMinusInfinity), most);
  }
  *largest = simd::Largest(most);
}

// The sum of exp(x - less); the exponentials go to `exps` unless that is null. exps may be x.
ATOLL_KERNEL(ExpRow, (const float* x, float* exps, int64_t n, float less, float* sum),
             (x, exps, n, less, sum)) {
  V16 sums{};
  for (int64_t i = 0; i < n; i += kLanes) {
    const V16 e = simd::Exp(LoadUpTo(x + i, n - i) - less);
    if (exps != nullptr) StoreUpTo(exps + i, e, n - i);
    sums += simd::KeepFirst(e, n - i, 0.0f);
  }
  *sum = simd::Sum(sums);
}

ATOLL_KERNEL(ScaleRow, (float* x, float factor, int64_t n), (x, factor, n)) {
  for (int64_t i = 0; i < n; i += kLanes) StoreUpTo(x + i, LoadUpTo(x + i, n - i) * factor, n - i);
}

ATOLL_KERNEL(SumSquares, (const float* x, int64_t n, double* sum), (x, n, sum)) {
  D8 sums[2] = {};
  for (int64_t i = 0; i < n; i += kLanes) {
    const V16 v = LoadUpTo(x + i, n - i);
    F8 halves[2];
    std::memcpy(halves, &v, sizeof(v));
    for (int half = 0; half < 2; ++half) {
      const D8 wide = __builtin_convertvector(halves[half], D8);
      sums[half] += wide * wide;
    }
  }
  *sum = 0;
  for (int lane = 0; lane < 8; ++lane) *sum += sums[0][lane] + sums[1][lane];
}

struct AdamWFactors {
  float grad_scale, beta1, beta2, rest1, rest2;  // rest: 1 - beta
  float decay;                                   // 1 - lr * weight_decay
  float step;                                    // lr / (1 - beta1^step)
  float rsqrt2;                                  // 1 / sqrt(1 - beta2^step)
  float eps;
  bool zero_grad;
};

ATOLL_KERNEL(AdamWRun,
             (float* param, float* grad, float* m, float* v, Bfloat16* copy, int64_t n,
              const AdamWFactors& f),
             (param, grad, m, v, copy, n, f)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t rest = n - i;
    const V16 g = LoadUpTo(grad + i, rest) * f.grad_scale;
    const V16 first = LoadUpTo(m + i, rest) * f.beta1 + g * f.rest1;
    const V16 second = LoadUpTo(v + i, rest) * f.beta2 + g * g * f.rest2;
    const V16 step = first * f.step / (simd::Sqrt(second) * f.rsqrt2 + f.eps);
    const V16 updated = LoadUpTo(param + i, rest) * f.decay - step;
    StoreUpTo(m + i, first, rest);
    StoreUpTo(v + i, second, rest);
    StoreUpTo(param + i, updated, rest);
    if (f.zero_grad) StoreUpTo(grad + i, V16{}, rest);
    if (copy == nullptr) continue;
    if (rest >= kLanes) {
      simd::ToBfloat16(copy + i, updated);
    } else {
      Bfloat16 lanes[kLanes];
      simd::ToBfloat16(lanes, updated);
      for (int64_t lane = 0; lane < rest; ++lane) copy[i + lane] = lanes[lane];
    }
  }
}

// One row of cross-entropy: its loss, 0 where the target is to be ignored.
float CrossEntropyRow(const CrossEntropy& op, int64_t row) {
  const int64_t vocabulary = op.logits.cols;
  const int64_t target = op.targets.as<int32_t>()[row] - op.first_class;
  const bool ignored = op.targets.as<int32_t>()[row] == op.ignore_index;
  const bool parted = op.sums.present(), here = target >= 0 && target < vocabulary;
  ATOLL_CHECK(ignored || parted || here, "target ", target, " of a vocabulary of ", vocabulary);
  const float* logits = Pointer(op.logits, row);
  float* gradient = PointerOrNull(op.dlogits, row);
  if (ignored) {
    if (gradient != nullptr) std::memset(gradient, 0, vocabulary * sizeof(float));
    return 0;
  }
  float largest, sum, target_logit;  // less the largest
  if (parted) {
    largest = *Pointer(op.max, 0, row);
    target_logit = *Pointer(op.sums, 1, row);
  } else {
    LargestOfRow(logits, vocabulary, &largest);
    target_logit = logits[target] - largest;  // read before the gradient may replace it
  }
  if (gradient != nullptr || !parted) ExpRow(logits, gradient, vocabulary, largest, &sum);
  if (parted) sum = *Pointer(op.sums, 0, row);
  if (gradient != nullptr) {
    ScaleRow(gradient, op.grad_scale / sum, vocabulary);
    if (here) gradient[target] -= op.grad_scale;
  }
  return std::log(sum) - target_logit;
}

int64_t CrossEntropyRows(const CrossEntropy& op) {
  return std::max<int64_t>(1, kBlockElements / op.logits.cols);
}

}  // namespace

int64_t CpuBackend::WorkspaceBytes(const CrossEntropy& op) const {
  return 2 * Blocks(op.logits.rows, CrossEntropyRows(op)) * sizeof(double);
}

void CpuBackend::Run(Stream&, const CrossEntropy& op, Workspace workspace) {
  op.Check();
  const int64_t rows = op.logits.rows, block_rows = CrossEntropyRows(op);
  const int64_t blocks = Blocks(rows, block_rows);
  double* losses = Scratch<double>(workspace, 2 * blocks);
  double* counts = losses + blocks;
  pool_.For(blocks, [&](int64_t block, int) {
    losses[block] = counts[block] = 0;
    const int64_t end = std::min(rows, (block + 1) * block_rows);
    for (int64_t row = block * block_rows; row < end; ++row) {
      losses[block] += CrossEntropyRow(op, row);
      counts[block] += op.targets.as<int32_t>()[row] != op.ignore_index;
    }
  });
  double loss = 0, count = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    loss += losses[block];
    count += counts[block];
  }
  op.totals.f32()[0] += static_cast<float>(loss);
  op.totals.f32()[1] += static_cast<float>(count);
}

void CpuBackend::Run(Stream&, const CrossEntropyMax& op) {
  op.Check();
  ForRowBlocks(pool_, op.logits.rows, op.logits.cols, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      LargestOfRow(Pointer(op.logits, row), op.logits.cols, Pointer(op.max, 0, row));
    }
  });
}

void CpuBackend::Run(Stream&, const CrossEntropySums& op) {
  op.Check();
  const int64_t classes = op.logits.cols;
  ForRowBlocks(pool_, op.logits.rows, classes, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* logits = Pointer(op.logits, row);
      const float largest = *Pointer(op.max, 0, row);
      const int64_t target = op.targets.as<int32_t>()[row] - op.first_class;
      ExpRow(logits, nullptr, classes, largest, Pointer(op.sums, 0, row));
      *Pointer(op.sums, 1, row) = target >= 0 && target < classes ? logits[target] - largest : 0.0f;
    }
  });
}

int64_t CpuBackend::WorkspaceBytes(const SumOfSquares& op) const {
  return Blocks(op.x.size(), kBlockElements) * sizeof(double);
}

void CpuBackend::Run(Stream&, const SumOfSquares& op, Workspace workspace) {
  op.Check();
  const int64_t size = op.x.size(), blocks = Blocks(size, kBlockElements);
  double* partial = Scratch<double>(workspace, blocks);
  pool_.For(blocks, [&](int64_t block, int) {
    const int64_t begin = block * kBlockElements;
    SumSquares(op.x.f32() + begin, std::min(kBlockElements, size - begin), &partial[block]);
  });
  double sum = op.accumulate ? *op.out.f32() : 0.0;
  for (int64_t block = 0; block < blocks; ++block) sum += partial[block];
  *op.out.f32() = static_cast<float>(sum);
}

void CpuBackend::Run(Stream&, const AdamW& op) {
  op.Check();
  const double step = static_cast<double>(op.step);
  const AdamWFactors factors = {
      .grad_scale = op.grad_scale.present() ? *op.grad_scale.f32() : 1.0f,
      .beta1 = static_cast<float>(op.beta1),
      .beta2 = static_cast<float>(op.beta2),
      .rest1 = static_cast<float>(1 - op.beta1),
      .rest2 = static_cast<float>(1 - op.beta2),
      .decay = static_cast<float>(1 - op.lr * op.weight_decay),
      .step = static_cast<float>(op.lr / (1 - std::pow(op.beta1, step))),
      .rsqrt2 = static_cast<float>(1 / std::sqrt(1 - std::pow(op.beta2, step))),
      .eps = static_cast<float>(op.eps),
      .zero_grad = op.zero_grad};
  Bfloat16* copy = op.param_copy.present() ? op.param_copy.as<Bfloat16>() : nullptr;
  ForRuns(pool_, 1, op.param.size(), /*flat=*/true, [&](int64_t, int64_t begin, int64_t n) {
    AdamWRun(op.param.f32() + begin, op.grad.f32() + begin, op.m.f32() + begin, op.v.f32() + begin,
             copy == nullptr ? nullptr : copy + begin, n, factors);
  });
}

}  // namespace atl
