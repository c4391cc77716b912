// Compiled without fused multiply-adds: all instruction sets then make the bits of the reference.

#include "kernels/deltas.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/check.h"
#include "kernels/quant_simd.h"

namespace atl {
namespace {

using simd::I16;
using simd::kLanes;
using simd::V16;

constexpr int64_t kTaskBlocks = 256;

ATOLL_INLINE V16 Abs(V16 v) { return (V16)((simd::U16)v & 0x7fffffffu); }

// To the nearest whole number, ties to even, of numbers below 2^22.
ATOLL_INLINE V16 Round(V16 v) {
  const V16 magic = simd::Splat(12582912.0f);  // 1.5 * 2^23
  return (v + magic) - magic;
}

// A whole block: its scale and codes to `out`. `residual` may be null.
template <bool kEight>
ATOLL_INLINE void EncodeBlock(const float* delta, float* residual, char* out) {
  constexpr float kSteps = kEight ? 127 : 7;
  float values[kQuantBlock];
  V16 largest_of{};
  I16 finite_of = ~I16{};
  for (int64_t i = 0; i < kQuantBlock; i += kLanes) {
    V16 v = simd::Load(delta + i);
    if (residual != nullptr) v += simd::Load(residual + i);
    simd::Store(values + i, v);
    const V16 size = Abs(v);
    finite_of &= size <= std::numeric_limits<float>::max();  // false for a NaN
    largest_of = simd::Max(size, largest_of);
  }
  bool finite = true;
  for (int64_t lane = 0; lane < kLanes; ++lane) finite = finite && finite_of[lane] != 0;
  const float largest = simd::Largest(largest_of);
  const float scale = finite ? largest / kSteps : std::numeric_limits<float>::quiet_NaN();
  // Of numbers so small that it overflows, all is left to the residual.
  float inverse = finite && largest > 0 ? kSteps / largest : 0;
  if (!(inverse <= std::numeric_limits<float>::max())) inverse = 0;
  std::memcpy(out, &scale, sizeof(scale));
  for (int64_t i = 0; i < kQuantBlock; i += kLanes) {
    const V16 value = finite ? simd::Load(values + i) : V16{};
    const V16 code = Round(value * inverse);
    if constexpr (kEight) {
      simd::StoreInt8(out + 4 + i, code);
    } else {
      simd::StoreInt4(out + 4 + i / 2, code);
    }
    if (residual != nullptr) {
      simd::Store(residual + i, finite ? value - code * scale : V16{});
    }
  }
}

ATOLL_KERNEL(EncodeBlocks,
             (bool eight, const float* delta, float* residual, char* out, int64_t blocks),
             (eight, delta, residual, out, blocks)) {
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t i = block * kQuantBlock;
    float* const left = residual == nullptr ? nullptr : residual + i;
    if (eight) {
      EncodeBlock<true>(delta + i, left, out + block * simd::kInt8BlockBytes);
    } else {
      EncodeBlock<false>(delta + i, left, out + block * simd::kInt4BlockBytes);
    }
  }
}

// The last block, of `count` numbers: as a whole one with zeroes behind them.
void EncodeLast(bool eight, const float* delta, float* residual, char* out, int64_t count) {
  float padded[2][kQuantBlock] = {};
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  std::memcpy(padded[0], delta, bytes);
  if (residual != nullptr) std::memcpy(padded[1], residual, bytes);
  char block[simd::kInt8BlockBytes];
  EncodeBlocks(eight, padded[0], residual == nullptr ? nullptr : padded[1], block, 1);
  std::memcpy(out, block, 4 + static_cast<size_t>(eight ? count : (count + 1) / 2));
  if (residual != nullptr) std::memcpy(residual, padded[1], bytes);
}

ATOLL_KERNEL(DecodeRange, (const void* data, bool eight, float* out, int64_t begin, int64_t end),
             (data, eight, out, begin, end)) {
  for (int64_t i = begin; i < end; i += kLanes) {
    simd::Store(out + i, eight ? simd::LoadInt8(data, i) : simd::LoadInt4(data, i));
  }
}

void CheckIsQuantized(Encoding encoding) {
  ATOLL_CHECK(IsQuantized(encoding), "encoding ", static_cast<int>(encoding));
}

}  // namespace

