// Vectors of 16 quantised numbers; see deltas.h for how they lie. Private to kernels.

#ifndef ATOLL_KERNELS_QUANT_SIMD_H_
#define ATOLL_KERNELS_QUANT_SIMD_H_

#include <cstdint>
#include <cstring>

#include "common/ids.h"
#include "kernels/simd.h"

namespace atl::simd {

using B16 = int8_t __attribute__((vector_size(16)));
using B8 = uint8_t __attribute__((vector_size(8)));
using S8 = uint16_t __attribute__((vector_size(16)));

inline constexpr int64_t kInt8BlockBytes = 4 + kQuantBlock;
inline constexpr int64_t kInt4BlockBytes = 4 + kQuantBlock / 2;

ATOLL_INLINE const char* BlockOf(const void* data, int64_t block_bytes, int64_t i) {
  return static_cast<const char*>(data) + i / kQuantBlock * block_bytes;
}

ATOLL_INLINE float ScaleOf(const char* block) {
  float scale;
  std::memcpy(&scale, block, sizeof(scale));
  return scale;
}

// Numbers i to i + 15. REQUIRES: i a multiple of 16, all of them there.
ATOLL_INLINE V16 LoadInt8(const void* data, int64_t i) {
  const char* block = BlockOf(data, kInt8BlockBytes, i);
  B16 codes;
  std::memcpy(&codes, block + 4 + i % kQuantBlock, sizeof(codes));
  return __builtin_convertvector(__builtin_convertvector(codes, I16), V16) * ScaleOf(block);
}

ATOLL_INLINE V16 LoadInt4(const void* data, int64_t i) {
  const char* block = BlockOf(data, kInt4BlockBytes, i);
  B8 pairs;
  std::memcpy(&pairs, block + 4 + i % kQuantBlock / 2, sizeof(pairs));
  const S8 wide = __builtin_convertvector(pairs, S8);
  const S8 apart = (wide & 15) | (wide >> 4) << 8;
  B16 codes;
  std::memcpy(&codes, &apart, sizeof(codes));
  return __builtin_convertvector(__builtin_convertvector(codes - 8, I16), V16) * ScaleOf(block);
}

// Writes 16 codes, whole numbers that fit.
ATOLL_INLINE void StoreInt8(char* codes, V16 values) {
  const B16 bytes = __builtin_convertvector(__builtin_convertvector(values, I16), B16);
  std::memcpy(codes, &bytes, sizeof(bytes));
}

ATOLL_INLINE void StoreInt4(char* codes, V16 values) {
  const B16 bytes = __builtin_convertvector(__builtin_convertvector(values, I16) + 8, B16);
  S8 apart;
  std::memcpy(&apart, &bytes, sizeof(apart));
  const B8 pairs = __builtin_convertvector((apart & 15) | (apart >> 4 & 0xf0), B8);
  std::memcpy(codes, &pairs, sizeof(pairs));
}

}  // namespace atl::simd

#endif  // ATOLL_KERNELS_QUANT_SIMD_H_
