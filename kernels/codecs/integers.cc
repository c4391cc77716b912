// int8 and int4: number = code * scale, codes -127 to 127 in a signed byte each, or -7 to 7, plus
// 8, in four bits each; scale = the block's largest size / 127 (or 7), code = number / scale to the
// nearest, ties to even. The operation QuantizeDelta (ops.h) makes the same codes.

#include "kernels/codecs/blocks.h"

namespace atl {
namespace {

using I16 = simd::Lanes<simd::F16>::Int;
using V16 = simd::F16;

// To the nearest whole number, ties to even, of numbers below 2^22: 1.5 * 2^23 added leaves it in
// the low bits.
constexpr float kMagic = 12582912.0f;

struct Eight {
  static constexpr int kBits = 8, kZero = 0;
  static constexpr float kLargest = 127;

  ATOLL_INLINE static void Encode(V16 value, float scale, float inverse, char* codes, V16* sent) {
    const V16 shifted = value * inverse + simd::Splat<V16>(kMagic);
    const blocks::B16 bytes = blocks::Narrow((I16)shifted);
    std::memcpy(codes, &bytes, sizeof(bytes));
    *sent = (shifted - simd::Splat<V16>(kMagic)) * scale;
  }
  ATOLL_INLINE static blocks::V64 Decode(blocks::B64 codes, float scale) {
    return blocks::Widen(codes) * scale;
  }
  static int EncodeOne(float value, float inverse) {
    return static_cast<int>(std::nearbyint(value * inverse)) & 255;
  }
  static float DecodeOne(int code, float scale) {
    return static_cast<float>(static_cast<int8_t>(code)) * scale;
  }
};

struct Four {
  static constexpr int kBits = 4, kZero = 8;
  static constexpr float kLargest = 7;

  ATOLL_INLINE static void Encode(V16 value, float scale, float inverse, char* codes, V16* sent) {
    const V16 shifted = value * inverse + simd::Splat<V16>(kMagic);
    blocks::StoreHalves(codes, blocks::Narrow((I16)shifted + 8));
    *sent = (shifted - simd::Splat<V16>(kMagic)) * scale;
  }
  ATOLL_INLINE static V16 Numbers(float scale) {
    return __builtin_convertvector(blocks::kIota - 8, V16) * scale;
  }
  static int EncodeOne(float value, float inverse) {
    return static_cast<int>(std::nearbyint(value * inverse)) + 8;
  }
  static float DecodeOne(int code, float scale) { return static_cast<float>(code - 8) * scale; }
};

}  // namespace

ATOLL_BLOCK_CODEC(kInt8Codec, Encoding::kInt8, Eight);
ATOLL_BLOCK_CODEC(kInt4Codec, Encoding::kInt4, Four);

}  // namespace atl
