// u is int8's, v is of powers of two: number = scale * 2^-level, levels 0 to 15, scale = the
// block's largest. Also the codecs of pseudo-gradients with moments behind their blocks, which
// leave these alone.

#include "kernels/codecs/moments.h"

#include <cstring>

#include "kernels/bfloat16.h"
#include "kernels/codecs/blocks.h"

namespace atl {
namespace {

struct Powers {
  static constexpr int kBits = 4, kZero = 15;
  static constexpr float kLargest = 1;
  // The exponent of x * sqrt(2) is log2(x) rounded to the nearest.
  static constexpr float kRootOfTwo = 1.41421356f;
  static constexpr int kExponentOfOne = 127;

  template <class V>
  ATOLL_INLINE static V Encode(const V& value, float scale, float inverse, char* codes) {
    using Int = typename simd::Lanes<V>::Int;
    using Bits = typename simd::Lanes<V>::Bits;
    const V ratio = value * inverse * kRootOfTwo;
    Int level = kExponentOfOne - simd::BitCast<Int>(simd::ToBits(ratio) >> 23);
    level = simd::Select(level < kZero, level, Int{} + kZero);
    blocks::StoreHalves(codes, blocks::Narrow(level));
    return simd::BitCast<V>(simd::BitCast<Bits>(kExponentOfOne - level) << 23) * scale;
  }
  ATOLL_INLINE static blocks::V16 Numbers(float scale) {
    using U16 = simd::Lanes<simd::F16>::Bits;
    return simd::BitCast<blocks::V16>((U16)(kExponentOfOne - blocks::kIota) << 23) * scale;
  }
};

ATOLL_BLOCK_CODEC(kPowersCodec, Encoding::kMomentsAlone, Powers);

// u of a block, and v, which elements without it get.
void PrepareBlock(const float* first, const float* second, int64_t n, float* ratios, float* v) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, second[i]);
  const float otherwise = largest > 0 ? largest : 1;
  int unfit = 0;
  for (int64_t i = 0; i < n; ++i) {
    v[i] = second[i] == 0 && first[i] != 0 ? otherwise : second[i];
    ratios[i] = v[i] == 0 ? 0 : first[i] / std::sqrt(v[i]);
    unfit |= !(std::abs(ratios[i]) <= blocks::kFloatMax) | !(v[i] <= blocks::kFloatMax);
  }
  if (unfit == 0) return;
  std::fill_n(ratios, n, 0.0f);
  std::fill_n(v, n, 0.0f);
}

// Calls work(first element, elements, first byte) for each block of moments.
template <class Work>
void ForBlocks(Encoding encoding, int64_t elements, const Work& work) {
  const int64_t block = EncodedBlock(encoding);
  for (int64_t begin = 0; begin < elements; begin += block) {
    const int64_t end = std::min(begin + block, elements);
    int64_t byte =
        EncodedBytes(encoding, begin) + EncodedBytes(WithoutMoments(encoding), end - begin);
    for (int64_t at = begin; at < end; at += kQuantBlock) {
      const int64_t n = std::min(kQuantBlock, end - at);
      work(at, n, byte);
      byte += EncodedBytes(Encoding::kMomentsAlone, n);
    }
  }
}

int64_t RatioBytes(int64_t n) { return EncodedBytes(Encoding::kInt8, n); }

// ---- Codecs of pseudo-gradients with moments. ----

// Calls work(first element, elements, first byte) for each block of the pseudo-gradient.
template <class Work>
void ForWhole(Encoding encoding, int64_t elements, const Work& work) {
  const int64_t block = EncodedBlock(encoding);
  for (int64_t begin = 0; begin < elements; begin += block) {
    work(begin, std::min(block, elements - begin), EncodedBytes(encoding, begin));
  }
}

void EncodePlain(Encoding encoding, const float* from, std::byte* to, int64_t n) {
  if (encoding == Encoding::kFloat32) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const Bfloat16 x = RoundToBfloat16(from[i]);
    std::memcpy(to + i * 2, &x, sizeof(x));
  }
}

void DecodePlain(Encoding encoding, const std::byte* from, float* to, int64_t n) {
  if (encoding == Encoding::kFloat32) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    Bfloat16 x;
    std::memcpy(&x, from + i * 2, sizeof(x));
    to[i] = WidenBfloat16(x);
  }
}

