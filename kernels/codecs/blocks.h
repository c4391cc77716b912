// Blocks of kQuantBlock numbers that share a scale: a scale (f32), then a code of kBits bits a
// number, the first of two in the low half of a byte. Their walk, their scale and its check are the
// same for every code; a codec says what its codes are. Private to codecs.
//
// A codec's `Code` has:
//   kBits: 4 or 8.  kLargest: the largest |code * scale| / scale.
//   ATOLL_INLINE static void Encode(V16 value, float scale, float inverse, char* codes, V16* sent):
//     16 codes to `codes`, and what they decode to. inverse = kLargest / largest |value|, or 0.
//   ATOLL_INLINE static V16 Decode(B16 codes, float scale)
//   static int EncodeOne(float value, float inverse);  static float DecodeOne(int code, float
//   scale)
// and a code that is zero, kZero, of numbers that are not there.

#ifndef ATOLL_KERNELS_CODECS_BLOCKS_H_
#define ATOLL_KERNELS_CODECS_BLOCKS_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/codecs/codec.h"
#include "kernels/simd.h"

namespace atl::blocks {

using simd::kLanes;
using simd::U16;
using simd::V16;
using B16 = int8_t __attribute__((vector_size(16)));
using U8x16 = uint8_t __attribute__((vector_size(16)));
using B8 = uint8_t __attribute__((vector_size(8)));
using S8 = uint16_t __attribute__((vector_size(16)));
using S16 = int16_t __attribute__((vector_size(32)));

// By way of 16 bits: in one step GCC 12 converts number by number.
ATOLL_INLINE simd::I16 Widen(B16 bytes) {
  return __builtin_convertvector(__builtin_convertvector(bytes, S16), simd::I16);
}
ATOLL_INLINE B16 Narrow(simd::I16 numbers) {
  return __builtin_convertvector(__builtin_convertvector(numbers, S16), B16);
}

inline constexpr float kFloatMax = std::numeric_limits<float>::max();

template <class Code>
inline constexpr int64_t kBlockBytes = 4 + kQuantBlock* Code::kBits / 8;

ATOLL_INLINE float ScaleOf(const void* block) {
  float scale;
  std::memcpy(&scale, block, sizeof(scale));
  return scale;
}

// 16 codes of 4 bits each: the low halves of 16 bytes, and back.
ATOLL_INLINE void StoreHalves(char* codes, B16 bytes) {
  S8 apart;
  std::memcpy(&apart, &bytes, sizeof(apart));
  const B8 pairs = __builtin_convertvector((apart & 15) | (apart >> 4 & 0xf0), B8);
  std::memcpy(codes, &pairs, sizeof(pairs));
}
// 32 codes of 4 bits each.
ATOLL_INLINE void LoadHalves(const char* codes, B16* first, B16* second) {
  B16 pairs;
  std::memcpy(&pairs, codes, sizeof(pairs));
  const B16 low = pairs & 15, high = (B16)((U8x16)pairs >> 4);
  *first =
      __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  *second = __builtin_shufflevector(low, high, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30,
                                    15, 31);
}

// Of the largest size in a block, whose bits order as the sizes do and are beyond kInfinity where
// it is a NaN.
struct Scale {
  bool finite;
  float scale;
  float inverse;
};
ATOLL_INLINE Scale ScaleOfLargest(float kLargest, uint32_t largest_bits) {
  constexpr uint32_t kInfinity = 0x7f800000;
  const bool finite = largest_bits < kInfinity;
  float largest;
  std::memcpy(&largest, &largest_bits, sizeof(largest));
  // Of numbers so small that it overflows, all is left to the residual.
  const float inverse = finite && largest > 0 ? kLargest / largest : 0;
  return {finite, finite ? largest / kLargest : std::numeric_limits<float>::quiet_NaN(),
          inverse <= kFloatMax ? inverse : 0};
}

template <class Code>
ATOLL_INLINE void EncodeBlock(const float* delta, float* residual, char* out) {
  float values[kQuantBlock];
  U16 sizes{};
  for (int64_t i = 0; i < kQuantBlock; i += kLanes) {
    V16 v = simd::Load(delta + i);
    if (residual != nullptr) v += simd::Load(residual + i);
    simd::Store(values + i, v);
    const U16 size = (U16)v & 0x7fffffffu;
    sizes = size > sizes ? size : sizes;
  }
  uint32_t largest = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) largest = std::max(largest, sizes[lane]);
  const Scale s = ScaleOfLargest(Code::kLargest, largest);
  std::memcpy(out, &s.scale, sizeof(s.scale));
  for (int64_t i = 0; i < kQuantBlock; i += kLanes) {
    const V16 value = s.finite ? simd::Load(values + i) : V16{};
    V16 sent;
    Code::Encode(value, s.scale, s.inverse, out + 4 + i * Code::kBits / 8, &sent);
    if (residual != nullptr) simd::Store(residual + i, s.finite ? value - sent : V16{});
  }
}

