// The optimizer's step on flat fp32 buffers, every byte moved once.
//
// Bytes per element: AdamW and LAMB 28 (+ 4 to zero the gradient, + 2 for a bf16 copy), about 15
// FLOP; LAMB's norms 16; momentum 20, RMSprop 28; SumOfSquares 4, 2 FLOP. A layer's parameters are
// one buffer, so one launch (two with the part that does not decay) serves all its tensors.

#include <cmath>

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/launchers.h"

namespace atl::ATOLL_DEVICE {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kBlocksMax = 1024;  // of SumOfSquares; by size alone, for the same bits again
constexpr int64_t kElementsPerBlock = 16 * kThreads;

// Constants of AdamW and LAMB, rounded once from double on the host.
struct AdamConstants {
  float beta1, beta2, one_minus_beta1, one_minus_beta2;
  float step;               // of AdamW: lr / (1 - beta1^step); of LAMB: without lr
  float second_correction;  // 1 / (1 - beta2^step)
  float eps, lr;
  float decay;  // of AdamW: 1 - lr * weight_decay; of LAMB: weight_decay
  bool zero_grad;
};

// Advances the moments of one element and returns where they point.
__device__ inline float AdamDirection(const AdamConstants& k, float grad, float& first,
                                      float& second) {
  first = k.beta1 * first + k.one_minus_beta1 * grad;
  second = k.beta2 * second + k.one_minus_beta2 * grad * grad;
  return first * k.step / (sqrtf(second * k.second_correction) + k.eps);
}

template <bool kLamb, int N>
__global__ void __launch_bounds__(kThreads)
    AdamKernel(float* param, float* grad, float* m, float* v, const float* grad_scale, Bf16* copy,
               const AdamConstants k, int64_t packs) {
  const float scale = grad_scale == nullptr ? 1.0f : *grad_scale;
  for (int64_t p = int64_t{blockIdx.x} * kThreads + threadIdx.x; p < packs;
       p += int64_t{gridDim.x} * kThreads) {
    const int64_t at = p * N;
    Pack<float, N> value = Load<N>(param + at), first = Load<N>(m + at), second = Load<N>(v + at);
    Pack<float, N> g = Load<N>(grad + at);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float direction = AdamDirection(k, g.v[i] * scale, first.v[i], second.v[i]);
      value.v[i] = kLamb ? value.v[i] - k.lr * (direction + k.decay * value.v[i])
                         : value.v[i] * k.decay - direction;
      g.v[i] = 0.0f;
    }
    Store(param + at, value);
    Store(m + at, first);
    Store(v + at, second);
    if (k.zero_grad) Store(grad + at, g);
    if (copy != nullptr) Store(copy + at, value);
  }
}

template <int N>
__global__ void __launch_bounds__(kThreads)
    SquaresKernel(const float* x, int64_t packs, double* partials) {
  double sum = 0;
  for (int64_t p = int64_t{blockIdx.x} * kThreads + threadIdx.x; p < packs;
       p += int64_t{gridDim.x} * kThreads) {
    const Pack<float, N> v = Load<N>(x + p * N);
    float of_pack = 0.0f;
#pragma unroll
    for (int i = 0; i < N; ++i) of_pack += v.v[i] * v.v[i];
    sum += of_pack;
  }
  sum = BlockReduce(sum, 0.0, Sum());
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    FinishSquaresKernel(const double* partials, int blocks, float* out, bool accumulate) {
  double sum = 0;
  for (int b = threadIdx.x; b < blocks; b += kThreads) sum += partials[b];
  sum = BlockReduce(sum, 0.0, Sum());
  if (threadIdx.x == 0) *out = static_cast<float>((accumulate ? *out : 0.0) + sum);
}

// Two sums a block, of squares of parameters and of directions.
template <int N>
__global__ void __launch_bounds__(kThreads)
    LambNormsKernel(const float* param, const float* grad, const float* m, const float* v,
                    const float* grad_scale, const AdamConstants k, int64_t packs, int blocks,
                    double* partials) {
  const float scale = grad_scale == nullptr ? 1.0f : *grad_scale;
  double params = 0, directions = 0;
  for (int64_t p = int64_t{blockIdx.x} * kThreads + threadIdx.x; p < packs;
       p += int64_t{gridDim.x} * kThreads) {
    const int64_t at = p * N;
    const Pack<float, N> value = Load<N>(param + at), g = Load<N>(grad + at);
    Pack<float, N> first = Load<N>(m + at), second = Load<N>(v + at);
    float of_params = 0.0f, of_directions = 0.0f;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float direction =
          AdamDirection(k, g.v[i] * scale, first.v[i], second.v[i]) + k.decay * value.v[i];
      of_params += value.v[i] * value.v[i];
      of_directions += direction * direction;
    }
    params += of_params;
    directions += of_directions;
  }
  params = BlockReduce(params, 0.0, Sum());
  if (threadIdx.x == 0) partials[blockIdx.x] = params;
  __syncthreads();
  directions = BlockReduce(directions, 0.0, Sum());
  if (threadIdx.x == 0) partials[blocks + blockIdx.x] = directions;
}

