#include "kernels/host_ops.h"

#include <algorithm>
#include <initializer_list>

#include "kernels/host_ops_impl.h"

namespace atl {
namespace {

using simd::kLanes;

// Deltas read in one pass: more streams than the processor's prefetchers follow would stall.
constexpr int64_t kSideBySide = 4;

// The update that the last pass of AddDeltas makes of the sum g of the weighted deltas: Sixteen for
// elements i to i + 15, One for element i. Prefetch requests what Sixteen changes.
struct SgdUpdate {
  float* theta;
  float eta;

  ATOLL_INLINE void Prefetch(int64_t i) const { __builtin_prefetch(theta + i, 1); }
  template <class V>
  ATOLL_INLINE void Sixteen(int64_t i, const V& g) const {
    simd::Store(theta + i, simd::Load<V>(theta + i) - g * eta);
  }
  void One(int64_t i, float g) const { theta[i] -= eta * g; }
};

struct NesterovUpdate {
  float* theta;
  float* velocity;
  float eta, mu;

  ATOLL_INLINE void Prefetch(int64_t i) const {
    __builtin_prefetch(theta + i, 1);
    __builtin_prefetch(velocity + i, 1);
  }
  template <class V>
  ATOLL_INLINE void Sixteen(int64_t i, const V& g) const {
    const V v = simd::Load<V>(velocity + i) * mu + g;
    simd::Store(velocity + i, v);
    simd::Store(theta + i, simd::Load<V>(theta + i) - (v * mu + g) * eta);
  }
  void One(int64_t i, float g) const {
    velocity[i] = mu * velocity[i] + g;
    theta[i] -= eta * (g + mu * velocity[i]);
  }
};

struct DelayedUpdate {
  float* theta;
  float* momentum;
  float* sum;
  float eta, mu, share;
  bool last;  // of the pushes that the momentum moves after

