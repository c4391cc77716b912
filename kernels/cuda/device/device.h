// The language of kernels: CUDA under nvcc, and the same words on the host under any other compiler
// (emulator.h), so that every kernel also runs, slowly, in tests on machines without a GPU.
// Included by the .cu files alone.
//
// Rules for kernels: no atomics on floats, reductions in an order that depends on shapes alone,
// sums in fp32 (or double) whatever the type of the elements.

#ifndef ATOLL_KERNELS_CUDA_DEVICE_DEVICE_H_
#define ATOLL_KERNELS_CUDA_DEVICE_DEVICE_H_

#include <cstdint>
#include <initializer_list>

#include "kernels/cuda/queue.h"
#include "kernels/tensor.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#define ATOLL_DYNAMIC_SHARED(type, name)               \
  extern __shared__ __align__(16) char name##_bytes[]; \
  type* name = reinterpret_cast<type*>(name##_bytes)
#else
#include "kernels/bfloat16.h"
#include "kernels/cuda/testing/emulator.h"
#define ATOLL_DYNAMIC_SHARED(type, name) type* name = static_cast<type*>(DynamicShared())
#endif

namespace atl::ATOLL_DEVICE {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// ---- Elements: memory holds float or Bf16, registers hold float ----

struct Bf16 {
  uint16_t bits;
};

__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(Bf16 x) {
#ifdef __CUDACC__
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
#else
  return WidenBfloat16(x.bits);
#endif
}

__device__ inline void Put(float* to, float x) { *to = x; }
__device__ inline void Put(Bf16* to, float x) {
#ifdef __CUDACC__
  to->bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
  to->bits = RoundToBfloat16(x);
#endif
}

// N elements that one thread moves at once, by instructions of up to 16 bytes.
template <typename T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T v[N];
};

template <int N, typename T>
__device__ inline Pack<float, N> Load(const T* from) {
  const Pack<T, N> raw = *reinterpret_cast<const Pack<T, N>*>(from);
  Pack<float, N> x;
#pragma unroll
  for (int i = 0; i < N; ++i) x.v[i] = ToFloat(raw.v[i]);
  return x;
}

// Zeroes where the operand is absent.
template <int N, typename T>
__device__ inline Pack<float, N> LoadOrZero(const T* base, int64_t offset) {
  if (base != nullptr) return Load<N>(base + offset);
  Pack<float, N> x;
#pragma unroll
  for (int i = 0; i < N; ++i) x.v[i] = 0.0f;
  return x;
}

template <int N, typename T>
__device__ inline void Store(T* to, const Pack<float, N>& x) {
  Pack<T, N> raw;
#pragma unroll
  for (int i = 0; i < N; ++i) Put(&raw.v[i], x.v[i]);
  *reinterpret_cast<Pack<T, N>*>(to) = raw;
}

// ---- Functions of numbers that are stored as T: of bf16, which keeps 8 bits, by the device's own
// instructions, which have some 20 of them and take a quarter of the time ----

template <typename T>
__device__ inline float Exp(float x) {
#ifdef __CUDACC__
  if constexpr (sizeof(T) < sizeof(float)) return __expf(x);
#endif
  return expf(x);
}

// e^(x - y), where many x have one y: a product and the device's power of two.
template <typename T>
__device__ inline float ExpOfDifference(float x, float y) {
#ifdef __CUDACC__
  if constexpr (sizeof(T) < sizeof(float)) {
    constexpr float kLog2OfE = 1.4426950408889634f;
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(fmaf(x, kLog2OfE, -y * kLog2OfE)));
    return power;
  }
#endif
  return expf(x - y);
}

template <typename T>
__device__ inline float Quotient(float x, float y) {
#ifdef __CUDACC__
  if constexpr (sizeof(T) < sizeof(float)) return __fdividef(x, y);
#endif
  return x / y;
}

template <typename T>
__device__ inline float Tanh(float x) {
  if constexpr (sizeof(T) < sizeof(float)) return 1.0f - Quotient<T>(2.0f, 1.0f + Exp<T>(2.0f * x));
  return tanhf(x);
}

template <typename T>
__device__ inline float Sigmoid(float x) {
  return Quotient<T>(1.0f, 1.0f + Exp<T>(-x));
}

// A matrix as kernels see it.
template <typename T>
struct View {
  T* data;
  int64_t stride;
  __device__ T* Row(int64_t row) const { return data + row * stride; }
};

template <typename T>
View<T> MakeView(const Tensor& x) {
  return {static_cast<T*>(x.data), x.stride};
}

// Positions of rows that may be of several documents (PositionInDocument of kernels/ops.h).
struct Positions {
  const int32_t* starts;  // null: sequences are one document each
  int64_t seq_len, offset;
  __device__ int64_t At(int64_t row) const {
    return offset + row % seq_len - (starts == nullptr ? 0 : starts[row]);
  }
};

template <typename Op>
Positions MakePositions(const Op& op) {
  return {op.starts.present() ? op.starts.template as<int32_t>() : nullptr, op.seq_len,
          op.position_offset};
}