struct MomentumConstants {
  float decay, alpha, one_minus_alpha, eps, momentum, lr;
  bool zero_grad;
};

// v, param and copy may be null.
template <int N>
__global__ void __launch_bounds__(kThreads)
    MomentumKernel(float* param, float* grad, float* m, float* v, const float* grad_scale,
                   Bf16* copy, const MomentumConstants k, int64_t packs) {
  const float scale = grad_scale == nullptr ? 1.0f : *grad_scale;
  for (int64_t p = int64_t{blockIdx.x} * kThreads + threadIdx.x; p < packs;
       p += int64_t{gridDim.x} * kThreads) {
    const int64_t at = p * N;
    Pack<float, N> g = Load<N>(grad + at), moment = Load<N>(m + at), value = {}, square = {};
    if (param != nullptr) value = Load<N>(param + at);
    if (v != nullptr) square = Load<N>(v + at);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float scaled = g.v[i] * scale + k.decay * value.v[i];
      if (v != nullptr) {
        square.v[i] = k.alpha * square.v[i] + k.one_minus_alpha * scaled * scaled;
        scaled /= sqrtf(square.v[i]) + k.eps;
      }
      moment.v[i] = k.momentum * moment.v[i] + scaled;
      value.v[i] -= k.lr * moment.v[i];
      g.v[i] = 0.0f;
    }
    Store(m + at, moment);
    if (v != nullptr) Store(v + at, square);
    if (k.zero_grad) Store(grad + at, g);
    if (param != nullptr) Store(param + at, value);
    if (copy != nullptr) Store(copy + at, value);
  }
}

__global__ void __launch_bounds__(kThreads)
    NormalizeKernel(const float* x, const float* sum_of_squares, float* y, int64_t size) {
  const float norm = sqrtf(*sum_of_squares) + 1e-7f;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * kThreads) {
    y[i] = x[i] / norm;
  }
}

__global__ void ClipScaleKernel(const float* sum_of_squares, float* scale, float max_norm) {
  *scale = fminf(1.0f, max_norm / (sqrtf(*sum_of_squares) + 1e-6f));
}

int64_t Blocks(int64_t size) {
  const int64_t blocks = CeilDiv(size, kElementsPerBlock);
  return blocks < 1 ? 1 : blocks < kBlocksMax ? blocks : kBlocksMax;
}

dim3 ComputeGrid(int64_t packs) {
  const int64_t blocks = CeilDiv(packs, kThreads);
  return dim3(static_cast<unsigned>(blocks < (1 << 30) ? blocks : 1 << 30));
}

AdamConstants MakeAdamConstants(const AdamStep& op) {
  const auto count = static_cast<double>(op.step);
  return {.beta1 = static_cast<float>(op.beta1),
          .beta2 = static_cast<float>(op.beta2),
          .one_minus_beta1 = static_cast<float>(1 - op.beta1),
          .one_minus_beta2 = static_cast<float>(1 - op.beta2),
          .step = static_cast<float>((op.lamb ? 1 : op.lr) / (1 - std::pow(op.beta1, count))),
          .second_correction = static_cast<float>(1 / (1 - std::pow(op.beta2, count))),
          .eps = static_cast<float>(op.eps),
          .lr = static_cast<float>(op.lr),
          .decay = static_cast<float>(op.lamb ? op.weight_decay : 1 - op.lr * op.weight_decay),
          .zero_grad = op.zero_grad};
}

