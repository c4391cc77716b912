// Sums and maxima of members' numbers, element by element: in ascending order of the addends,
// widened and rounded once.

#ifndef ATOLL_KERNELS_COMBINE_H_
#define ATOLL_KERNELS_COMBINE_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/bfloat16.h"

namespace atl {

// Elements that are added up at a time: what they need stays in the first-level cache.
inline constexpr int64_t kRun = 1024;

// The type in which numbers of another are added up, and the ways there and back.
template <typename T>
struct Arithmetic {
  using Sum = T;
  static T Wide(T x) { return x; }
  static T Narrow(T x) { return x; }
};
template <>
struct Arithmetic<Bfloat16> {
  using Sum = float;
  static float Wide(Bfloat16 x) { return WidenBfloat16(x); }
  static Bfloat16 Narrow(float x) { return RoundToBfloat16(x); }
};

template <typename Wide>
Wide Larger(Wide y, Wide x) {
  return x > y || x != x ? x : y;  // a NaN of either stays
}

// total <- the numbers, if they are the first; else the sums or maxima of both.
template <typename Wide, typename T>
void Combine(Wide* total, const T* from, int64_t count, bool sum, bool first) {
  const auto wide = [](T x) { return static_cast<Wide>(Arithmetic<T>::Wide(x)); };
  if (first) {
    for (int64_t i = 0; i < count; ++i) total[i] = wide(from[i]);
  } else if (sum) {
    for (int64_t i = 0; i < count; ++i) total[i] += wide(from[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) total[i] = Larger(total[i], wide(from[i]));
  }
}

// Calls use(i, n, total) for runs of elements [i, i + n) of the addends' sums or maxima; the memory
// of `total` is the next run's, too.
template <typename T, typename Use>
void CombineRuns(const std::vector<const T*>& addends, int64_t count, bool sum, const Use& use) {
  typename Arithmetic<T>::Sum total[kRun];
  for (int64_t begin = 0; begin < count; begin += kRun) {
    const int64_t n = std::min(kRun, count - begin);
    bool first = true;
    for (const T* addend : addends) {
      Combine(total, addend + begin, n, sum, std::exchange(first, false));
    }
    use(begin, n, total);
  }
}

// result <- the sums or maxima of a and b, either of which it may be.
template <typename T>
void CombineRange(const T* a, const T* b, int64_t count, bool sum, T* result) {
  using A = Arithmetic<T>;
  if (sum) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) result[i] = A::Narrow(A::Wide(a[i]) + A::Wide(b[i]));
    return;
  }
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    result[i] = A::Narrow(Larger(A::Wide(a[i]), A::Wide(b[i])));
  }
}

}  // namespace atl

#endif  // ATOLL_KERNELS_COMBINE_H_
