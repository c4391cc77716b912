// Pseudo-gradients: quantisation with error feedback, and the outer step. One pass: a warp has a
// block of 256 numbers in registers, eight to a lane. Codes, scales and residuals are the host's,
// bit for bit.
//
// Bytes per number: QuantizeDelta 8 (+ 8 with a residual) + 1 or 1/2; DequantizeDelta 4 + 1 or 1/2;
// NesterovStep 16 + 4 or 2. A handful of FLOP each.

#include <cfloat>

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/launchers.h"

namespace atl::ATOLL_DEVICE {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 8;  // numbers of a lane
static_assert(kEach * kWarp == kQuantBlock);

// a * b, rounded to a float before anything is done with it. Compilers may else make one operation
// of a product and a sum, which rounds once; the host's bits round twice.
__device__ inline float RoundedProduct(float a, float b) {
#ifdef __CUDACC__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

struct Numbers {
  float v[kEach];
};

// Numbers [at, at + 8) of n; 0 beyond. `wide`: whether packs may be read.
__device__ inline Numbers Read(const float* from, int64_t at, int64_t n, bool wide) {
  Numbers x;
  if (wide && at + kEach <= n) {
    const Pack<float, kEach> pack = Load<kEach>(from + at);
#pragma unroll
    for (int i = 0; i < kEach; ++i) x.v[i] = pack.v[i];
  } else {
#pragma unroll
    for (int i = 0; i < kEach; ++i) x.v[i] = at + i < n ? from[at + i] : 0.0f;
  }
  return x;
}

__device__ inline void Write(float* to, int64_t at, int64_t n, bool wide, const Numbers& x) {
  if (wide && at + kEach <= n) {
    Pack<float, kEach> pack;
#pragma unroll
    for (int i = 0; i < kEach; ++i) pack.v[i] = x.v[i];
    Store(to + at, pack);
  } else {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (at + i < n) to[at + i] = x.v[i];
    }
  }
}

// One warp per block of numbers.
template <int kBits>
__global__ void __launch_bounds__(kThreads)
    QuantizeKernel(const float* base, const float* theta, float* residual, View<int32_t> codes,
                   float* scales, int64_t n, int64_t blocks, bool wide) {
  constexpr float kSteps = kBits == 8 ? 127.0f : 7.0f;
  const int64_t block = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  if (block >= blocks) return;  // the whole warp
  const int lane = threadIdx.x % kWarp;
  const int64_t at = block * kQuantBlock + lane * kEach;
  Numbers value = Read(base, at, n, wide);
  const Numbers away = Read(theta, at, n, wide);
  float largest = 0.0f, odd = 0.0f;  // odd: NaN as soon as one number is not finite
#pragma unroll
  for (int i = 0; i < kEach; ++i) value.v[i] -= away.v[i];
  if (residual != nullptr) {
    const Numbers more = Read(residual, at, n, wide);
#pragma unroll
    for (int i = 0; i < kEach; ++i) value.v[i] += more.v[i];
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    odd += value.v[i] * 0.0f;
    largest = fmaxf(largest, fabsf(value.v[i]));
  }
  largest = GroupReduce<kWarp>(largest, Max());
  const bool finite = GroupReduce<kWarp>(odd, Sum()) == 0.0f;
  const float scale = finite ? largest / kSteps : NAN;
  // Of numbers so small that it overflows, all is left to the residual.
  const float overflows = finite && largest > 0.0f ? kSteps / largest : 0.0f;
  const float inverse = overflows <= FLT_MAX ? overflows : 0.0f;
  if (lane == 0) scales[block] = scale;
  unsigned words[kBits / 4] = {};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const float code = finite ? rintf(value.v[i] * inverse) : 0.0f;
    value.v[i] = finite ? value.v[i] - RoundedProduct(code, scale) : 0.0f;
    const int whole = static_cast<int>(code);
    if constexpr (kBits == 8) {
      words[i / 4] |= (static_cast<unsigned>(whole) & 255u) << (i % 4 * 8);
    } else {
      words[0] |= static_cast<unsigned>(whole + 8) << (i * 4);
    }
  }
#pragma unroll
  for (int w = 0; w < kBits / 4; ++w) {
    codes.Row(block)[lane * (kBits / 4) + w] = static_cast<int32_t>(words[w]);
  }
  if (residual != nullptr) Write(residual, at, n, wide, value);
}

