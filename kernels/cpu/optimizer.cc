// Loss, sums of squares and optimizers.

#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/simd.h"

namespace atl {
namespace {

using simd::kLanes;
using simd::LoadUpTo;
using simd::Splat;
using simd::StoreUpTo;

constexpr float kMinusInfinity = -__builtin_inff();

ATOLL_KERNEL(FindRowMax, (const float* x, int64_t n, float* largest), (x, n, largest)) {
  V most = Splat<V>(kMinusInfinity);
  for (int64_t i = 0; i < n; i += kLanes) {
    most = simd::Max(simd::KeepFirst(LoadUpTo<V>(x + i, n - i), n - i, kMinusInfinity), most);
  }
  *largest = simd::Largest(most);
}

// The sum of exp(x - less); the exponentials go to `exps` unless that is null. exps may be x.
ATOLL_KERNEL(ExpRow, (const float* x, float* exps, int64_t n, float less, float* sum),
             (x, exps, n, less, sum)) {
  V sums{};
  for (int64_t i = 0; i < n; i += kLanes) {
    const V e = simd::Exp(LoadUpTo<V>(x + i, n - i) - less);
    if (exps != nullptr) StoreUpTo(exps + i, e, n - i);
    sums += simd::KeepFirst(e, n - i, 0.0f);
  }
  *sum = simd::Sum(sums);
}

ATOLL_KERNEL(ScaleRow, (float* x, float factor, int64_t n), (x, factor, n)) {
  for (int64_t i = 0; i < n; i += kLanes)
    StoreUpTo(x + i, LoadUpTo<V>(x + i, n - i) * factor, n - i);
}

ATOLL_KERNEL(SumSquares, (const float* x, int64_t n, double* sum), (x, n, sum)) {
  simd::Doubles<V> sums{};
  for (int64_t i = 0; i < n; i += kLanes) {
    const auto wide = simd::Widen(LoadUpTo<V>(x + i, n - i));
    sums += wide * wide;
  }
  *sum = simd::SumOfLanes<double>(sums);
}

// The new parameters, and their rounded copy if there is one.
template <class V>
ATOLL_INLINE void StoreParam(float* param, Bfloat16* copy, int64_t i, const V& updated,
                             int64_t rest) {
  StoreUpTo(param + i, updated, rest);
  if (copy == nullptr) return;
  if (rest >= kLanes) return simd::ToBfloat16(copy + i, updated);
  Bfloat16 lanes[kLanes];
  simd::ToBfloat16(lanes, updated);
  for (int64_t lane = 0; lane < rest; ++lane) copy[i + lane] = lanes[lane];
}

// Factors of AdamW and LAMB.
struct AdamFactors {
  float grad_scale, beta1, beta2, rest1, rest2;  // rest: 1 - beta
  float decay;    // of AdamW: 1 - lr * weight_decay; of LAMB: weight_decay
  float step;     // of AdamW: lr / (1 - beta1^step); of LAMB: without lr
  float rsqrt2;   // 1 / sqrt(1 - beta2^step)
  float eps, lr;  // lr: of LAMB alone
  bool zero_grad, lamb;
};

template <class V>
struct AdamMoments {
  V first, second, step;
};

template <class V>
ATOLL_INLINE AdamMoments<V> AdamMomentsAt(const float* grad, const float* m, const float* v,
                                          int64_t i, int64_t rest, const AdamFactors& f) {
  const V g = LoadUpTo<V>(grad + i, rest) * f.grad_scale;
  const V first = LoadUpTo<V>(m + i, rest) * f.beta1 + g * f.rest1;
  const V second = LoadUpTo<V>(v + i, rest) * f.beta2 + g * g * f.rest2;
  return {first, second, first * f.step / (simd::Sqrt(second) * f.rsqrt2 + f.eps)};
}

ATOLL_KERNEL(AdamRun,
             (float* param, float* grad, float* m, float* v, Bfloat16* copy, int64_t n,
              const AdamFactors& f),
             (param, grad, m, v, copy, n, f)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t rest = n - i;
    const AdamMoments<V> moments = AdamMomentsAt<V>(grad, m, v, i, rest, f);
    const V old = LoadUpTo<V>(param + i, rest);
    StoreUpTo(m + i, moments.first, rest);
    StoreUpTo(v + i, moments.second, rest);
    StoreParam(param, copy, i,
               f.lamb ? old - (moments.step + old * f.decay) * f.lr : old * f.decay - moments.step,
               rest);
    if (f.zero_grad) StoreUpTo(grad + i, V{}, rest);
  }
}

ATOLL_KERNEL(LambSquares,
             (const float* param, const float* grad, const float* m, const float* v, int64_t n,
              const AdamFactors& f, double* sums),
             (param, grad, m, v, n, f, sums)) {
  simd::Doubles<V> params{}, directions{};
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t rest = n - i;
    const V old = LoadUpTo<V>(param + i, rest);
    const V direction =
        simd::KeepFirst(AdamMomentsAt<V>(grad, m, v, i, rest, f).step + old * f.decay, rest, 0.0f);
    const auto p = simd::Widen(old), d = simd::Widen(direction);
    params += p * p;
    directions += d * d;
  }
  sums[0] = simd::SumOfLanes<double>(params);
  sums[1] = simd::SumOfLanes<double>(directions);
}