  ATOLL_INLINE void Prefetch(int64_t i) const {
    __builtin_prefetch(theta + i, 1);
    __builtin_prefetch(momentum + i, 1);
    __builtin_prefetch(sum + i, 1);
  }
  template <class V>
  ATOLL_INLINE void Sixteen(int64_t i, const V& g) const {
    const V part = g * share;
    V all = simd::Load<V>(sum + i) + part;
    V moved = simd::Load<V>(theta + i) - part * eta;
    if (last) {
      const V b = simd::Load<V>(momentum + i) * mu + all;
      simd::Store(momentum + i, b);
      moved -= b * (mu * eta);
      all = V{};
    }
    simd::Store(sum + i, all);
    simd::Store(theta + i, moved);
  }
  void One(int64_t i, float g) const {
    const float part = g * share;
    float all = sum[i] + part;
    theta[i] -= eta * part;
    if (last) {
      momentum[i] = mu * momentum[i] + all;
      theta[i] -= mu * eta * momentum[i];
      all = 0;
    }
    sum[i] = all;
  }
};

// All of one encoding, or each of its own.
enum class Types { kFloat32, kBfloat16, kMixed };

// One pass over n elements from `begin` on that reads kCount deltas side by side and adds them to
// g_before (null: to nothing). All but the update count elements from `begin`. The last pass hands
// the sum to the update, any other leaves it in g_after.
template <class V, int kCount, Types kTypes, class Update>
ATOLL_INLINE void AddDeltas(const Plain* deltas, const float* g_before, float* g_after,
                            int64_t begin, int64_t n, const Update& update) {
  const void* data[kCount + 1];
  Encoding encoding[kCount + 1];
  float weight[kCount + 1];
  for (int d = 0; d < kCount; ++d) {
    data[d] = deltas[d].data;
    encoding[d] = kTypes == Types::kMixed ? deltas[d].encoding : static_cast<Encoding>(kTypes);
    weight[d] = deltas[d].weight;
  }
  for (int64_t i = 0; i < n; i += kLanes) {
    V g{};
    if (g_before != nullptr) g = simd::Load<V>(g_before + i);
#pragma GCC unroll 4
    for (int d = 0; d < kCount; ++d) {
      const Encoding type = kTypes == Types::kMixed ? encoding[d] : static_cast<Encoding>(kTypes);
      g += LoadSixteen<V>(data[d], type, i) * weight[d];
    }
    if (g_after != nullptr) {
      simd::Store(g_after + i, g);
    } else {
      update.Sixteen(begin + i, g);
    }
  }
}

template <class V, Types kTypes, class Update>
ATOLL_INLINE void AddSomeDeltas(const Plain* deltas, int64_t count, const float* g_before,
                                float* g_after, int64_t begin, int64_t n, const Update& update) {
  switch (count) {
    case 0:
      return AddDeltas<V, 0, kTypes>(deltas, g_before, g_after, begin, n, update);
    case 1:
      return AddDeltas<V, 1, kTypes>(deltas, g_before, g_after, begin, n, update);
    case 2:
      return AddDeltas<V, 2, kTypes>(deltas, g_before, g_after, begin, n, update);
    case 3:
      return AddDeltas<V, 3, kTypes>(deltas, g_before, g_after, begin, n, update);
    default:
      return AddDeltas<V, 4, kTypes>(deltas, g_before, g_after, begin, n, update);
  }
}

// Up to kSideBySide deltas over n elements from `begin` on, n a multiple of kLanes.
template <class V, class Update>
ATOLL_INLINE void AddPass(const Update& update, const Plain* deltas, int64_t count,
                          const float* g_before, float* g_after, int64_t begin, int64_t n) {
  bool same = true;
  for (int64_t d = 1; d < count; ++d) same = same && deltas[d].encoding == deltas[0].encoding;
  const Types types = !same        ? Types::kMixed
                      : count == 0 ? Types::kFloat32
                                   : static_cast<Types>(deltas[0].encoding);
  switch (types) {
    case Types::kFloat32:
      return AddSomeDeltas<V, Types::kFloat32>(deltas, count, g_before, g_after, begin, n, update);
    case Types::kBfloat16:
      return AddSomeDeltas<V, Types::kBfloat16>(deltas, count, g_before, g_after, begin, n, update);
    case Types::kMixed:
      return AddSomeDeltas<V, Types::kMixed>(deltas, count, g_before, g_after, begin, n, update);
  }
}

ATOLL_KERNEL(RunPass,
             (const SgdUpdate& update, const Plain* deltas, int64_t count, const float* g_before,
              float* g_after, int64_t begin, int64_t n),
             (update, deltas, count, g_before, g_after, begin, n)) {
  AddPass<V>(update, deltas, count, g_before, g_after, begin, n);
}
ATOLL_KERNEL(RunPass,
             (const NesterovUpdate& update, const Plain* deltas, int64_t count,
              const float* g_before, float* g_after, int64_t begin, int64_t n),
             (update, deltas, count, g_before, g_after, begin, n)) {
  AddPass<V>(update, deltas, count, g_before, g_after, begin, n);
}
ATOLL_KERNEL(RunPass,
             (const DelayedUpdate& update, const Plain* deltas, int64_t count,
              const float* g_before, float* g_after, int64_t begin, int64_t n),
             (update, deltas, count, g_before, g_after, begin, n)) {
  AddPass<V>(update, deltas, count, g_before, g_after, begin, n);
}

ATOLL_KERNEL(ToBfloat16Block, (const float* from, Bfloat16* to, int64_t n), (from, to, n)) {
  const int64_t whole = n - n % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) simd::ToBfloat16(to + i, simd::Load<V>(from + i));
  if (whole == n) return;
  Bfloat16 last[kLanes];
  simd::ToBfloat16(last, simd::LoadFirst<V>(from + whole, n - whole));
  for (int64_t i = whole; i < n; ++i) to[i] = last[i - whole];
}

// PlainFrom of delta `d` of `count`, whose decoding requests what the update changes kTile elements
// later, up to `end`: neither waits for the other.
template <class Update>
Plain DecodeAndPrefetch(const Update& update, const WeightedDelta& from, int64_t d, int64_t count,
                        int64_t begin, int64_t n, int64_t end, float* decoded) {
  if (IsQuantized(from.delta.encoding)) {
    const int64_t next = begin + kTile, last = std::min(end, next + (d + 1) * n / count);
    for (int64_t i = next + d * n / count / kLanes * kLanes; i < last; i += kLanes) {
      update.Prefetch(i);
    }
  }
  return PlainFrom(from.delta, from.weight, begin, n, decoded);
}

// The step on elements [begin, end). Up to kSideBySide deltas are summed in registers; the sum of
// more, and numbers of quantised ones, are carried through the cache, tile by tile.
template <class Update>
void StepTask(const Update& update, std::span<const WeightedDelta> deltas, int64_t begin,
              int64_t end) {
  const int64_t k = static_cast<int64_t>(deltas.size());
  int64_t block = 1;
  for (const WeightedDelta& d : deltas) block = std::max(block, EncodedBlock(d.delta.encoding));
  const int64_t tile_size = block > 1 ? block : k > kSideBySide ? kTile : end - begin;
  float decoded[kSideBySide][kTileMax], sum[kTileMax];
  for (int64_t tile = begin; tile < end; tile += tile_size) {
    const int64_t n = std::min(tile_size, end - tile), whole = n / kLanes * kLanes;
    float rest[kLanes] = {};  // the sum of elements behind the last whole vector
    for (int64_t first = 0; first == 0 || first < k; first += kSideBySide) {
      const int64_t count = std::min(kSideBySide, k - first);
      Plain plain[kSideBySide];
      for (int64_t d = 0; d < count; ++d) {
        const WeightedDelta& from = deltas[first + d];
        plain[d] = DecodeAndPrefetch(update, from, d, count, tile, n, end, decoded[d]);
        for (int64_t i = whole; i < n; ++i) {
          rest[i - whole] += from.weight * LoadOne(plain[d].data, plain[d].encoding, i);
        }
      }
      const bool last = first + kSideBySide >= k;
      RunPass(update, plain, count, first == 0 ? nullptr : sum, last ? nullptr : sum, tile, whole);
    }
    for (int64_t i = whole; i < n; ++i) update.One(tile + i, rest[i - whole]);
  }
}

template <class Update>
void Step(const Update& update, std::span<const WeightedDelta> deltas, int64_t size,
          ThreadPool& pool) {
  ATOLL_CHECK(deltas.size() <= kMaxDeltas, deltas.size(), " deltas");
  for (const WeightedDelta& d : deltas) CheckSize(d.delta, size);
  pool.For(Tasks(size), [&](int64_t task, int) {
    const int64_t begin = task * kTaskElements;
    StepTask(update, deltas, begin, std::min(size, begin + kTaskElements));
  });
}

int64_t GetElementSize(std::span<float> theta, std::initializer_list<std::span<float>> slots) {
  for (const std::span<float> slot : slots) {
    ATOLL_CHECK(slot.size() == theta.size(), "a slot and parameters differ in size");
  }
  return static_cast<int64_t>(theta.size());
}

}  // namespace

