// bfloat16 on the host: a float's upper half.

#ifndef ATOLL_KERNELS_BFLOAT16_H_
#define ATOLL_KERNELS_BFLOAT16_H_

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/tensor.h"

namespace atl {

inline float WidenBfloat16(Bfloat16 x) { return std::bit_cast<float>(uint32_t{x} << 16); }

// Rounds to nearest, ties to even; a NaN stays a NaN (it must not be rounded up into infinity).
inline Bfloat16 RoundToBfloat16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = std::isnan(x) ? bits | 0x400000 : bits + 0x7fff + ((bits >> 16) & 1);
  return static_cast<Bfloat16>(rounded >> 16);
}

}  // namespace atl

#endif  // ATOLL_KERNELS_BFLOAT16_H_