// Whole blocks.
template <class Code>
ATOLL_INLINE void EncodeBlocks(const float* delta, float* residual, char* out, int64_t blocks) {
  if (residual == nullptr) {
    for (int64_t b = 0; b < blocks; ++b) {
      EncodeBlock<Code>(delta + b * kQuantBlock, nullptr, out + b * kBlockBytes<Code>);
    }
    return;
  }
  for (int64_t b = 0; b < blocks; ++b) {
    EncodeBlock<Code>(delta + b * kQuantBlock, residual + b * kQuantBlock,
                      out + b * kBlockBytes<Code>);
  }
}

template <class Code>
ATOLL_INLINE void DecodeBlocks(const char* bytes, float* out, int64_t blocks) {
  for (int64_t b = 0; b < blocks; ++b) {
    const char* const block = bytes + b * kBlockBytes<Code>;
    const float scale = ScaleOf(block);
    float* const to = out + b * kQuantBlock;
    for (int64_t i = 0; i < kQuantBlock; i += 2 * kLanes) {
      B16 first, second;
      if constexpr (Code::kBits == 8) {
        std::memcpy(&first, block + 4 + i, sizeof(first));
        std::memcpy(&second, block + 4 + i + kLanes, sizeof(second));
      } else {
        LoadHalves(block + 4 + i / 2, &first, &second);
      }
      simd::Store(to + i, Code::Decode(first, scale));
      simd::Store(to + i + kLanes, Code::Decode(second, scale));
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
    const float scale = ScaleOf(bytes + block * kBlockBytes<Code>);
    if (std::isnan(scale) || (scale >= 0 && scale <= scale_max)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("block ", block, " has the scale ", scale,
                     "; scales are at least 0, and finite times every code"));
  }
  return absl::OkStatus();
}

// ---- The meaning. ----

template <class Code>
void ReferenceEncode(const float* delta, float* residual, std::byte* bytes, int64_t elements) {
  for (int64_t begin = 0; begin < elements; begin += kQuantBlock, bytes += kBlockBytes<Code>) {
    const int64_t count = std::min(kQuantBlock, elements - begin);
    float values[kQuantBlock], largest = 0;
    bool finite = true;
    for (int64_t i = 0; i < count; ++i) {
      values[i] = delta[begin + i] + (residual == nullptr ? 0 : residual[begin + i]);
      finite = finite && std::isfinite(values[i]);
      largest = std::max(largest, std::abs(values[i]));
    }
    const float scale = finite ? largest / Code::kLargest : NAN;
    const float overflows = finite && largest > 0 ? Code::kLargest / largest : 0;
    const float inverse = std::isfinite(overflows) ? overflows : 0;
    std::memcpy(bytes, &scale, sizeof(scale));
    for (int64_t i = 0; i < (Code::kBits == 8 ? count : (count + 1) / 2 * 2); ++i) {
      const bool there = i < count && finite;
      const int code = there ? Code::EncodeOne(values[i], inverse) : Code::kZero;
      std::byte& at = bytes[4 + i * Code::kBits / 8];
      at = Code::kBits == 8 || i % 2 == 0 ? std::byte(code) : at | std::byte(code << 4);
      if (residual != nullptr && i < count) {
        residual[begin + i] = finite ? values[i] - Code::DecodeOne(code, scale) : 0;
      }
    }
  }
}

template <class Code>
void ReferenceDecode(const std::byte* bytes, float* out, int64_t elements) {
  for (int64_t i = 0; i < elements; ++i) {
    const std::byte* const block = bytes + i / kQuantBlock * kBlockBytes<Code>;
    const int64_t at = i % kQuantBlock;
    const int byte = static_cast<int>(block[4 + at * Code::kBits / 8]);
    out[i] = Code::DecodeOne(Code::kBits == 8 ? byte : byte >> at % 2 * 4 & 15, ScaleOf(block));
  }
}

}  // namespace atl::blocks

// Defines the codec `name` of the class `Code`.
#define ATOLL_BLOCK_CODEC(name, value, Code)                                                      \
  namespace {                                                                                     \
  ATOLL_KERNEL(Code##EncodeBlocks,                                                                \
               (const float* delta, float* residual, char* out, int64_t count),                   \
               (delta, residual, out, count)) {                                                   \
    blocks::EncodeBlocks<Code>(delta, residual, out, count);                                      \
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
                      blocks::Check<Code>,                                                        \
                      blocks::ReferenceEncode<Code>,                                              \
                      blocks::ReferenceDecode<Code>}

#endif  // ATOLL_KERNELS_CODECS_BLOCKS_H_