void OuterSgd(std::span<float> theta, std::span<const WeightedDelta> deltas, float eta,
              ThreadPool& pool) {
  Step(SgdUpdate{theta.data(), eta}, deltas, GetElementSize(theta, {}), pool);
}

void OuterNesterov(std::span<float> theta, std::span<float> velocity,
                   std::span<const WeightedDelta> deltas, float eta, float mu, ThreadPool& pool) {
  Step(NesterovUpdate{theta.data(), velocity.data(), eta, mu}, deltas,
       GetElementSize(theta, {velocity}), pool);
}

void OuterDelayedNesterov(std::span<float> theta, std::span<float> momentum, std::span<float> sum,
                          std::span<const WeightedDelta> deltas, float eta, float mu, float share,
                          bool last, ThreadPool& pool) {
  Step(DelayedUpdate{theta.data(), momentum.data(), sum.data(), eta, mu, share, last}, deltas,
       GetElementSize(theta, {momentum, sum}), pool);
}

void ToBfloat16(std::span<const float> from, std::span<Bfloat16> to, ThreadPool& pool) {
  ATOLL_CHECK(from.size() == to.size());
  const int64_t size = static_cast<int64_t>(from.size());
  pool.For(Tasks(size), [&](int64_t task, int) {
    const int64_t begin = task * kTaskElements;
    ToBfloat16Block(from.data() + begin, to.data() + begin, std::min(kTaskElements, size - begin));
  });
}

}  // namespace atl