template <Encoding kBase>
void EncodeWhole(const float* delta, float* residual, std::byte* out, int64_t elements) {
  ForWhole(WithMoments(kBase), elements, [&](int64_t begin, int64_t n, int64_t byte) {
    float* const left = residual == nullptr ? nullptr : residual + begin;
    if constexpr (IsQuantized(kBase)) {
      GetCodec(kBase).encode(delta + begin, left, out + byte, n);
    } else {
      EncodePlain(kBase, delta + begin, out + byte, n);
    }
  });
}

template <Encoding kBase>
void DecodeWhole(const std::byte* bytes, float* out, int64_t elements) {
  ForWhole(WithMoments(kBase), elements, [&](int64_t begin, int64_t n, int64_t byte) {
    if constexpr (IsQuantized(kBase)) {
      GetCodec(kBase).decode(bytes + byte, out + begin, n);
    } else {
      DecodePlain(kBase, bytes + byte, out + begin, n);
    }
  });
}

template <Encoding kBase>
absl::Status CheckWhole(const std::byte* bytes, int64_t elements) {
  absl::Status status = CheckMoments(
      WithMoments(kBase), {bytes, static_cast<size_t>(EncodedBytes(WithMoments(kBase), elements))},
      elements);
  if constexpr (IsQuantized(kBase)) {
    ForWhole(WithMoments(kBase), elements, [&](int64_t, int64_t n, int64_t byte) {
      if (status.ok()) status = GetCodec(kBase).check(bytes + byte, n);
    });
  }
  return status;
}

template <Encoding kBase>
constexpr Codec MakeCodec() {
  return {WithMoments(kBase), EncodeWhole<kBase>, DecodeWhole<kBase>, CheckWhole<kBase>};
}

}  // namespace

const Codec kCodecsWithMoments[kEncodingCount] = {
    MakeCodec<Encoding::kFloat32>(), MakeCodec<Encoding::kBfloat16>(),
    MakeCodec<Encoding::kInt8>(),    MakeCodec<Encoding::kInt4>(),
    MakeCodec<Encoding::kE3m0>(),    MakeCodec<Encoding::kTopK>()};

void EncodeMoments(Encoding encoding, std::span<const float> first, std::span<const float> second,
                   std::span<std::byte> out) {
  float ratios[kQuantBlock], v[kQuantBlock];
  ForBlocks(encoding, std::ssize(first), [&](int64_t at, int64_t n, int64_t byte) {
    PrepareBlock(first.data() + at, second.data() + at, n, ratios, v);
    kInt8Codec.encode(ratios, nullptr, out.data() + byte, n);
    kPowersCodec.encode(v, nullptr, out.data() + byte + RatioBytes(n), n);
  });
}

void EncodeRatios(Encoding encoding, std::span<const float> ratios, std::span<const float> second,
                  std::span<std::byte> out) {
  ForBlocks(encoding, std::ssize(ratios), [&](int64_t at, int64_t n, int64_t byte) {
    kInt8Codec.encode(ratios.data() + at, nullptr, out.data() + byte, n);
    kPowersCodec.encode(second.data() + at, nullptr, out.data() + byte + RatioBytes(n), n);
  });
}

void DecodeRatios(Encoding encoding, std::span<const std::byte> bytes, std::span<float> ratios,
                  std::span<float> second) {
  ForBlocks(encoding, std::ssize(ratios), [&](int64_t at, int64_t n, int64_t byte) {
    kInt8Codec.decode(bytes.data() + byte, ratios.data() + at, n);
    kPowersCodec.decode(bytes.data() + byte + RatioBytes(n), second.data() + at, n);
  });
}

void FirstFromRatios(std::span<float> ratios, std::span<const float> second) {
  for (size_t i = 0; i < ratios.size(); ++i) ratios[i] *= std::sqrt(second[i]);
}

absl::Status CheckMoments(Encoding encoding, std::span<const std::byte> bytes, int64_t elements) {
  absl::Status status;
  ForBlocks(encoding, elements, [&](int64_t at, int64_t n, int64_t byte) {
    const float u = blocks::ReadScale(bytes.data() + byte);
    const float v = blocks::ReadScale(bytes.data() + byte + RatioBytes(n));
    const bool good = u >= 0 && u <= blocks::kFloatMax / 127 && v >= 0 && v <= blocks::kFloatMax;
    if (good || !status.ok()) return;
    status = absl::InvalidArgumentError(absl::StrCat("moments from element ", at,
                                                     " on have the scales ", u, " and ", v,
                                                     "; scales are at least 0 and finite"));
  });
  return status;
}

}  // namespace atl
