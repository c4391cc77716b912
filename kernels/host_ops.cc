#include "kernels/host_ops.h"

#include <algorithm>
#include <vector>

#include "common/check.h"
#include "kernels/simd.h"

namespace atl {
namespace {

using simd::D8;
using simd::F8;
using simd::kLanes;
using simd::V16;

// Elements one task handles: large enough to hide the cost of handing it out.
constexpr int64_t kTaskElements = 1 << 16;
// Elements handled at a time inside a task, so that the weighted sum of many deltas stays in the
// first-level cache while each delta is read once.
constexpr int64_t kTile = 1024;

ATOLL_INLINE V16 LoadDelta(const void* data, bool bf16, int64_t i) {
  return bf16 ? simd::FromBfloat16(static_cast<const Bfloat16*>(data) + i)
              : simd::Load(static_cast<const float*>(data) + i);
}

float DeltaAt(const DeltaView& delta, int64_t i) {
  if (delta.dtype == DType::kFloat32) return static_cast<const float*>(delta.data)[i];
  const uint32_t bits = uint32_t{static_cast<const Bfloat16*>(delta.data)[i]} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// g (+)= weight * delta over n elements, a multiple of kLanes.
ATOLL_INLINE void AddDelta(float* g, const void* data, bool bf16, int64_t begin, int64_t n,
                           float weight, bool first) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const V16 term = LoadDelta(data, bf16, begin + i) * weight;
    simd::Store(g + i, first ? term : simd::Load(g + i) + term);
  }
}

ATOLL_INLINE void NesterovUpdate(float* theta, float* velocity, V16 g, float eta, float mu) {
  const V16 v = simd::Load(velocity) * mu + g;
  simd::Store(velocity, v);
  simd::Store(theta, simd::Load(theta) - (v * mu + g) * eta);
}

// Elements [begin, begin + n), n a multiple of kLanes.
ATOLL_KERNEL(NesterovBlock,
             (float* theta, float* velocity, const WeightedDelta* deltas, int64_t k, int64_t begin,
              int64_t n, float eta, float mu),
             (theta, velocity, deltas, k, begin, n, eta, mu)) {
  if (k == 1 && deltas[0].delta.dtype == DType::kFloat32) {
    const float* delta = static_cast<const float*>(deltas[0].delta.data);
    const float weight = deltas[0].weight;
    for (int64_t i = begin; i < begin + n; i += kLanes) {
      NesterovUpdate(theta + i, velocity + i, simd::Load(delta + i) * weight, eta, mu);
    }
    return;
  }
  float g[kTile] = {};
  for (int64_t tile = begin; tile < begin + n; tile += kTile) {
    const int64_t count = begin + n - tile < kTile ? begin + n - tile : kTile;
    for (int64_t d = 0; d < k; ++d) {
      const DeltaView& delta = deltas[d].delta;
      if (delta.dtype == DType::kBfloat16) {
        AddDelta(g, delta.data, true, tile, count, deltas[d].weight, d == 0);
      } else {
        AddDelta(g, delta.data, false, tile, count, deltas[d].weight, d == 0);
      }
    }
    for (int64_t i = 0; i < count; i += kLanes) {
      NesterovUpdate(theta + tile + i, velocity + tile + i, simd::Load(g + i), eta, mu);
    }
  }
}

void NesterovTail(float* theta, float* velocity, std::span<const WeightedDelta> deltas,
                  int64_t begin, int64_t end, float eta, float mu) {
  for (int64_t i = begin; i < end; ++i) {
    float g = 0;
    for (const WeightedDelta& d : deltas) g += d.weight * DeltaAt(d.delta, i);
    velocity[i] = mu * velocity[i] + g;
    theta[i] -= eta * (g + mu * velocity[i]);
  }
}

ATOLL_INLINE void AddProducts(D8* sums, V16 a, V16 b) {
  F8 halves_a[2], halves_b[2];
  std::memcpy(halves_a, &a, sizeof(a));
  std::memcpy(halves_b, &b, sizeof(b));
  for (int half = 0; half < 2; ++half) {
    sums[half] +=
        __builtin_convertvector(halves_a[half], D8) * __builtin_convertvector(halves_b[half], D8);
  }
}

// Adds dot(a, b) over [begin, begin + n), n a multiple of kLanes, to *sum.
ATOLL_KERNEL(DotBlock,
             (const void* a, bool a_bf16, const void* b, bool b_bf16, int64_t begin, int64_t n,
              double* sum),
             (a, a_bf16, b, b_bf16, begin, n, sum)) {
  D8 sums[2] = {};
  for (int64_t i = begin; i < begin + n; i += kLanes) {
    AddProducts(sums, LoadDelta(a, a_bf16, i), LoadDelta(b, b_bf16, i));
  }
  double total = 0;
  for (int lane = 0; lane < 8; ++lane) total += sums[0][lane] + sums[1][lane];
  *sum += total;
}

ATOLL_KERNEL(ToBfloat16Block, (const float* from, Bfloat16* to, int64_t n), (from, to, n)) {
  const int64_t whole = n - n % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) simd::ToBfloat16(to + i, simd::Load(from + i));
  if (whole == n) return;
  Bfloat16 last[kLanes];
  simd::ToBfloat16(last, simd::LoadFirst(from + whole, n - whole));
  for (int64_t i = whole; i < n; ++i) to[i] = last[i - whole];
}