// ---- Reductions: every thread gets the same result, by the same tree each time ----

struct Sum {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Over groups of kLanes adjacent lanes of a warp. All lanes of the warp call it.
template <int kLanes, typename T, typename Op>
__device__ inline T GroupReduce(T x, Op op) {
#ifdef __CUDACC__
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) {
    x = op(x, __shfl_xor_sync(kAllLanes, x, mask));
  }
  return x;
#else
  return EmulatedGroupReduce<kLanes>(x, op);
#endif
}

// ---- Tensor cores: a warp's 16 x 8 x 16 product of bf16 in fp32 (PTX's mma.m16n8k16). Lane 4 g +
// t holds of the left matrix rows g and g + 8, columns 2 t, 2 t + 1 (and 8 more); of the right one
// column g, rows 2 t, 2 t + 1 (and 8 more); of the sum rows g, g, g + 8, g + 8, columns 2 t, 2 t
// + 1. From compute capability 8.0. ----

__device__ inline void MmaBf16(float (&sum)[4], const unsigned (&left)[4],
                               const unsigned (&right)[2]) {
#if !defined(__CUDACC__)
  EmulatedMma(sum, left, right);
#elif __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
#else
  (void)sum, (void)left, (void)right;  // bf16 is not offered on such devices
#endif
}

// A right matrix from shared memory that has its rows: lane i, below 16, gives the address of row
// i's eight elements, on 16 bytes (PTX's ldmatrix.trans).
__device__ inline void LoadTurned(unsigned (&right)[2], const Bf16* row) {
#ifdef __CUDACC__
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(right[0]), "=r"(right[1])
               : "r"(address)
               : "memory");
#else
  EmulatedLoadTurned(right, row);
#endif
}

// Over the block, whose size is a multiple of 32. All threads call it.
template <typename T, typename Op>
__device__ inline T BlockReduce(T x, T identity, Op op) {
  __shared__ T of_warp[kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  x = GroupReduce<kWarp>(x, op);
  if (lane == 0) of_warp[warp] = x;
  __syncthreads();
  x = GroupReduce<kWarp>(lane * kWarp < static_cast<int>(blockDim.x) ? of_warp[lane] : identity,
                         op);
  __syncthreads();
  return x;
}

// ---- Host side ----

template <typename... Parameters, typename... Arguments>
void Launch(const Queue& queue, dim3 grid, dim3 block, int64_t shared_bytes, const char* name,
            void (*kernel)(Parameters...), const Arguments&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
#ifdef __CUDACC__
  if (shared_bytes > 48 * 1024) {
    queue.errors->Keep(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            static_cast<int>(shared_bytes)),
                       name);
  }
  kernel<<<grid, block, shared_bytes, queue.stream>>>(arguments...);
  queue.errors->Keep(cudaGetLastError(), name);
#else
  (void)queue, (void)name;
  Emulate(grid, block, shared_bytes, [&] { kernel(arguments...); });
#endif
}

// Returns the shared memory that the blocks of one multiprocessor may have together.
inline int64_t SharedBytesOfDevice() {
#ifdef __CUDACC__
  int device = 0, bytes = 0;
  const bool known = cudaGetDevice(&device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor,
                                            device) == cudaSuccess;
  return known ? bytes : 0;
#else
  return 228 * 1024;
#endif
}

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Returns how many elements one thread may move at once: `wide` if every tensor's rows begin on 16
// bytes and have a multiple of it, otherwise 1. Absent tensors do not matter.
inline int PackSize(std::initializer_list<Tensor> tensors, int64_t cols, int wide) {
  if (cols % wide != 0) return 1;
  for (const Tensor& x : tensors) {
    const bool rows_aligned = x.rows <= 1 || x.stride * GetElementSize(x.dtype) % 16 == 0;
    if (reinterpret_cast<uintptr_t>(x.data) % 16 != 0 || !rows_aligned) return 1;
  }
  return wide;
}

template <typename T>
inline constexpr int kWide = 16 / sizeof(T);

// Calls function.operator()<N>() with the PackSize: kW or 1.
template <int kW, typename Function>
void ForPack(std::initializer_list<Tensor> tensors, int64_t cols, const Function& function) {
  if (PackSize(tensors, cols, kW) > 1) {
    function.template operator()<kW>();
  } else {
    function.template operator()<1>();
  }
}

// Calls function.operator()<T>() with the type of the elements.
template <typename Function>
void ForType(DType dtype, const Function& function) {
  ATOLL_CHECK(dtype == DType::kFloat32 || dtype == DType::kBfloat16,
              "kernels compute in f32 or bf16");
  if (dtype == DType::kFloat32) {
    function.template operator()<float>();
  } else {
    function.template operator()<Bf16>();
  }
}

}  // namespace atl::ATOLL_DEVICE

#endif  // ATOLL_KERNELS_CUDA_DEVICE_DEVICE_H_
