// The optimizer's step on flat fp32 buffers, every byte moved once.
//
// Bytes per element: AdamW 28 (+ 4 to zero the gradient, + 2 for a bf16 copy), about 15 FLOP;
// SumOfSquares 4, 2 FLOP. A layer's parameters are one buffer, so one launch (two with the part
// that does not decay) serves all its tensors.

#include <cmath>

#include "kernels/cuda/device.h"
#include "kernels/cuda/launchers.h"

namespace atl::ATOLL_DEVICE {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kBlocksMax = 1024;  // of SumOfSquares; by size alone, for the same bits again
constexpr int64_t kElementsPerBlock = 16 * kThreads;

// Rounded once from double on the host.
struct AdamWConstants {
  float beta1, beta2, one_minus_beta1, one_minus_beta2;
  float step_size;          // lr / (1 - beta1^step)
  float second_correction;  // 1 / (1 - beta2^step)
  float eps, decay;         // decay: 1 - lr * weight_decay
  bool zero_grad;
};

template <int N>
__global__ void __launch_bounds__(kThreads)
    AdamWKernel(float* param, float* grad, float* m, float* v, const float* grad_scale, Bf16* copy,
                const AdamWConstants k, int64_t packs) {
  const float scale = grad_scale == nullptr ? 1.0f : *grad_scale;
  for (int64_t p = int64_t{blockIdx.x} * kThreads + threadIdx.x; p < packs;
       p += int64_t{gridDim.x} * kThreads) {
    const int64_t at = p * N;
    Pack<float, N> value = Load<N>(param + at), first = Load<N>(m + at), second = Load<N>(v + at);
    Pack<float, N> g = Load<N>(grad + at);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float scaled = g.v[i] * scale;
      first.v[i] = k.beta1 * first.v[i] + k.one_minus_beta1 * scaled;
      second.v[i] = k.beta2 * second.v[i] + k.one_minus_beta2 * scaled * scaled;
      const float root = sqrtf(second.v[i] * k.second_correction) + k.eps;
      value.v[i] = value.v[i] * k.decay - k.step_size * first.v[i] / root;
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

__global__ void ClipScaleKernel(const float* sum_of_squares, float* scale, float max_norm) {
  *scale = fminf(1.0f, max_norm / (sqrtf(*sum_of_squares) + 1e-6f));
}

int64_t Blocks(int64_t size) {
  const int64_t blocks = CeilDiv(size, kElementsPerBlock);
  return blocks < 1 ? 1 : blocks < kBlocksMax ? blocks : kBlocksMax;
}

}  // namespace

void Enqueue(const Queue& queue, const AdamW& op) {
  const double correction1 = 1 - std::pow(op.beta1, static_cast<double>(op.step));
  const double correction2 = 1 - std::pow(op.beta2, static_cast<double>(op.step));
  const AdamWConstants constants{.beta1 = static_cast<float>(op.beta1),
                                 .beta2 = static_cast<float>(op.beta2),
                                 .one_minus_beta1 = static_cast<float>(1 - op.beta1),
                                 .one_minus_beta2 = static_cast<float>(1 - op.beta2),
                                 .step_size = static_cast<float>(op.lr / correction1),
                                 .second_correction = static_cast<float>(1 / correction2),
                                 .eps = static_cast<float>(op.eps),
                                 .decay = static_cast<float>(1 - op.lr * op.weight_decay),
                                 .zero_grad = op.zero_grad};
  const auto launch = [&]<int N>() {
    const int64_t packs = op.param.size() / N, blocks = CeilDiv(packs, kThreads);
    const dim3 grid(static_cast<unsigned>(blocks < (1 << 30) ? blocks : 1 << 30));
    Launch(queue, grid, dim3(kThreads), 0, "AdamW", AdamWKernel<N>, op.param.f32(), op.grad.f32(),
           op.m.f32(), op.v.f32(), static_cast<const float*>(op.grad_scale.data),
           static_cast<Bf16*>(op.param_copy.data), constants, packs);
  };
  if (PackSize({op.param, op.grad, op.m, op.v, op.param_copy}, op.param.size(), 4) > 1) {
    launch.template operator()<4>();
  } else {
    launch.template operator()<1>();
  }
}

int64_t ScratchBytes(const SumOfSquares& op) {
  return Blocks(op.x.size()) * static_cast<int64_t>(sizeof(double));
}

void Enqueue(const Queue& queue, const SumOfSquares& op, Workspace workspace) {
  ATOLL_CHECK(workspace.bytes >= ScratchBytes(op), "workspace too small");
  auto* partials = static_cast<double*>(workspace.data);
  const int64_t size = op.x.size(), blocks = Blocks(size);
  const dim3 grid(static_cast<unsigned>(blocks));
  if (PackSize({op.x}, size, 4) > 1) {
    Launch(queue, grid, dim3(kThreads), 0, "SumOfSquares", SquaresKernel<4>, op.x.f32(), size / 4,
           partials);
  } else {
    Launch(queue, grid, dim3(kThreads), 0, "SumOfSquares", SquaresKernel<1>, op.x.f32(), size,
           partials);
  }
  Launch(queue, dim3(1), dim3(kThreads), 0, "SumOfSquares", FinishSquaresKernel, partials,
         static_cast<int>(blocks), op.out.f32(), op.accumulate);
}

void Enqueue(const Queue& queue, const ClipScale& op) {
  Launch(queue, dim3(1), dim3(1), 0, "ClipScale", ClipScaleKernel, op.sum_of_squares.f32(),
         op.scale.f32(), op.max_norm);
}

}  // namespace atl::ATOLL_DEVICE
