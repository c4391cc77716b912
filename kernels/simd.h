// Sixteen floats at a time, and functions compiled for several instruction sets at once.
//
// A kernel is a template of the vector V that its instruction set has: one register of AVX-512, two
// of AVX2, four of SSE; its results are the same up to fused multiply-adds. Everything here is
// force-inlined, so that it takes on the instruction set of the kernel that uses it; ATOLL_KERNEL
// makes such kernels. Not one vector type for all of them: GCC 12 keeps vectors that are wider than
// a register in memory.

#ifndef ATOLL_KERNELS_SIMD_H_
#define ATOLL_KERNELS_SIMD_H_

#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/tensor.h"

#define ATOLL_INLINE __attribute__((always_inline)) inline

// ATOLL_KERNEL(Name, (float* x, int64_t n), (x, n)) { body } defines void Name(float* x, int64_t
// n), which runs the body, a template of the vector V, compiled for the best instruction set of
// this machine. (Not target_clones: its resolvers run before the sanitizers are ready.)
#if defined(__x86_64__) && defined(__GNUC__)
#define ATOLL_KERNEL(name, parameters, arguments)                             \
  template <class V>                                                          \
  ATOLL_INLINE void name##Body parameters;                                    \
  __attribute__((target("arch=x86-64-v4"))) static void name##V4 parameters { \
    name##Body<::atl::simd::Avx512> arguments;                                \
  }                                                                           \
  __attribute__((target("arch=x86-64-v3"))) static void name##V3 parameters { \
    name##Body<::atl::simd::Avx2> arguments;                                  \
  }                                                                           \
  static void name##V1 parameters { name##Body<::atl::simd::Sse> arguments; } \
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
  template <class V>                                                          \
  ATOLL_INLINE void name##Body parameters
