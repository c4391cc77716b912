// Blocks of kQuantBlock numbers that share a scale: a scale (f32), then a code of kBits bits a
// number, the first of two in the low half of a byte. Their walk, their scale and its check are the
// same for every code; a codec says what its codes are. Private to codecs.
//
// A codec's `Code` has:
//   kBits: 4 or 8.  kLargest: the largest |code * scale| / scale.
//   template <class V>
//   ATOLL_INLINE static V Encode(const V& value, float scale, float inverse, char* codes):
//     16 codes to `codes`; returns what they decode to. inverse = kLargest / largest |value|, or 0.
//   ATOLL_INLINE static V64 Decode(B64 codes, float scale), of 8 bits;
//   ATOLL_INLINE static V16 Numbers(float scale), of 4 bits: what codes 0 to 15 decode to

#ifndef ATOLL_KERNELS_CODECS_BLOCKS_H_
#define ATOLL_KERNELS_CODECS_BLOCKS_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/codecs/codec.h"
#include "kernels/simd.h"

namespace atl::blocks {

using simd::F8;
using simd::kLanes;
using I16 = simd::Lanes<simd::F16>::Int;
using V16 = simd::F16;
using B16 = int8_t __attribute__((vector_size(16)));
using B64 = int8_t __attribute__((vector_size(64)));
using V64 = float __attribute__((vector_size(256)));
using B8 = uint8_t __attribute__((vector_size(8)));
using Pairs = uint16_t __attribute__((vector_size(16)));
using S16 = int16_t __attribute__((vector_size(32)));

inline constexpr I16 kIota = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Widens by way of 16 bits: in one step GCC 12 converts number by number. 64 at once become whole
// registers; 16 would be put together from halves.
ATOLL_INLINE V64 Widen(B64 bytes) {
  using S64 = int16_t __attribute__((vector_size(128)));
  using I64 = int32_t __attribute__((vector_size(256)));
  return __builtin_convertvector(__builtin_convertvector(__builtin_convertvector(bytes, S64), I64),
                                 V64);
}
template <class Int>
ATOLL_INLINE B16 Narrow(const Int& numbers) {
  I16 together;
  std::memcpy(&together, &numbers, sizeof(together));
  return __builtin_convertvector(__builtin_convertvector(together, S16), B16);
}
inline constexpr float kFloatMax = std::numeric_limits<float>::max();

template <class Code>
inline constexpr int64_t kBlockBytes = 4 + kQuantBlock* Code::kBits / 8;

ATOLL_INLINE float ReadScale(const void* block) {
  float scale;
  std::memcpy(&scale, block, sizeof(scale));
  return scale;
}

// 16 codes of 4 bits each: the low halves of 16 bytes.
ATOLL_INLINE void StoreHalves(char* codes, B16 bytes) {
  Pairs apart;
  std::memcpy(&apart, &bytes, sizeof(apart));
  const B8 pairs = __builtin_convertvector((apart & 15) | (apart >> 4 & 0xf0), B8);
  std::memcpy(codes, &pairs, sizeof(pairs));
}

// The scale from the largest size in a block. Bits of sizes order as the sizes do and are beyond
// kInfinity where it is a NaN.
struct Scale {
  bool finite;
  float scale;
  float inverse;
};
ATOLL_INLINE Scale ScaleFromLargest(float kLargest, uint32_t largest_bits) {
  constexpr uint32_t kInfinity = 0x7f800000;
  const bool finite = largest_bits < kInfinity;
  float largest;
  std::memcpy(&largest, &largest_bits, sizeof(largest));
  // Numbers so small that the inverse overflows are left to the residual.
  const float inverse = finite && largest > 0 ? kLargest / largest : 0;
  return {finite, finite ? largest / kLargest : std::numeric_limits<float>::quiet_NaN(),
          inverse <= kFloatMax ? inverse : 0};
}

template <class V, class Code>
ATOLL_INLINE void EncodeBlock(const float* delta, float* residual, char* out) {
  float values[kQuantBlock];
  typename simd::Lanes<V>::Bits sizes{};
  for (int64_t i = 0; i < kQuantBlock; i += kLanes) {
    V v = simd::Load<V>(delta + i);
    if (residual != nullptr) v += simd::Load<V>(residual + i);
    simd::Store(values + i, v);
    sizes = simd::Max(simd::ToBits(v) & 0x7fffffffu, sizes);
  }
  const Scale s = ScaleFromLargest(Code::kLargest, simd::ReduceMax<uint32_t>(sizes));
  std::memcpy(out, &s.scale, sizeof(s.scale));
  for (int64_t i = 0; i < kQuantBlock; i += kLanes) {
    const V value = s.finite ? simd::Load<V>(values + i) : V{};
    const V sent = Code::Encode(value, s.scale, s.inverse, out + 4 + i * Code::kBits / 8);
    if (residual != nullptr) simd::Store(residual + i, s.finite ? value - sent : V{});
  }
}

// Whole blocks.
template <class V, class Code>
ATOLL_INLINE void EncodeBlocks(const float* delta, float* residual, char* out, int64_t blocks) {
  if (residual == nullptr) {
    for (int64_t b = 0; b < blocks; ++b) {
      EncodeBlock<V, Code>(delta + b * kQuantBlock, nullptr, out + b * kBlockBytes<Code>);
    }
    return;
  }
  for (int64_t b = 0; b < blocks; ++b) {
    EncodeBlock<V, Code>(delta + b * kQuantBlock, residual + b * kQuantBlock,
                         out + b * kBlockBytes<Code>);
  }
}

template <class Code>
ATOLL_INLINE void DecodeBlocks(const char* bytes, float* out, int64_t blocks) {
  for (int64_t b = 0; b < blocks; ++b) {
    const char* const block = bytes + b * kBlockBytes<Code>;
    const float scale = ReadScale(block);
    float* const to = out + b * kQuantBlock;
    if constexpr (Code::kBits == 8) {
      for (int64_t i = 0; i < kQuantBlock; i += 64) {
        B64 codes;
        std::memcpy(&codes, block + 4 + i, sizeof(codes));
        const V64 numbers = Code::Decode(codes, scale);
        std::memcpy(to + i, &numbers, sizeof(numbers));
      }
    } else {
      const V16 numbers = Code::Numbers(scale);
      const F8 low = __builtin_shufflevector(numbers, numbers, 0, 1, 2, 3, 4, 5, 6, 7);
      const F8 high = __builtin_shufflevector(numbers, numbers, 8, 9, 10, 11, 12, 13, 14, 15);
      for (int64_t i = 0; i < kQuantBlock; i += 8) {
        uint32_t codes;
        std::memcpy(&codes, block + 4 + i / 2, sizeof(codes));
        const F8 found = simd::Lookup(low, high, codes);
        std::memcpy(to + i, &found, sizeof(found));
      }
    }
  }
}

// `encode_blocks` and `decode_blocks` are the kernels of the two above; the last block, of fewer
// numbers, is encoded as a whole one with zeroes behind them.
template <class Code>
void EncodeAll(void (*encode_blocks)(const float*, float*, char*, int64_t), const float* delta,
               float* residual, std::byte* bytes, int64_t elements) {
  const int64_t blocks = elements / kQuantBlock, done = blocks * kQuantBlock;
  char* const out = reinterpret_cast<char*>(bytes);
  encode_blocks(delta, residual, out, blocks);
  if (done == elements) return;
  const auto left = static_cast<size_t>(elements - done);
  float padded[2][kQuantBlock] = {};
  std::memcpy(padded[0], delta + done, left * sizeof(float));
  if (residual != nullptr) std::memcpy(padded[1], residual + done, left * sizeof(float));
  char block[kBlockBytes<Code>];
  encode_blocks(padded[0], residual == nullptr ? nullptr : padded[1], block, 1);
  std::memcpy(out + blocks * kBlockBytes<Code>, block, 4 + (left * Code::kBits + 7) / 8);
  if (residual != nullptr) std::memcpy(residual + done, padded[1], left * sizeof(float));
}

template <class Code>
void DecodeAll(void (*decode_blocks)(const char*, float*, int64_t), const std::byte* bytes,
               float* out, int64_t elements) {
  const int64_t blocks = elements / kQuantBlock, done = blocks * kQuantBlock;
  const char* const in = reinterpret_cast<const char*>(bytes);
  decode_blocks(in, out, blocks);
  if (done == elements) return;
  const auto left = static_cast<size_t>(elements - done);
  char block[kBlockBytes<Code>] = {};
  float values[kQuantBlock];
  std::memcpy(block, in + blocks * kBlockBytes<Code>, 4 + (left * Code::kBits + 7) / 8);
  decode_blocks(block, values, 1);
  std::memcpy(out + done, values, left * sizeof(float));
}

template <class Code>
absl::Status Check(const std::byte* bytes, int64_t elements) {
  const float scale_max = kFloatMax / Code::kLargest;
  for (int64_t block = 0; block * kQuantBlock < elements; ++block) {
    const float scale = ReadScale(bytes + block * kBlockBytes<Code>);
    if (std::isnan(scale) || (scale >= 0 && scale <= scale_max)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("block ", block, " has the scale ", scale,
                     "; scales are at least 0, and finite times every code"));
  }
  return absl::OkStatus();
}

}  // namespace atl::blocks

