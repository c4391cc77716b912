// Vectors of 16 floats, and functions compiled for several instruction sets at once.
//
// Code written with V16 compiles to AVX-512, AVX2 or plain SSE from one source (the compiler splits
// a V16 into as many registers as it takes), with the same results up to fused multiply-adds.
// Everything here is force-inlined, so that it takes on the instruction set of the kernel that
// uses it; ATOLL_KERNEL makes such kernels.

#ifndef ATOLL_KERNELS_SIMD_H_
#define ATOLL_KERNELS_SIMD_H_

#include <atomic>
#include <cstdint>
#include <cstring>

#include "kernels/tensor.h"

#define ATOLL_INLINE __attribute__((always_inline)) inline

// ATOLL_KERNEL(Name, (float* x, int64_t n), (x, n)) { body } defines void Name(float* x, int64_t
// n), which runs the body compiled for the best instruction set of this machine. (Not
// target_clones: its resolvers run before the sanitizers are ready.)
#if defined(__x86_64__) && defined(__GNUC__)
#define ATOLL_KERNEL(name, parameters, arguments)                             \
  ATOLL_INLINE void name##Body parameters;                                    \
  __attribute__((target("arch=x86-64-v4"))) static void name##V4 parameters { \
    name##Body arguments;                                                     \
  }                                                                           \
  __attribute__((target("arch=x86-64-v3"))) static void name##V3 parameters { \
    name##Body arguments;                                                     \
  }                                                                           \
  static void name##V1 parameters { name##Body arguments; }                   \
  void name parameters {                                                      \
    switch (::atl::simd::InstructionLevel()) {                                \
      case 4:                                                                 \
        return name##V4 arguments;                                            \
      case 3:                                                                 \
        return name##V3 arguments;                                            \
      default:                                                                \
        return name##V1 arguments;                                            \
    }                                                                         \
  }                                                                           \
  ATOLL_INLINE void name##Body parameters
#else
#define ATOLL_KERNEL(name, parameters, arguments) void name parameters
#endif

