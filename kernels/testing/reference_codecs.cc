#include "kernels/testing/reference_codecs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

namespace atl {
namespace {

constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kRootOfTwo = 1.41421356f;  // the exponent of x * it is log2(x), rounded

// The codes of numbers in blocks that share a scale.
struct BlockCode {
  int bits, zero;
  float largest;
  int (*encode)(float value, float inverse);
  float (*decode)(int code, float scale);

  int64_t BlockBytes() const { return 4 + kQuantBlock * bits / 8; }
};

constexpr BlockCode kInt8 = {
    8, 0, 127,
    [](float value, float inverse) {
      return static_cast<int>(std::nearbyint(value * inverse)) & 255;
    },
    [](int code, float scale) { return static_cast<float>(static_cast<int8_t>(code)) * scale; }};

constexpr BlockCode kInt4 = {
    4, 8, 7,
    [](float value, float inverse) {
      return static_cast<int>(std::nearbyint(value * inverse)) + 8;
    },
    [](int code, float scale) { return static_cast<float>(code - 8) * scale; }};

constexpr BlockCode kE3m0 = {4, 0, 1,
                             [](float value, float inverse) {
                               const float ratio = std::abs(value) * inverse * kRootOfTwo;
                               const int level =
                                   ratio > 0 ? std::clamp(std::ilogb(ratio) + 7, 0, 7) : 0;
                               return level | (level > 0 && value < 0 ? 8 : 0);
                             },
                             [](int code, float scale) {
                               const int level = code & 7;
                               if (level == 0) return 0 * scale;
                               return std::ldexp((code & 8) != 0 ? -1.0f : 1.0f, level - 7) * scale;
                             }};

constexpr BlockCode kPowers = {
    4, 15, 1,
    [](float value, float inverse) {
      const float ratio = value * inverse * kRootOfTwo;
      return ratio > 0 ? std::clamp(-std::ilogb(ratio), 0, 15) : 15;
    },
    [](int code, float scale) { return std::ldexp(1.0f, -code) * scale; }};

const BlockCode& GetCode(Encoding encoding) {
  return encoding == Encoding::kInt8 ? kInt8 : encoding == Encoding::kInt4 ? kInt4 : kE3m0;
}

void EncodeBlocks(const BlockCode& to, const float* delta, float* residual, std::byte* bytes,
                  int64_t elements) {
  for (int64_t begin = 0; begin < elements; begin += kQuantBlock, bytes += to.BlockBytes()) {
    const int64_t count = std::min(kQuantBlock, elements - begin);
    float values[kQuantBlock], largest = 0;
    bool finite = true;
    for (int64_t i = 0; i < count; ++i) {
      values[i] = delta[begin + i] + (residual == nullptr ? 0 : residual[begin + i]);
      finite = finite && std::isfinite(values[i]);
      largest = std::max(largest, std::abs(values[i]));
    }
    const float scale = finite ? largest / to.largest : kNone;
    const float overflows = finite && largest > 0 ? to.largest / largest : 0;
    const float inverse = std::isfinite(overflows) ? overflows : 0;
    std::memcpy(bytes, &scale, sizeof(scale));
    for (int64_t i = 0; i < (to.bits == 8 ? count : (count + 1) / 2 * 2); ++i) {
      const int code = i < count && finite ? to.encode(values[i], inverse) : to.zero;
      std::byte& at = bytes[4 + i * to.bits / 8];
      at = to.bits == 8 || i % 2 == 0 ? std::byte(code) : at | std::byte(code << 4);
      if (residual != nullptr && i < count) {
        residual[begin + i] = finite ? values[i] - to.decode(code, scale) : 0;
      }
    }
  }
}

void DecodeBlocks(const BlockCode& from, const std::byte* bytes, float* out, int64_t elements) {
  for (int64_t i = 0; i < elements; ++i) {
    const std::byte* const block = bytes + i / kQuantBlock * from.BlockBytes();
    const int64_t at = i % kQuantBlock;
    const int byte = static_cast<int>(block[4 + at * from.bits / 8]);
    float scale;
    std::memcpy(&scale, block, sizeof(scale));
    out[i] = from.decode(from.bits == 8 ? byte : byte >> at % 2 * 4 & 15, scale);
  }
}

// ---- Bits of a chunk, the lowest of a byte first ----

void PutBits(std::byte* bytes, int64_t at, int width, int value) {
  for (int bit = 0; bit < width; ++bit, ++at)
    bytes[at / 8] |= std::byte(value >> bit & 1) << at % 8;
}

int GetBits(const std::byte* bytes, int64_t at, int width) {
  int value = 0;
  for (int bit = 0; bit < width; ++bit, ++at) {
    value |= static_cast<int>(bytes[at / 8] >> at % 8 & std::byte{1}) << bit;
  }
  return value;
}

// Returns the bit at which the i-th of `count` indices begins, and below its code.
int64_t IndexAt(int64_t i) { return 64 + i * kTopKIndexBits; }
int64_t CodeAt(int64_t i, int64_t count) { return (IndexAt(count) + 7) / 8 * 8 + 2 * i; }

void EncodeChunk(const float* delta, float* residual, std::byte* out, int64_t n) {
  std::vector<float> values(delta, delta + n);
  for (int64_t i = 0; residual != nullptr && i < n; ++i) residual[i] = values[i] += residual[i];
  const bool finite =
      std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
  const int64_t count = TopKKept(n);
  std::vector<int> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  if (finite) {
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return std::abs(values[a]) > std::abs(values[b]); });
  } else if (residual != nullptr) {
    std::fill_n(residual, n, 0.0f);
  }
  order.resize(static_cast<size_t>(count));
  std::sort(order.begin(), order.end());
  double sum = 0, sums[2] = {}, counts[2] = {};
  for (const int index : order) sum += std::abs(values[index]);
  const auto is_large = [&](int index) {
    return finite && std::abs(values[index]) > sum / static_cast<double>(count);
  };
  for (const int index : order) {
    sums[is_large(index)] += std::abs(values[index]);
    ++counts[is_large(index)];
  }
  float means[2] = {kNone, kNone};
  for (int part = 0; finite && part < 2; ++part) {
    means[part] = counts[part] == 0 ? 0 : static_cast<float>(sums[part] / counts[part]);
  }
  std::memset(out, 0, static_cast<size_t>(GetEncodingInfo(Encoding::kTopK).block_bytes(n)));
  std::memcpy(out, means, sizeof(means));
  for (int64_t i = 0; i < count; ++i) {
    const int index = order[static_cast<size_t>(i)];
    const bool negative = finite && values[index] < 0;
    PutBits(out, IndexAt(i), kTopKIndexBits, index);
    PutBits(out, CodeAt(i, count), 2, (is_large(index) ? 2 : 0) | (negative ? 1 : 0));
    if (finite && residual != nullptr) {
      residual[index] -= negative ? -means[is_large(index)] : means[is_large(index)];
    }
  }
}