// Defines the codec `name` of the class `Code`.
#define ATOLL_BLOCK_CODEC(name, value, Code)                                                      \
  namespace {                                                                                     \
  ATOLL_KERNEL(Code##EncodeBlocks,                                                                \
               (const float* delta, float* residual, char* out, int64_t count),                   \
               (delta, residual, out, count)) {                                                   \
    blocks::EncodeBlocks<V, Code>(delta, residual, out, count);                                   \
  }                                                                                               \
  ATOLL_KERNEL(Code##DecodeBlocks, (const char* bytes, float* out, int64_t count),                \
               (bytes, out, count)) {                                                             \
    blocks::DecodeBlocks<Code>(bytes, out, count);                                                \
  }                                                                                               \
  }                                                                                               \
  const Codec name = {value,                                                                      \
                      [](const float* delta, float* residual, std::byte* out, int64_t elements) { \
                        blocks::EncodeAll<Code>(Code##EncodeBlocks, delta, residual, out,         \
                                                elements);                                        \
                      },                                                                          \
                      [](const std::byte* bytes, float* out, int64_t elements) {                  \
                        blocks::DecodeAll<Code>(Code##DecodeBlocks, bytes, out, elements);        \
                      },                                                                          \
                      blocks::Check<Code>}

#endif  // ATOLL_KERNELS_CODECS_BLOCKS_H_
