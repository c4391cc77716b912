// Compiled without fused multiply-adds, like deltas.cc.

#include "kernels/add_delta.h"

#include <algorithm>

#include "common/check.h"
#include "kernels/codecs/codec.h"
#include "kernels/codecs/moments.h"
#include "kernels/simd.h"

namespace atl {
namespace {

using simd::kLanes;

// Multiples of every codec's block; a tile stays in the processor's cache.
constexpr int64_t kTaskElements = 1 << 16, kTileElements = 4096;

ATOLL_KERNEL(AddNumbers, (const float* a, const float* b, float* out, int64_t n), (a, b, out, n)) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    simd::Store(out + i, simd::Load<V>(a + i) + simd::Load<V>(b + i));
  }
  for (; i < n; ++i) out[i] = a[i] + b[i];
}

ATOLL_KERNEL(SubtractNumbers, (const float* a, const float* b, float* out, int64_t n),
             (a, b, out, n)) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    simd::Store(out + i, simd::Load<V>(a + i) - simd::Load<V>(b + i));
  }
  for (; i < n; ++i) out[i] = a[i] - b[i];
}

// Calls work(begin, elements) for each tile, by the pool's threads.
template <class Work>
void ForTiles(int64_t size, ThreadPool& pool, const Work& work) {
  pool.For((size + kTaskElements - 1) / kTaskElements, [&](int64_t task, int) {
    const int64_t end = std::min(size, (task + 1) * kTaskElements);
    for (int64_t begin = task * kTaskElements; begin < end; begin += kTileElements) {
      work(begin, std::min(kTileElements, end - begin));
    }
  });
}

}  // namespace

void AddDelta(const DeltaView& delta, std::span<const float> base, std::span<float> out,
              ThreadPool& pool) {
  ATOLL_CHECK(std::ssize(base) == delta.size && std::ssize(out) == delta.size, "sizes differ");
  const Codec& codec = GetCodec(delta.encoding);
  const auto* const bytes = static_cast<const std::byte*>(delta.data);
  ForTiles(delta.size, pool, [&](int64_t begin, int64_t size) {
    float tile[kTileElements];
    codec.decode(bytes + EncodedBytes(delta.encoding, begin), tile, size);
    AddNumbers(base.data() + begin, tile, out.data() + begin, size);
  });
}

void StepToward(Encoding encoding, std::span<const float> target, std::span<float> values,
                std::span<std::byte> step, ThreadPool& pool) {
  const auto elements = std::ssize(target);
  ATOLL_CHECK(
      std::ssize(values) == elements && std::ssize(step) == EncodedBytes(encoding, elements),
      "sizes differ");
  const Codec& codec = GetCodec(encoding);
  ForTiles(elements, pool, [&](int64_t begin, int64_t size) {
    float tile[kTileElements];
    float* const at = values.data() + begin;
    std::byte* const bytes = step.data() + EncodedBytes(encoding, begin);
    SubtractNumbers(target.data() + begin, at, tile, size);
    codec.encode(tile, nullptr, bytes, size);
    codec.decode(bytes, tile, size);
    AddNumbers(at, tile, at, size);
  });
}

void AverageMoments(std::span<const DeltaView> deltas, std::span<const double> weights,
                    std::span<float> ratios, std::span<float> second, ThreadPool& pool) {
  ATOLL_CHECK(deltas.size() == weights.size() && ratios.size() == second.size(), "sizes differ");
  ForTiles(std::ssize(ratios), pool, [&](int64_t begin, int64_t size) {
    const auto n = static_cast<size_t>(size);
    double sums[2][kTileElements] = {};
    float u[kTileElements], v[kTileElements];
    for (size_t i = 0; i < deltas.size(); ++i) {
      const Encoding encoding = deltas[i].encoding;
      ATOLL_CHECK(deltas[i].size == std::ssize(ratios), "sizes differ");
      DecodeRatios(encoding,
                   {static_cast<const std::byte*>(deltas[i].data) + EncodedBytes(encoding, begin),
                    static_cast<size_t>(EncodedBytes(encoding, size))},
                   {u, n}, {v, n});
      for (size_t at = 0; at < n; ++at) {
        sums[0][at] += weights[i] * u[at];
        sums[1][at] += weights[i] * v[at];
      }
    }
    for (size_t at = 0; at < n; ++at) {
      ratios[static_cast<size_t>(begin) + at] = static_cast<float>(sums[0][at]);
      second[static_cast<size_t>(begin) + at] = static_cast<float>(sums[1][at]);
    }
  });
}

}  // namespace atl