namespace atl::simd {

// A test may lower it, to run the kernels of machines that have less.
inline std::atomic<int> instruction_level_max{4};

// 4: x86-64-v4 (AVX-512), 3: x86-64-v3 (AVX2), 1: anything else.
inline int InstructionLevel() {
#if defined(__x86_64__) && defined(__GNUC__)
  static const int level =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
          ? 4
      : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 3
                                                                        : 1;
  const int max = instruction_level_max.load(std::memory_order_relaxed);
  return level < max ? level : max;
#else
  return 1;
#endif
}

using V16 = float __attribute__((vector_size(64)));
using I16 = int32_t __attribute__((vector_size(64)));
using U16 = uint32_t __attribute__((vector_size(64)));
using H16 = uint16_t __attribute__((vector_size(32)));
using D8 = double __attribute__((vector_size(64)));
using F8 = float __attribute__((vector_size(32)));
using F4 = float __attribute__((vector_size(16)));

inline constexpr int64_t kLanes = 16;

// Not V16{x, x, ...}: GCC 12 would insert the lanes of a returned vector one by one.
ATOLL_INLINE V16 Splat(float x) {
  V16 v{};
  v[0] = x;
  return __builtin_shufflevector(v, v, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
}

ATOLL_INLINE V16 Load(const float* p) {
  V16 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

ATOLL_INLINE void Store(float* p, V16 v) { std::memcpy(p, &v, sizeof(v)); }

// The first n < 16 elements; zeroes behind them.
ATOLL_INLINE V16 LoadFirst(const float* p, int64_t n) {
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return Load(lanes);
}

ATOLL_INLINE void StoreFirst(float* p, V16 v, int64_t n) {
  float lanes[kLanes];
  Store(lanes, v);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

// min(n, 16) elements, n >= 1: for loops whose last step may be short.
ATOLL_INLINE V16 LoadUpTo(const float* p, int64_t n) {
  return n >= kLanes ? Load(p) : LoadFirst(p, n);
}

ATOLL_INLINE void StoreUpTo(float* p, V16 v, int64_t n) {
  n >= kLanes ? Store(p, v) : StoreFirst(p, v, n);
}

// Lane i where i < n, `otherwise` behind.
ATOLL_INLINE V16 KeepFirst(V16 v, int64_t n, float otherwise) {
  const I16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return lane < static_cast<int32_t>(n) ? v : Splat(otherwise);
}

// Lane i where i >= n, `otherwise` before.
ATOLL_INLINE V16 KeepFrom(V16 v, int64_t n, float otherwise) {
  const I16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return lane < static_cast<int32_t>(n) ? Splat(otherwise) : v;
}

ATOLL_INLINE V16 Max(V16 a, V16 b) { return a > b ? a : b; }
ATOLL_INLINE V16 Min(V16 a, V16 b) { return a < b ? a : b; }

// Sum and largest of the lanes, joined by halves.
ATOLL_INLINE float Sum(V16 v) {
  F8 a8, b8;
  std::memcpy(&a8, &v, sizeof(a8));
  std::memcpy(&b8, reinterpret_cast<char*>(&v) + sizeof(a8), sizeof(b8));
  a8 += b8;
  F4 a4, b4;
  std::memcpy(&a4, &a8, sizeof(a4));
  std::memcpy(&b4, reinterpret_cast<char*>(&a8) + sizeof(a4), sizeof(b4));
  a4 += b4;
  return (a4[0] + a4[2]) + (a4[1] + a4[3]);
}

ATOLL_INLINE float Largest(V16 v) {
  F8 a8, b8;
  std::memcpy(&a8, &v, sizeof(a8));
  std::memcpy(&b8, reinterpret_cast<char*>(&v) + sizeof(a8), sizeof(b8));
  a8 = a8 > b8 ? a8 : b8;
  float largest = a8[0];
  for (int i = 1; i < 8; ++i) largest = largest > a8[i] ? largest : a8[i];
  return largest;
}

// The numbers of a table of 16 at eight indices of 4 bits each, the first in the lowest bits. In as
// many instructions as AVX2 and AVX-512 can.
ATOLL_INLINE F8 Lookup(F8 low, F8 high, uint32_t indices) {
  using I8 = int32_t __attribute__((vector_size(32)));
  using U8 = uint32_t __attribute__((vector_size(32)));
  const U8 shifts = {0, 4, 8, 12, 16, 20, 24, 28};
  const U8 index = (U8{} + indices) >> shifts;
#if defined(__clang__)
  F8 found;
  for (int i = 0; i < 8; ++i) found[i] = index[i] & 8 ? high[index[i] & 7] : low[index[i] & 7];
  return found;
#else
  return __builtin_shuffle(low, high, (I8)index);  // of each index its low bits
#endif
}

// e^x to 2 units in the last place for x in [-87, 88]; clamped outside; NaN stays NaN.
ATOLL_INLINE V16 Exp(V16 x) {
  x = x < -87.0f ? Splat(-87.0f) : x;  // comparisons with NaN are false, so a NaN passes
  x = x > 88.0f ? Splat(88.0f) : x;
  // x = n ln 2 + r with integer n: adding 1.5 * 2^23 leaves n, rounded, in the low bits.
  const V16 magic = Splat(12582912.0f);
  const V16 shifted = x * 1.44269504f + magic;
  const V16 n = shifted - magic;
  const V16 r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  V16 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  return (V16)((U16)p + ((U16)shifted << 23));
}

ATOLL_INLINE V16 Sigmoid(V16 x) { return 1.0f / (1.0f + Exp(-x)); }

ATOLL_INLINE V16 Tanh(V16 x) { return 2.0f * Sigmoid(2.0f * x) - 1.0f; }

// The error function to 2e-7 (Abramowitz and Stegun, 7.1.26).
ATOLL_INLINE V16 Erf(V16 x) {
  const V16 z = x < 0.0f ? -x : x;
  const V16 t = 1.0f / (1.0f + 0.3275911f * z);
  V16 p = t * 1.061405429f - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const V16 erf = 1.0f - p * t * Exp(-z * z);
  return x < 0.0f ? -erf : erf;
}

ATOLL_INLINE V16 Sqrt(V16 x) {
  V16 y;
  for (int i = 0; i < kLanes; ++i) y[i] = __builtin_sqrtf(x[i]);
  return y;
}

ATOLL_INLINE V16 FromBfloat16(const Bfloat16* p) {
  H16 half;
  std::memcpy(&half, p, sizeof(half));
  return (V16)(__builtin_convertvector(half, U16) << 16);
}

// To nearest, ties to even; a NaN stays one (quiet).
ATOLL_INLINE void ToBfloat16(Bfloat16* p, V16 v) {
  const U16 bits = (U16)v;
  const U16 rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const U16 result = v == v ? rounded : (bits | 0x400000);
  const H16 half = __builtin_convertvector(result >> 16, H16);
  std::memcpy(p, &half, sizeof(half));
}

}  // namespace atl::simd

#endif  // ATOLL_KERNELS_SIMD_H_