ATOLL_KERNEL(FromBfloat16Block, (const Bfloat16* from, float* to, int64_t n), (from, to, n)) {
  const int64_t whole = n - n % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) simd::Store(to + i, simd::FromBfloat16(from + i));
  if (whole == n) return;
  Bfloat16 last[kLanes] = {};
  for (int64_t i = whole; i < n; ++i) last[i - whole] = from[i];
  simd::StoreFirst(to + whole, simd::FromBfloat16(last), n - whole);
}

int64_t Tasks(int64_t n) { return (n + kTaskElements - 1) / kTaskElements; }

void CheckDelta(const DeltaView& delta, int64_t size) {
  ATOLL_CHECK(delta.size == size, "a delta of ", delta.size, " numbers for ", size);
  ATOLL_CHECK(delta.dtype != DType::kInt32, "deltas hold reals");
}

// The upper triangle of the Gram matrix of elements [begin, end), row by row, into `sums`.
void GramTask(std::span<const DeltaView> deltas, int64_t begin, int64_t end, double* sums) {
  const int64_t k = static_cast<int64_t>(deltas.size());
  // Tile by tile, so that the tiles of all deltas serve all their products from the cache.
  for (int64_t tile = begin; tile < end; tile += kTile) {
    const int64_t n = std::min(kTile, end - tile);
    const int64_t whole = n - n % kLanes;
    double* sum = sums;
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = i; j < k; ++j, ++sum) {
        const DeltaView &a = deltas[i], &b = deltas[j];
        DotBlock(a.data, a.dtype == DType::kBfloat16, b.data, b.dtype == DType::kBfloat16, tile,
                 whole, sum);
        for (int64_t e = tile + whole; e < tile + n; ++e) {
          *sum += static_cast<double>(DeltaAt(a, e)) * DeltaAt(b, e);
        }
      }
    }
  }
}

}  // namespace

void OuterNesterov(std::span<float> theta, std::span<float> velocity,
                   std::span<const WeightedDelta> deltas, float eta, float mu, ThreadPool& pool) {
  const int64_t size = static_cast<int64_t>(theta.size());
  ATOLL_CHECK(velocity.size() == theta.size(), "velocity and parameters differ in size");
  ATOLL_CHECK(deltas.size() <= kMaxDeltas, deltas.size(), " deltas");
  for (const WeightedDelta& d : deltas) CheckDelta(d.delta, size);
  pool.For(Tasks(size), [&](int64_t task, int) {
    const int64_t begin = task * kTaskElements;
    const int64_t end = std::min(size, begin + kTaskElements);
    const int64_t whole = (end - begin) / kLanes * kLanes;
    NesterovBlock(theta.data(), velocity.data(), deltas.data(), static_cast<int64_t>(deltas.size()),
                  begin, whole, eta, mu);
    NesterovTail(theta.data(), velocity.data(), deltas, begin + whole, end, eta, mu);
  });
}

void GramMatrix(std::span<const DeltaView> deltas, std::span<double> gram, ThreadPool& pool) {
  const size_t k = deltas.size();
  ATOLL_CHECK(k <= kMaxDeltas && gram.size() == k * k, k, " deltas, ", gram.size(), " entries");
  if (k == 0) return;
  const int64_t size = deltas[0].size;
  for (const DeltaView& delta : deltas) CheckDelta(delta, size);
  const size_t entries = k * (k + 1) / 2;
  std::vector<double> partial(Tasks(size) * entries, 0.0);
  pool.For(Tasks(size), [&](int64_t task, int) {
    const int64_t begin = task * kTaskElements;
    GramTask(deltas, begin, std::min(size, begin + kTaskElements), partial.data() + task * entries);
  });
  std::vector<double> sums(entries, 0.0);
  for (size_t i = 0; i < partial.size(); ++i) sums[i % entries] += partial[i];
  size_t entry = 0;
  for (size_t i = 0; i < k; ++i) {
    for (size_t j = i; j < k; ++j) gram[i * k + j] = gram[j * k + i] = sums[entry++];
  }
}

void ToBfloat16(std::span<const float> from, std::span<Bfloat16> to, ThreadPool& pool) {
  ATOLL_CHECK(from.size() == to.size());
  const int64_t size = static_cast<int64_t>(from.size());
  pool.For(Tasks(size), [&](int64_t task, int) {
    const int64_t begin = task * kTaskElements;
    ToBfloat16Block(from.data() + begin, to.data() + begin, std::min(kTaskElements, size - begin));
  });
}

void FromBfloat16(std::span<const Bfloat16> from, std::span<float> to, ThreadPool& pool) {
  ATOLL_CHECK(from.size() == to.size());
  const int64_t size = static_cast<int64_t>(from.size());
  pool.For(Tasks(size), [&](int64_t task, int) {
    const int64_t begin = task * kTaskElements;
    FromBfloat16Block(from.data() + begin, to.data() + begin,
                      std::min(kTaskElements, size - begin));
  });
}

}  // namespace atl