template <int kBits>
__global__ void __launch_bounds__(kThreads)
    DequantizeKernel(View<int32_t> codes, const float* scales, float* out, int64_t n,
                     int64_t blocks, bool wide) {
  constexpr int kAtOnce = 4;  // numbers of a lane, side by side: a warp writes whole sectors
  const int64_t block = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  if (block >= blocks) return;
  const int lane = threadIdx.x % kWarp;
  const float scale = scales[block];
#pragma unroll
  for (int turn = 0; turn < kQuantBlock / (kWarp * kAtOnce); ++turn) {
    const int first = (turn * kWarp + lane) * kAtOnce, bit = first * kBits;
    const auto bits = static_cast<unsigned>(codes.Row(block)[bit / 32]) >> bit % 32;
    Pack<float, kAtOnce> x;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const unsigned own = bits >> i * kBits;
      const int code =
          kBits == 8 ? static_cast<int8_t>(own & 255u) : static_cast<int>(own & 15u) - 8;
      x.v[i] = static_cast<float>(code) * scale;
    }
    const int64_t at = block * kQuantBlock + first;
    if (wide && at + kAtOnce <= n) {
      Store(out + at, x);
      continue;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (at + i < n) out[at + i] = x.v[i];
    }
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    NesterovKernel(float* theta, float* velocity, const T* delta, float eta, float mu,
                   int64_t packs) {
  for (int64_t p = int64_t{blockIdx.x} * kThreads + threadIdx.x; p < packs;
       p += int64_t{gridDim.x} * kThreads) {
    Pack<float, N> t = Load<N>(theta + p * N), v = Load<N>(velocity + p * N);
    const Pack<float, N> d = Load<N>(delta + p * N);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      v.v[i] = mu * v.v[i] + d.v[i];
      t.v[i] -= eta * (d.v[i] + mu * v.v[i]);
    }
    Store(theta + p * N, t);
    Store(velocity + p * N, v);
  }
}

dim3 ComputeGrid(int64_t threads) {
  return dim3(static_cast<unsigned>(CeilDiv(threads, kThreads)));
}

bool Aligned(std::initializer_list<Tensor> tensors) { return PackSize(tensors, kEach, kEach) > 1; }

bool EightBits(const Tensor& codes) { return codes.cols == kQuantBlock / 4; }

}  // namespace

void Enqueue(const Queue& queue, const QuantizeDelta& op) {
  const auto kernel = EightBits(op.codes) ? QuantizeKernel<8> : QuantizeKernel<4>;
  Launch(queue, ComputeGrid(op.codes.rows * kWarp), dim3(kThreads), 0, "QuantizeDelta", kernel,
         op.base.f32(), op.theta.f32(), static_cast<float*>(op.residual.data),
         MakeView<int32_t>(op.codes), op.scales.f32(), op.base.size(), op.codes.rows,
         Aligned({op.base, op.theta, op.residual}));
}

void Enqueue(const Queue& queue, const DequantizeDelta& op) {
  const auto kernel = EightBits(op.codes) ? DequantizeKernel<8> : DequantizeKernel<4>;
  Launch(queue, ComputeGrid(op.codes.rows * kWarp), dim3(kThreads), 0, "DequantizeDelta", kernel,
         MakeView<int32_t>(op.codes), op.scales.f32(), op.out.f32(), op.out.size(), op.codes.rows,
         Aligned({op.out}));
}

void Enqueue(const Queue& queue, const NesterovStep& op) {
  ForType(op.delta.dtype, [&]<typename T>() {
    const auto launch = [&]<int N>() {
      const int64_t packs = op.theta.size() / N;
      Launch(queue, ComputeGrid(packs), dim3(kThreads), 0, "NesterovStep", NesterovKernel<T, N>,
             op.theta.f32(), op.velocity.f32(), static_cast<const T*>(op.delta.data), op.eta, op.mu,
             packs);
    };
    if (PackSize({op.theta, op.velocity, op.delta}, op.theta.size(), kWide<T>) > 1) {
      launch.template operator()<kWide<T>>();
    } else {
      launch.template operator()<1>();
    }
  });
}

}  // namespace atl::ATOLL_DEVICE