void EncodeDelta(Encoding encoding, std::span<const float> delta, std::span<float> residual,
                 std::span<std::byte> out, ThreadPool& pool) {
  CheckIsQuantized(encoding);
  const auto size = static_cast<int64_t>(delta.size());
  ATOLL_CHECK((residual.empty() || residual.size() == delta.size()) &&
              static_cast<int64_t>(out.size()) == EncodedBytes(encoding, size));
  const bool eight = encoding == Encoding::kInt8;
  const int64_t block_bytes = eight ? simd::kInt8BlockBytes : simd::kInt4BlockBytes;
  char* const to = reinterpret_cast<char*>(out.data());
  float* const left = residual.empty() ? nullptr : residual.data();
  const int64_t blocks = size / kQuantBlock;
  pool.For((blocks + kTaskBlocks - 1) / kTaskBlocks, [&](int64_t task, int) {
    const int64_t first = task * kTaskBlocks, i = first * kQuantBlock;
    EncodeBlocks(eight, delta.data() + i, left == nullptr ? nullptr : left + i,
                 to + first * block_bytes, std::min(kTaskBlocks, blocks - first));
  });
  const int64_t done = blocks * kQuantBlock;
  if (done == size) return;
  EncodeLast(eight, delta.data() + done, left == nullptr ? nullptr : left + done,
             to + blocks * block_bytes, size - done);
}

void DecodeDelta(const DeltaView& delta, std::span<float> out, ThreadPool& pool) {
  CheckIsQuantized(delta.encoding);
  ATOLL_CHECK(static_cast<int64_t>(out.size()) == delta.size);
  const bool eight = delta.encoding == Encoding::kInt8;
  const int64_t blocks = delta.size / kQuantBlock;
  pool.For((blocks + kTaskBlocks - 1) / kTaskBlocks, [&](int64_t task, int) {
    const int64_t begin = task * kTaskBlocks;
    DecodeRange(delta.data, eight, out.data(), begin * kQuantBlock,
                std::min(blocks, begin + kTaskBlocks) * kQuantBlock);
  });
  const int64_t done = blocks * kQuantBlock;
  if (done == delta.size) return;
  const auto last = static_cast<size_t>(EncodedBytes(delta.encoding, delta.size - done));
  char block[simd::kInt8BlockBytes] = {};
  float values[kQuantBlock];
  std::memcpy(
      block, simd::BlockOf(delta.data, eight ? simd::kInt8BlockBytes : simd::kInt4BlockBytes, done),
      last);
  DecodeRange(block, eight, values, 0, kQuantBlock);
  std::memcpy(out.data() + done, values, static_cast<size_t>(delta.size - done) * sizeof(float));
}

absl::Status CheckScales(const DeltaView& delta) {
  if (!IsQuantized(delta.encoding)) return absl::OkStatus();
  const bool eight = delta.encoding == Encoding::kInt8;
  const int64_t block_bytes = eight ? simd::kInt8BlockBytes : simd::kInt4BlockBytes;
  const float scale_max = std::numeric_limits<float>::max() / (eight ? 127 : 7);
  for (int64_t i = 0; i < delta.size; i += kQuantBlock) {
    const float scale = simd::ScaleOf(simd::BlockOf(delta.data, block_bytes, i));
    if (std::isnan(scale) || (scale >= 0 && scale <= scale_max)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("block ", i / kQuantBlock, " has the scale ", scale,
                     "; scales are at least 0, and finite times every code"));
  }
  return absl::OkStatus();
}

}  // namespace atl
