// e3m0: number = 0 at level 0, else 2^(level - 7) * scale with its sign, levels 0 to 7 in the low
// three bits of a code; scale = the block's largest size. The level is the nearest on a logarithmic
// scale; numbers below 2^-6.5 * scale are 0.

#include "kernels/codecs/blocks.h"

namespace atl {
namespace {

using U16 = simd::Lanes<simd::F16>::Bits;
using V16 = simd::F16;

// The exponent of x * sqrt(2) is log2(x) rounded to the nearest.
constexpr float kRootOfTwo = 1.41421356f;
constexpr int kExponentOfLevel = 127 - 7;  // biased, of level 0

struct E3m0 {
  static constexpr int kBits = 4;
  static constexpr float kLargest = 1;

  template <class V>
  ATOLL_INLINE static V Number(const typename simd::Lanes<V>::Int& level,
                               const typename simd::Lanes<V>::Bits& sign, float scale) {
    using Bits = typename simd::Lanes<V>::Bits;
    const V power = simd::BitCast<V>(simd::BitCast<Bits>(level + kExponentOfLevel) << 23 | sign);
    return simd::Select(level > 0, power, V{}) * scale;
  }
  template <class V>
  ATOLL_INLINE static V Encode(const V& value, float scale, float inverse, char* codes) {
    using Int = typename simd::Lanes<V>::Int;
    using Bits = typename simd::Lanes<V>::Bits;
    const V ratio = value * inverse * kRootOfTwo;
    Int level = simd::BitCast<Int>((simd::ToBits(ratio) & 0x7fffffffu) >> 23) - kExponentOfLevel;
    level = simd::Max(level, Int{});
    level = simd::Select(level < 7, level, Int{} + 7);
    const Bits sign = simd::Select(level > 0, simd::ToBits(value) & 0x80000000u, Bits{});
    blocks::StoreHalves(codes, blocks::Narrow(level | simd::BitCast<Int>(sign >> 28)));
    return Number<V>(level, sign, scale);
  }
  ATOLL_INLINE static V16 Numbers(float scale) {
    return Number<V16>(blocks::kIota & 7, (U16)(blocks::kIota & 8) << 28, scale);
  }
};

}  // namespace

ATOLL_BLOCK_CODEC(kE3m0Codec, Encoding::kE3m0, E3m0);

}  // namespace atl