void DecodeChunk(const std::byte* bytes, float* out, int64_t n) {
  float means[2];
  std::memcpy(means, bytes, sizeof(means));
  const bool none = std::isnan(means[0]);
  std::fill_n(out, n, none ? kNone : 0.0f);
  for (int64_t i = 0; i < TopKKept(n) && !none; ++i) {
    const int index = GetBits(bytes, IndexAt(i), kTopKIndexBits);
    const int code = GetBits(bytes, CodeAt(i, TopKKept(n)), 2);
    if (index < n) out[index] = (code & 1) != 0 ? -means[code >> 1] : means[code >> 1];
  }
}

// Calls work(first element, elements, first byte of u, first byte of v) for each block of moments.
template <typename Work>
void ForMoments(Encoding encoding, int64_t elements, const Work& work) {
  const int64_t block = EncodedBlock(encoding);
  for (int64_t begin = 0; begin < elements; begin += block) {
    const int64_t end = std::min(begin + block, elements);
    int64_t byte =
        EncodedBytes(encoding, begin) + EncodedBytes(WithoutMoments(encoding), end - begin);
    for (int64_t at = begin; at < end; at += kQuantBlock) {
      const int64_t n = std::min(kQuantBlock, end - at);
      work(at, n, byte, byte + EncodedBytes(Encoding::kInt8, n));
      byte += EncodedBytes(Encoding::kMomentsAlone, n);
    }
  }
}

}  // namespace

void ReferenceEncode(Encoding encoding, const float* delta, float* residual, std::byte* out,
                     int64_t elements) {
  if (encoding != Encoding::kTopK) {
    return EncodeBlocks(GetCode(encoding), delta, residual, out, elements);
  }
  for (int64_t begin = 0; begin < elements; begin += kTopKChunk) {
    EncodeChunk(delta + begin, residual == nullptr ? nullptr : residual + begin,
                out + EncodedBytes(encoding, begin), std::min(kTopKChunk, elements - begin));
  }
}

void ReferenceDecode(Encoding encoding, const std::byte* bytes, float* out, int64_t elements) {
  if (encoding != Encoding::kTopK) return DecodeBlocks(GetCode(encoding), bytes, out, elements);
  for (int64_t begin = 0; begin < elements; begin += kTopKChunk) {
    DecodeChunk(bytes + EncodedBytes(encoding, begin), out + begin,
                std::min(kTopKChunk, elements - begin));
  }
}

void ReferenceEncodeMoments(Encoding encoding, std::span<const float> first,
                            std::span<const float> second, std::span<std::byte> out) {
  ForMoments(encoding, std::ssize(first), [&](int64_t at, int64_t n, int64_t u_at, int64_t v_at) {
    std::vector<float> u(static_cast<size_t>(n)), v = u;
    const float largest = *std::max_element(second.begin() + at, second.begin() + at + n);
    bool fits = true;
    for (int64_t i = 0; i < n; ++i) {
      const bool lacks = second[at + i] == 0 && first[at + i] != 0;
      v[i] = lacks ? (largest > 0 ? largest : 1) : second[at + i];
      u[i] = v[i] == 0 ? 0 : first[at + i] / std::sqrt(v[i]);
      fits = fits && std::abs(u[i]) <= kMax && v[i] <= kMax;
    }
    if (!fits) u.assign(u.size(), 0), v.assign(v.size(), 0);
    EncodeBlocks(kInt8, u.data(), nullptr, out.data() + u_at, n);
    EncodeBlocks(kPowers, v.data(), nullptr, out.data() + v_at, n);
  });
}

void ReferenceDecodeRatios(Encoding encoding, std::span<const std::byte> bytes,
                           std::span<float> ratios, std::span<float> second) {
  ForMoments(encoding, std::ssize(ratios), [&](int64_t at, int64_t n, int64_t u_at, int64_t v_at) {
    DecodeBlocks(kInt8, bytes.data() + u_at, ratios.data() + at, n);
    DecodeBlocks(kPowers, bytes.data() + v_at, second.data() + at, n);
  });
}

}  // namespace atl