struct MomentumFactors {
  float grad_scale, decay, alpha, rest, eps, momentum, lr;
  bool zero_grad;
};

// v, param and copy may be null.
ATOLL_KERNEL(MomentumRun,
             (float* param, float* grad, float* m, float* v, Bfloat16* copy, int64_t n,
              const MomentumFactors& f),
             (param, grad, m, v, copy, n, f)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t rest = n - i;
    const V p = param == nullptr ? V{} : LoadUpTo<V>(param + i, rest);
    V g = LoadUpTo<V>(grad + i, rest) * f.grad_scale + p * f.decay;
    if (v != nullptr) {
      const V square = LoadUpTo<V>(v + i, rest) * f.alpha + g * g * f.rest;
      StoreUpTo(v + i, square, rest);
      g = g / (simd::Sqrt(square) + f.eps);
    }
    const V moment = LoadUpTo<V>(m + i, rest) * f.momentum + g;
    StoreUpTo(m + i, moment, rest);
    if (param != nullptr) StoreParam(param, copy, i, p - moment * f.lr, rest);
    if (f.zero_grad) StoreUpTo(grad + i, V{}, rest);
  }
}

ATOLL_KERNEL(ScaledCopyRun, (const float* x, float* y, float factor, int64_t n),
             (x, y, factor, n)) {
  for (int64_t i = 0; i < n; i += kLanes)
    StoreUpTo(y + i, LoadUpTo<V>(x + i, n - i) * factor, n - i);
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
  const auto classes = static_cast<float>(vocabulary);
  float others = 0;  // mean of the logits, less the largest
  if (parted) {
    largest = *Pointer(op.max, 0, row);
    target_logit = *Pointer(op.sums, 1, row);
  } else {
    FindRowMax(logits, vocabulary, &largest);
    target_logit = logits[target] - largest;  // read before the gradient may replace it
    for (int64_t v = 0; op.smoothing > 0 && v < vocabulary; ++v) others += logits[v] - largest;
    others /= classes;
  }
  if (gradient != nullptr || !parted) ExpRow(logits, gradient, vocabulary, largest, &sum);
  if (parted) sum = *Pointer(op.sums, 0, row);
  if (gradient != nullptr) {
    ScaleRow(gradient, op.grad_scale / sum, vocabulary);
    if (here) gradient[target] -= op.grad_scale * (1 - op.smoothing);
    for (int64_t v = 0; op.smoothing > 0 && v < vocabulary; ++v) {
      gradient[v] -= op.grad_scale * op.smoothing / classes;
    }
  }
  return std::log(sum) - (1 - op.smoothing) * target_logit - op.smoothing * others;
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
      FindRowMax(Pointer(op.logits, row), op.logits.cols, Pointer(op.max, 0, row));
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
      *Pointer(op.sums, 2, row) = static_cast<float>(
          std::count(logits, logits + std::clamp<int64_t>(target, 0, classes), largest));
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

namespace {

float GetGradScale(const Tensor& grad_scale) {
  return grad_scale.present() ? *grad_scale.f32() : 1.0f;
}

float* Behind(const Tensor& x, int64_t begin) { return x.present() ? x.f32() + begin : nullptr; }

Bfloat16* CopyBehind(const Tensor& x, int64_t begin) {
  return x.present() ? x.as<Bfloat16>() + begin : nullptr;
}

AdamFactors MakeAdamFactors(const AdamStep& op) {
  const auto count = static_cast<double>(op.step);
  return {.grad_scale = GetGradScale(op.grad_scale),
          .beta1 = static_cast<float>(op.beta1),
          .beta2 = static_cast<float>(op.beta2),
          .rest1 = static_cast<float>(1 - op.beta1),
          .rest2 = static_cast<float>(1 - op.beta2),
          .decay = static_cast<float>(op.lamb ? op.weight_decay : 1 - op.lr * op.weight_decay),
          .step = static_cast<float>((op.lamb ? 1 : op.lr) / (1 - std::pow(op.beta1, count))),
          .rsqrt2 = static_cast<float>(1 / std::sqrt(1 - std::pow(op.beta2, count))),
          .eps = static_cast<float>(op.eps),
          .lr = static_cast<float>(op.lr),
          .zero_grad = op.zero_grad,
          .lamb = op.lamb};
}

}  // namespace

void CpuBackend::Run(Stream&, const AdamStep& op) {
  op.Check();
  const AdamFactors factors = MakeAdamFactors(op);
  ForRuns(pool_, 1, op.param.size(), /*flat=*/true, [&](int64_t, int64_t begin, int64_t n) {
    AdamRun(op.param.f32() + begin, op.grad.f32() + begin, op.m.f32() + begin, op.v.f32() + begin,
            CopyBehind(op.param_copy, begin), n, factors);
  });
}

int64_t CpuBackend::WorkspaceBytes(const LambNorms& op) const {
  return 2 * Blocks(op.step.param.size(), kBlockElements) * sizeof(double);
}

void CpuBackend::Run(Stream&, const LambNorms& op, Workspace workspace) {
  op.Check();
  const AdamStep& step = op.step;
  const AdamFactors factors = MakeAdamFactors(step);
  const int64_t size = step.param.size(), blocks = Blocks(size, kBlockElements);
  double* partial = Scratch<double>(workspace, 2 * blocks);
  pool_.For(blocks, [&](int64_t block, int) {
    const int64_t begin = block * kBlockElements;
    LambSquares(step.param.f32() + begin, step.grad.f32() + begin, step.m.f32() + begin,
                step.v.f32() + begin, std::min(kBlockElements, size - begin), factors,
                &partial[2 * block]);
  });
  for (int which = 0; which < 2; ++which) {
    double sum = op.sums.f32()[which];
    for (int64_t block = 0; block < blocks; ++block) sum += partial[2 * block + which];
    op.sums.f32()[which] = static_cast<float>(sum);
  }
}

void CpuBackend::Run(Stream&, const MomentumStep& op) {
  op.Check();
  const MomentumFactors factors = {.grad_scale = GetGradScale(op.grad_scale),
                                   .decay = static_cast<float>(op.weight_decay),
                                   .alpha = static_cast<float>(op.alpha),
                                   .rest = static_cast<float>(1 - op.alpha),
                                   .eps = static_cast<float>(op.eps),
                                   .momentum = static_cast<float>(op.momentum),
                                   .lr = static_cast<float>(op.lr),
                                   .zero_grad = op.zero_grad};
  ForRuns(pool_, 1, op.grad.size(), /*flat=*/true, [&](int64_t, int64_t begin, int64_t n) {
    MomentumRun(Behind(op.param, begin), op.grad.f32() + begin, op.m.f32() + begin,
                Behind(op.v, begin), CopyBehind(op.param_copy, begin), n, factors);
  });
}

void CpuBackend::Run(Stream&, const Normalize& op) {
  op.Check();
  const auto factor =
      static_cast<float>(1 / (std::sqrt(static_cast<double>(*op.sum_of_squares.f32())) + 1e-7));
  ForRuns(pool_, 1, op.x.size(), /*flat=*/true, [&](int64_t, int64_t begin, int64_t n) {
    ScaledCopyRun(op.x.f32() + begin, op.y.f32() + begin, factor, n);
  });
}

}  // namespace atl
