// int8 and int4: number = code * scale, codes -127 to 127 in a signed byte each, or -7 to 7, plus
// 8, in four bits each; scale = the block's largest size / 127 (or 7), code = number / scale to the
// nearest, ties to even.

#include "kernels/codecs/blocks.h"

namespace atl {
namespace {

using V16 = simd::F16;

// To the nearest whole number, ties to even, of numbers below 2^22: 1.5 * 2^23 added leaves it in
// the low bits.
constexpr float kMagic = 12582912.0f;

template <class V>
ATOLL_INLINE auto ToInts(const V& v) {
  return simd::BitCast<typename simd::Lanes<V>::Int>(v);
}

struct Eight {
  static constexpr int kBits = 8;
  static constexpr float kLargest = 127;

  template <class V>
  ATOLL_INLINE static V Encode(const V& value, float scale, float inverse, char* codes) {
    const V shifted = value * inverse + kMagic;
    const blocks::B16 bytes = blocks::Narrow(ToInts(shifted));
    std::memcpy(codes, &bytes, sizeof(bytes));
    return (shifted - kMagic) * scale;
  }
  ATOLL_INLINE static blocks::V64 Decode(blocks::B64 codes, float scale) {
    return blocks::Widen(codes) * scale;
  }
};

struct Four {
  static constexpr int kBits = 4;
  static constexpr float kLargest = 7;

  template <class V>
  ATOLL_INLINE static V Encode(const V& value, float scale, float inverse, char* codes) {
    const V shifted = value * inverse + kMagic;
    blocks::StoreHalves(codes, blocks::Narrow(ToInts(shifted) + 8));
    return (shifted - kMagic) * scale;
  }
  ATOLL_INLINE static V16 Numbers(float scale) {
    return __builtin_convertvector(blocks::kIota - 8, V16) * scale;
  }
};

}  // namespace

ATOLL_BLOCK_CODEC(kInt8Codec, Encoding::kInt8, Eight);
ATOLL_BLOCK_CODEC(kInt4Codec, Encoding::kInt4, Four);

}  // namespace atl