// Launches kernel.operator()<N>() on all elements. param, its copy and v may be absent.
template <typename Op, typename Constants, typename Kernel>
void LaunchUpdate(const Queue& queue, const char* name, const Op& op, const Constants& constants,
                  const Kernel& kernel) {
  const int64_t size = op.grad.size();
  ForPack<4>({op.param, op.grad, op.m, op.v, op.param_copy}, size, [&]<int N>() {
    Launch(queue, ComputeGrid(size / N), dim3(kThreads), 0, name, kernel.template operator()<N>(),
           static_cast<float*>(op.param.data), op.grad.f32(), op.m.f32(),
           static_cast<float*>(op.v.data), static_cast<const float*>(op.grad_scale.data),
           static_cast<Bf16*>(op.param_copy.data), constants, size / N);
  });
}

}  // namespace

void Enqueue(const Queue& queue, const AdamStep& op) {
  const AdamConstants constants = MakeAdamConstants(op);
  if (op.lamb) {
    LaunchUpdate(queue, "LAMB", op, constants, [&]<int N>() { return AdamKernel<true, N>; });
  } else {
    LaunchUpdate(queue, "AdamW", op, constants, [&]<int N>() { return AdamKernel<false, N>; });
  }
}

int64_t ScratchBytes(const LambNorms& op) {
  return 2 * Blocks(op.step.param.size()) * static_cast<int64_t>(sizeof(double));
}

void Enqueue(const Queue& queue, const LambNorms& op, Workspace workspace) {
  ATOLL_CHECK(workspace.bytes >= ScratchBytes(op), "workspace too small");
  auto* partials = static_cast<double*>(workspace.data);
  const AdamStep& step = op.step;
  const auto blocks = static_cast<int>(Blocks(step.param.size()));
  ForPack<4>({step.param, step.grad, step.m, step.v}, step.param.size(), [&]<int N>() {
    Launch(queue, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, "LambNorms",
           LambNormsKernel<N>, step.param.f32(), step.grad.f32(), step.m.f32(), step.v.f32(),
           static_cast<const float*>(step.grad_scale.data), MakeAdamConstants(step),
           step.param.size() / N, blocks, partials);
  });
  for (int which = 0; which < 2; ++which) {
    Launch(queue, dim3(1), dim3(kThreads), 0, "LambNorms", FinishSquaresKernel,
           partials + which * blocks, blocks, op.sums.f32() + which, true);
  }
}

void Enqueue(const Queue& queue, const MomentumStep& op) {
  const MomentumConstants constants{.decay = static_cast<float>(op.weight_decay),
                                    .alpha = static_cast<float>(op.alpha),
                                    .one_minus_alpha = static_cast<float>(1 - op.alpha),
                                    .eps = static_cast<float>(op.eps),
                                    .momentum = static_cast<float>(op.momentum),
                                    .lr = static_cast<float>(op.lr),
                                    .zero_grad = op.zero_grad};
  LaunchUpdate(queue, "MomentumStep", op, constants, [&]<int N>() { return MomentumKernel<N>; });
}

void Enqueue(const Queue& queue, const Normalize& op) {
  Launch(queue, ComputeGrid(op.x.size()), dim3(kThreads), 0, "Normalize", NormalizeKernel,
         op.x.f32(), op.sum_of_squares.f32(), op.y.f32(), op.x.size());
}

int64_t ScratchBytes(const SumOfSquares& op) {
  return Blocks(op.x.size()) * static_cast<int64_t>(sizeof(double));
}

void Enqueue(const Queue& queue, const SumOfSquares& op, Workspace workspace) {
  ATOLL_CHECK(workspace.bytes >= ScratchBytes(op), "workspace too small");
  auto* partials = static_cast<double*>(workspace.data);
  const int64_t size = op.x.size(), blocks = Blocks(size);
  const dim3 grid(static_cast<unsigned>(blocks));
  ForPack<4>({op.x}, size, [&]<int N>() {
    Launch(queue, grid, dim3(kThreads), 0, "SumOfSquares", SquaresKernel<N>, op.x.f32(), size / N,
           partials);
  });
  Launch(queue, dim3(1), dim3(kThreads), 0, "SumOfSquares", FinishSquaresKernel, partials,
         static_cast<int>(blocks), op.out.f32(), op.accumulate);
}

void Enqueue(const Queue& queue, const ClipScale& op) {
  Launch(queue, dim3(1), dim3(1), 0, "ClipScale", ClipScaleKernel, op.sum_of_squares.f32(),
         op.scale.f32(), op.max_norm);
}

}  // namespace atl::ATOLL_DEVICE