#else
#define ATOLL_KERNEL(name, parameters, arguments)                  \
  template <class V>                                               \
  ATOLL_INLINE void name##Body parameters;                         \
  void name parameters { name##Body<::atl::simd::Sse> arguments; } \
  template <class V>                                               \
  ATOLL_INLINE void name##Body parameters
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

using F4 = float __attribute__((vector_size(16)));
using F8 = float __attribute__((vector_size(32)));
using F16 = float __attribute__((vector_size(64)));
using D4 = double __attribute__((vector_size(32)));
using D8 = double __attribute__((vector_size(64)));

inline constexpr int64_t kLanes = 16;

// A vector's first half and its second.
template <class Half>
struct Two {
  Half low, high;
};

using Avx512 = F16;
using Avx2 = Two<F8>;
using Sse = Two<Two<F4>>;

// Types that belong to a vector of floats: whole numbers and bits in as many lanes, its lanes in
// bfloat16.
template <class V>
struct Lanes;
template <>
struct Lanes<F4> {
  using Int = int32_t __attribute__((vector_size(16)));
  using Bits = uint32_t __attribute__((vector_size(16)));
  using Bfloats = uint16_t __attribute__((vector_size(8)));
  static constexpr Int kIota = {0, 1, 2, 3};
  static constexpr int64_t kCount = 4;
};
template <>
struct Lanes<F8> {
  using Int = int32_t __attribute__((vector_size(32)));
  using Bits = uint32_t __attribute__((vector_size(32)));
  using Bfloats = uint16_t __attribute__((vector_size(16)));
  static constexpr Int kIota = {0, 1, 2, 3, 4, 5, 6, 7};
  static constexpr int64_t kCount = 8;
};
template <>
struct Lanes<F16> {
  using Int = int32_t __attribute__((vector_size(64)));
  using Bits = uint32_t __attribute__((vector_size(64)));
  using Bfloats = uint16_t __attribute__((vector_size(32)));
  static constexpr Int kIota = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  static constexpr int64_t kCount = 16;
};
template <class Half>
struct Lanes<Two<Half>> {
  using Int = Two<typename Lanes<Half>::Int>;
  using Bits = Two<typename Lanes<Half>::Bits>;
  static constexpr int64_t kCount = 2 * Lanes<Half>::kCount;
};

template <class V>
inline constexpr bool kIsTwo = false;
template <class Half>
inline constexpr bool kIsTwo<Two<Half>> = true;

template <class S>
concept Scalar = std::is_arithmetic_v<S>;

#define ATOLL_TWO_OPERATOR(op)                                              \
  template <class Half>                                                     \
  ATOLL_INLINE auto operator op(const Two<Half>& a, const Two<Half>& b) {   \
    return Two<decltype(a.low op b.low)>{a.low op b.low, a.high op b.high}; \
  }                                                                         \
  template <class Half, Scalar S>                                           \
  ATOLL_INLINE auto operator op(const Two<Half>& a, S b) {                  \
    return Two<decltype(a.low op b)>{a.low op b, a.high op b};              \
  }                                                                         \
  template <class Half, Scalar S>                                           \
  ATOLL_INLINE auto operator op(S a, const Two<Half>& b) {                  \
    return Two<decltype(a op b.low)>{a op b.low, a op b.high};              \
  }
ATOLL_TWO_OPERATOR(+)
ATOLL_TWO_OPERATOR(-)
ATOLL_TWO_OPERATOR(*)
ATOLL_TWO_OPERATOR(/)
ATOLL_TWO_OPERATOR(<)
ATOLL_TWO_OPERATOR(>)
ATOLL_TWO_OPERATOR(>=)
ATOLL_TWO_OPERATOR(==)
ATOLL_TWO_OPERATOR(&)
ATOLL_TWO_OPERATOR(|)
ATOLL_TWO_OPERATOR(<<)
ATOLL_TWO_OPERATOR(>>)
#undef ATOLL_TWO_OPERATOR

template <class Half>
ATOLL_INLINE Two<Half> operator-(const Two<Half>& a) {
  return {-a.low, -a.high};
}
template <class Half, class B>
ATOLL_INLINE Two<Half>& operator+=(Two<Half>& a, const B& b) {
  return a = a + b;
}
template <class Half, class B>
ATOLL_INLINE Two<Half>& operator-=(Two<Half>& a, const B& b) {
  return a = a - b;
}
template <class Half, class B>
ATOLL_INLINE Two<Half>& operator*=(Two<Half>& a, const B& b) {
  return a = a * b;
}
template <class Half, class B>
ATOLL_INLINE Two<Half>& operator/=(Two<Half>& a, const B& b) {
  return a = a / b;
}

// Returns in each lane a where a comparison held, b elsewhere.
template <class Mask, class V>
ATOLL_INLINE V Select(const Mask& mask, const V& a, const V& b) {
  if constexpr (kIsTwo<V>) {
    return {Select(mask.low, a.low, b.low), Select(mask.high, a.high, b.high)};
  } else {
    return mask ? a : b;
  }
}

// The same bits in lanes of another type.
template <class To, class From>
ATOLL_INLINE To BitCast(const From& from) {
  if constexpr (kIsTwo<To>) {
    using Half = decltype(To::low);
    return {BitCast<Half>(from.low), BitCast<Half>(from.high)};
  } else {
    return (To)from;
  }
}
template <class V>
ATOLL_INLINE auto ToBits(const V& v) {
  return BitCast<typename Lanes<V>::Bits>(v);
}

// Not V{x, x, ...}: GCC 12 would insert the lanes of a returned vector one by one.
template <class V>
ATOLL_INLINE V Splat(float x) {
  return x - V{};
}

template <class V>
ATOLL_INLINE V Load(const float* p) {
  if constexpr (kIsTwo<V>) {
    using Half = decltype(V::low);
    return {Load<Half>(p), Load<Half>(p + Lanes<Half>::kCount)};
  } else {
    V v;
    std::memcpy(&v, p, sizeof(v));
    return v;
  }
}

template <class V>
ATOLL_INLINE void Store(float* p, const V& v) {
  if constexpr (kIsTwo<V>) {
    Store(p, v.low);
    Store(p + Lanes<V>::kCount / 2, v.high);
  } else {
    std::memcpy(p, &v, sizeof(v));
  }
}

// The first n < 16 elements; zeroes behind them.
template <class V>
ATOLL_INLINE V LoadFirst(const float* p, int64_t n) {
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return Load<V>(lanes);
}

template <class V>
ATOLL_INLINE void StoreFirst(float* p, const V& v, int64_t n) {
  float lanes[kLanes];
  Store(lanes, v);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

// min(n, 16) elements, n >= 1: for loops whose last step may be short.
template <class V>
ATOLL_INLINE V LoadUpTo(const float* p, int64_t n) {
  return n >= kLanes ? Load<V>(p) : LoadFirst<V>(p, n);
}

template <class V>
ATOLL_INLINE void StoreUpTo(float* p, const V& v, int64_t n) {
  n >= kLanes ? Store(p, v) : StoreFirst(p, v, n);
}

// Lane i where i < n, `otherwise` behind.
template <class V>
ATOLL_INLINE V KeepFirst(const V& v, int64_t n, float otherwise) {
  if constexpr (kIsTwo<V>) {
    constexpr int64_t kHalf = Lanes<V>::kCount / 2;
    return {KeepFirst(v.low, n, otherwise), KeepFirst(v.high, n - kHalf, otherwise)};
  } else {
    return Select(Lanes<V>::kIota < static_cast<int32_t>(n), v, Splat<V>(otherwise));
  }
}

// Lane i where i >= n, `otherwise` before.
template <class V>
ATOLL_INLINE V KeepFrom(const V& v, int64_t n, float otherwise) {
  if constexpr (kIsTwo<V>) {
    constexpr int64_t kHalf = Lanes<V>::kCount / 2;
    return {KeepFrom(v.low, n, otherwise), KeepFrom(v.high, n - kHalf, otherwise)};
  } else {
    return Select(Lanes<V>::kIota < static_cast<int32_t>(n), Splat<V>(otherwise), v);
  }
}

template <class V>
ATOLL_INLINE V Max(const V& a, const V& b) {
  return Select(a > b, a, b);
}

// Returns the largest of whole numbers of type T.
template <class T, class Ints>
ATOLL_INLINE T ReduceMax(Ints v) {
  if constexpr (kIsTwo<Ints>) {
    return ReduceMax<T>(Max(v.low, v.high));
  } else {
    T largest = v[0];
    for (size_t lane = 1; lane < sizeof(v) / sizeof(T); ++lane) {
      largest = v[lane] > largest ? v[lane] : largest;
    }
    return largest;
  }
}

// A vector's halves.
template <class Half>
ATOLL_INLINE Two<Half> Halves(const Two<Half>& v) {
  return v;
}
template <class Half, class V>
ATOLL_INLINE Two<Half> SplitHalves(const V& v) {
  Two<Half> halves;
  std::memcpy(&halves.low, &v, sizeof(Half));
  std::memcpy(&halves.high, reinterpret_cast<const char*>(&v) + sizeof(Half), sizeof(Half));
  return halves;
}
ATOLL_INLINE Two<F8> Halves(const F16& v) { return SplitHalves<F8>(v); }
ATOLL_INLINE Two<F4> Halves(const F8& v) { return SplitHalves<F4>(v); }

// Sum and largest of the lanes, joined by halves.
template <class V>
ATOLL_INLINE float Sum(const V& v) {
  if constexpr (std::is_same_v<V, F4>) {
    return (v[0] + v[2]) + (v[1] + v[3]);
  } else {
    const auto halves = Halves(v);
    return Sum(halves.low + halves.high);
  }
}

template <class V>
ATOLL_INLINE float Largest(const V& v) {
  if constexpr (std::is_same_v<V, F4>) {
    const float even = v[0] > v[2] ? v[0] : v[2], odd = v[1] > v[3] ? v[1] : v[3];
    return even > odd ? even : odd;
  } else {
    const auto halves = Halves(v);
    return Largest(Max(halves.low, halves.high));
  }
}

// The lanes in double.
template <class V>
ATOLL_INLINE auto Widen(const V& v) {
  if constexpr (std::is_same_v<V, F4>) {
    return __builtin_convertvector(v, D4);
  } else if constexpr (std::is_same_v<V, F16>) {
    const Two<F8> halves = Halves(v);
    return Two<D8>{__builtin_convertvector(halves.low, D8),
                   __builtin_convertvector(halves.high, D8)};
  } else {
    const auto halves = Halves(v);
    return Two<decltype(Widen(halves.low))>{Widen(halves.low), Widen(halves.high)};
  }
}
template <class V>
using Doubles = decltype(Widen(V{}));

// Returns the sum of lanes of type T.
template <class T, class Lane>
ATOLL_INLINE T SumOfLanes(const Lane& v) {
  if constexpr (kIsTwo<Lane>) {
    return SumOfLanes<T>(v.low + v.high);
  } else {
    T sum = 0;
    for (size_t lane = 0; lane < sizeof(v) / sizeof(T); ++lane) sum += v[lane];
    return sum;
  }
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
template <class V>
ATOLL_INLINE V Exp(V x) {
  x = Select(x < -87.0f, Splat<V>(-87.0f), x);  // comparisons with NaN are false, so a NaN passes
  x = Select(x > 88.0f, Splat<V>(88.0f), x);
  // x = n ln 2 + r with integer n: adding 1.5 * 2^23 leaves n, rounded, in the low bits.
  const V magic = Splat<V>(12582912.0f);
  const V shifted = x * 1.44269504f + magic;
  const V n = shifted - magic;
  const V r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  V p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  return BitCast<V>(ToBits(p) + (ToBits(shifted) << 23));
}

template <class V>
ATOLL_INLINE V Sigmoid(const V& x) {
  return 1.0f / (1.0f + Exp(-x));
}

template <class V>
ATOLL_INLINE V Tanh(const V& x) {
  return 2.0f * Sigmoid(2.0f * x) - 1.0f;
}

// The error function to 2e-7 (Abramowitz and Stegun, 7.1.26).
template <class V>
ATOLL_INLINE V Erf(const V& x) {
  const V z = Select(x < 0.0f, -x, x);
  const V t = 1.0f / (1.0f + 0.3275911f * z);
  V p = t * 1.061405429f - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const V erf = 1.0f - p * t * Exp(-z * z);
  return Select(x < 0.0f, -erf, erf);
}

template <class V>
ATOLL_INLINE V Sqrt(const V& x) {
  if constexpr (kIsTwo<V>) {
    return {Sqrt(x.low), Sqrt(x.high)};
  } else {
    V y;
    for (int64_t i = 0; i < Lanes<V>::kCount; ++i) y[i] = __builtin_sqrtf(x[i]);
    return y;
  }
}

template <class V>
ATOLL_INLINE V FromBfloat16(const Bfloat16* p) {
  if constexpr (kIsTwo<V>) {
    using Half = decltype(V::low);
    return {FromBfloat16<Half>(p), FromBfloat16<Half>(p + Lanes<Half>::kCount)};
  } else {
    typename Lanes<V>::Bfloats halves;
    std::memcpy(&halves, p, sizeof(halves));
    return BitCast<V>(__builtin_convertvector(halves, typename Lanes<V>::Bits) << 16);
  }
}

// Rounds to nearest, ties to even; a NaN stays one.
template <class V>
ATOLL_INLINE void ToBfloat16(Bfloat16* p, const V& v) {
  if constexpr (kIsTwo<V>) {
    ToBfloat16(p, v.low);
    ToBfloat16(p + Lanes<V>::kCount / 2, v.high);
  } else {
    using Bits = typename Lanes<V>::Bits;
    const Bits bits = ToBits(v);
    const Bits rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const Bits result = Select(v == v, rounded, bits | 0x400000u);
    const auto halves = __builtin_convertvector(result >> 16, typename Lanes<V>::Bfloats);
    std::memcpy(p, &halves, sizeof(halves));
  }
}

}  // namespace atl::simd

#endif  // ATOLL_KERNELS_SIMD_H_
