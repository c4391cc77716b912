// The frame of all kernels for single elements: a function of a row and a pack of columns, run over
// a matrix; and activations.

#ifndef ATOLL_KERNELS_CUDA_DEVICE_MAP_H_
#define ATOLL_KERNELS_CUDA_DEVICE_MAP_H_

#include "kernels/cuda/device/device.h"
#include "kernels/ops.h"

namespace atl::ATOLL_DEVICE {

inline constexpr int kMapThreads = 256;
inline constexpr int64_t kRowsOfGrid = 65535;

template <int N, typename Function>
__global__ void __launch_bounds__(kMapThreads)
    MapKernel(const Function function, int64_t rows, int64_t packs) {
  // Grids are as large as the matrix, but for the largest: unrolled, this would only cost
  // registers.
#pragma unroll 1
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
#pragma unroll 1
    for (int64_t pack = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; pack < packs;
         pack += int64_t{gridDim.x} * blockDim.x) {
      function.template At<N>(row, pack * N);
    }
  }
}

template <int N, typename Function>
void LaunchMap(const Queue& queue, const char* name, const Function& function, int64_t rows,
               int64_t cols) {
  const int64_t packs = cols / N;
  const int64_t threads = packs < kMapThreads ? CeilDiv(packs, kWarp) * kWarp : kMapThreads;
  if (packs == 0 || rows == 0) return;
  const int64_t across = CeilDiv(packs, threads);
  const dim3 grid(static_cast<unsigned>(across < (1 << 30) ? across : 1 << 30),
                  static_cast<unsigned>(rows < kRowsOfGrid ? rows : kRowsOfGrid));
  Launch(queue, grid, dim3(static_cast<unsigned>(threads)), 0, name, MapKernel<N, Function>,
         function, rows, packs);
}

// Runs function.At<N>(row, col) for every pack of a matrix of `like`'s shape; as one long row where
// all tensors are contiguous. kW is the pack size where alignment allows one.
template <int kW, typename Function>
void Map(const Queue& queue, const char* name, const Function& function,
         std::initializer_list<Tensor> tensors, const Tensor& like) {
  bool contiguous = true;
  for (const Tensor& x : tensors) contiguous &= !x.present() || x.contiguous();
  const int64_t rows = contiguous ? 1 : like.rows;
  const int64_t cols = contiguous ? like.size() : like.cols;
  int pack = 1;
  if (contiguous) {
    pack = cols % kW == 0 ? kW : 1;
    for (const Tensor& x : tensors) {
      if (reinterpret_cast<uintptr_t>(x.data) % 16 != 0) pack = 1;
    }
  } else {
    pack = PackSize(tensors, cols, kW);
  }
  if (pack == kW) {
    LaunchMap<kW>(queue, name, function, rows, cols);
  } else {
    LaunchMap<1>(queue, name, function, rows, cols);
  }
}

// ---- Activations, of numbers that are stored as T ----

inline constexpr float kCubic = 0.044715f;
inline constexpr float kSqrt2OverPi = 0.7978845608028654f;
inline constexpr float kSqrtHalf = 0.7071067811865476f;
inline constexpr float kInverseSqrt2Pi = 0.3989422804014327f;

template <Activation kKind, typename T>
__device__ inline float Activate(float x) {
  if constexpr (kKind == Activation::kGeluTanh) {
    return 0.5f * x * (1.0f + Tanh<T>(kSqrt2OverPi * (x + kCubic * x * x * x)));
  } else if constexpr (kKind == Activation::kGeluErf) {
    return 0.5f * x * (1.0f + erff(x * kSqrtHalf));
  } else if constexpr (kKind == Activation::kSilu) {
    return x * Sigmoid<T>(x);
  } else if constexpr (kKind == Activation::kRelu) {
    return x > 0.0f ? x : 0.0f;
  } else {
    return x;
  }
}

template <Activation kKind, typename T>
__device__ inline float ActivateDerivative(float x) {
  if constexpr (kKind == Activation::kGeluTanh) {
    const float t = Tanh<T>(kSqrt2OverPi * (x + kCubic * x * x * x));
    return 0.5f * (1.0f + t) +
           0.5f * x * (1.0f - t * t) * kSqrt2OverPi * (1.0f + 3.0f * kCubic * x * x);
  } else if constexpr (kKind == Activation::kGeluErf) {
    return 0.5f * (1.0f + erff(x * kSqrtHalf)) + x * kInverseSqrt2Pi * Exp<T>(-0.5f * x * x);
  } else if constexpr (kKind == Activation::kSilu) {
    const float s = Sigmoid<T>(x);
    return s + x * s * (1.0f - s);
  } else if constexpr (kKind == Activation::kRelu) {
    return x > 0.0f ? 1.0f : 0.0f;
  } else {
    return 1.0f;
  }
}

template <typename Function>
void ForActivation(Activation kind, const Function& function) {
  switch (kind) {
    case Activation::kNone:
      return function.template operator()<Activation::kNone>();
    case Activation::kGeluTanh:
      return function.template operator()<Activation::kGeluTanh>();
    case Activation::kGeluErf:
      return function.template operator()<Activation::kGeluErf>();
    case Activation::kSilu:
      return function.template operator()<Activation::kSilu>();
    case Activation::kRelu:
      return function.template operator()<Activation::kRelu>();
  }
}

// Map over rows that stay rows, because something is read along them: PackSize of all tensors.
template <int kW, typename Function>
void MapRows(const Queue& queue, const char* name, const Function& function,
             std::initializer_list<Tensor> tensors, int64_t rows, int64_t cols) {
  ForPack<kW>(tensors, cols, [&]<int N>() { LaunchMap<N>(queue, name, function, rows, cols); });
}

}  // namespace atl::ATOLL_DEVICE

#endif  // ATOLL_KERNELS_CUDA_DEVICE_MAP_H_
