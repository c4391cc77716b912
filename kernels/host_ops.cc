#include "kernels/host_ops.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <vector>

#include "common/check.h"
#include "kernels/bfloat16.h"
#include "kernels/quant_simd.h"
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
// Deltas read in one pass: more streams than the processor's prefetchers follow would stall.
constexpr int64_t kSideBySide = 4;

// Numbers i to i + 15. REQUIRES: i a multiple of 16, all of them there.
ATOLL_INLINE V16 LoadDelta(const void* data, Encoding encoding, int64_t i) {
  switch (encoding) {
    case Encoding::kFloat32:
      return simd::Load(static_cast<const float*>(data) + i);
    case Encoding::kBfloat16:
      return simd::FromBfloat16(static_cast<const Bfloat16*>(data) + i);
    case Encoding::kInt8:
      return simd::LoadInt8(data, i);
    case Encoding::kInt4:
      return simd::LoadInt4(data, i);
  }
  __builtin_unreachable();
}

float DeltaAt(const DeltaView& delta, int64_t i) {
  if (delta.encoding == Encoding::kFloat32) return static_cast<const float*>(delta.data)[i];
  if (delta.encoding == Encoding::kBfloat16) {
    return WidenBfloat16(static_cast<const Bfloat16*>(delta.data)[i]);
  }
  const bool eight = delta.encoding == Encoding::kInt8;
  const char* block =
      simd::BlockOf(delta.data, eight ? simd::kInt8BlockBytes : simd::kInt4BlockBytes, i);
  const int64_t at = i % kQuantBlock;
  const int code = eight ? static_cast<int8_t>(block[4 + at])
                         : (static_cast<uint8_t>(block[4 + at / 2]) >> at % 2 * 4 & 15) - 8;
  return static_cast<float>(code) * simd::ScaleOf(block);
}

// What the last pass of AddDeltas does with the sum g of the weighted deltas: Sixteen for elements
// i to i + 15, One for element i.
struct SgdUpdate {
  float* theta;
  float eta;

  ATOLL_INLINE void Sixteen(int64_t i, V16 g) const {
    simd::Store(theta + i, simd::Load(theta + i) - g * eta);
  }
  void One(int64_t i, float g) const { theta[i] -= eta * g; }
};

struct NesterovUpdate {
  float* theta;
  float* velocity;
  float eta, mu;

  ATOLL_INLINE void Sixteen(int64_t i, V16 g) const {
    const V16 v = simd::Load(velocity + i) * mu + g;
    simd::Store(velocity + i, v);
    simd::Store(theta + i, simd::Load(theta + i) - (v * mu + g) * eta);
  }
  void One(int64_t i, float g) const {
    velocity[i] = mu * velocity[i] + g;
    theta[i] -= eta * (g + mu * velocity[i]);
  }
};

struct AdamUpdate {
  float* theta;
  float* first;
  float* second;
  float beta1, beta2, step, rsqrt2, epsilon;  // step: eta / (1 - beta1^t)

  ATOLL_INLINE void Sixteen(int64_t i, V16 g) const {
    const V16 m = simd::Load(first + i) * beta1 + g * (1 - beta1);
    const V16 v = simd::Load(second + i) * beta2 + g * g * (1 - beta2);
    simd::Store(first + i, m);
    simd::Store(second + i, v);
    simd::Store(theta + i, simd::Load(theta + i) - m * step / (simd::Sqrt(v) * rsqrt2 + epsilon));
  }
  void One(int64_t i, float g) const {
    first[i] = first[i] * beta1 + g * (1 - beta1);
    second[i] = second[i] * beta2 + g * g * (1 - beta2);
    theta[i] -= first[i] * step / (std::sqrt(second[i]) * rsqrt2 + epsilon);
  }
};

struct DelayedUpdate {
  float* theta;
  float* momentum;
  float* sum;
  float eta, mu, share;
  bool last;  // of the pushes that the momentum moves after

  ATOLL_INLINE void Sixteen(int64_t i, V16 g) const {
    const V16 part = g * share;
    V16 all = simd::Load(sum + i) + part;
    V16 moved = simd::Load(theta + i) - part * eta;
    if (last) {
      const V16 b = simd::Load(momentum + i) * mu + all;
      simd::Store(momentum + i, b);
      moved -= b * (mu * eta);
      all = V16{};
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
enum class Types { kFloat32, kBfloat16, kInt8, kInt4, kMixed };

// One pass over elements [begin, begin + n) that reads kCount deltas side by side and adds them to
// g, which holds those elements alone (null: to nothing). The last pass hands the sum to the
// update, any other leaves it in g.
template <int kCount, Types kTypes, class Update>
ATOLL_INLINE void AddDeltas(const WeightedDelta* deltas, const float* g_before, float* g_after,
                            int64_t begin, int64_t n, const Update& update) {
  const void* data[kCount + 1];
  Encoding encoding[kCount + 1];
  float weight[kCount + 1];
  for (int d = 0; d < kCount; ++d) {
    data[d] = deltas[d].delta.data;
    encoding[d] =
        kTypes == Types::kMixed ? deltas[d].delta.encoding : static_cast<Encoding>(kTypes);
    weight[d] = deltas[d].weight;
  }
  for (int64_t i = 0; i < n; i += kLanes) {
    V16 g{};
    if (g_before != nullptr) g = simd::Load(g_before + i);
#pragma GCC unroll 4
    for (int d = 0; d < kCount; ++d) {
      const Encoding type = kTypes == Types::kMixed ? encoding[d] : static_cast<Encoding>(kTypes);
      g += LoadDelta(data[d], type, begin + i) * weight[d];
    }
    if (g_after != nullptr) {
      simd::Store(g_after + i, g);
    } else {
      update.Sixteen(begin + i, g);
    }
  }
}

template <Types kTypes, class Update>
ATOLL_INLINE void AddSomeDeltas(const WeightedDelta* deltas, int64_t count, const float* g_before,
                                float* g_after, int64_t begin, int64_t n, const Update& update) {
  switch (count) {
    case 0:
      return AddDeltas<0, kTypes>(deltas, g_before, g_after, begin, n, update);
    case 1:
      return AddDeltas<1, kTypes>(deltas, g_before, g_after, begin, n, update);
    case 2:
      return AddDeltas<2, kTypes>(deltas, g_before, g_after, begin, n, update);
    case 3:
      return AddDeltas<3, kTypes>(deltas, g_before, g_after, begin, n, update);
    default:
      return AddDeltas<4, kTypes>(deltas, g_before, g_after, begin, n, update);
  }
}

// Up to kSideBySide deltas are summed in registers; the sum of more is carried from pass to pass
// through the first-level cache.
template <Types kTypes, class Update>
ATOLL_INLINE void StepOfTypes(const Update& update, const WeightedDelta* deltas, int64_t k,
                              int64_t begin, int64_t n) {
  if (k <= kSideBySide) {
    return AddSomeDeltas<kTypes>(deltas, k, nullptr, nullptr, begin, n, update);
  }
  float g[kTile];
  for (int64_t tile = begin; tile < begin + n; tile += kTile) {
    const int64_t count = begin + n - tile < kTile ? begin + n - tile : kTile;
    for (int64_t d = 0; d < k; d += kSideBySide) {
      const bool last = d + kSideBySide >= k;
      AddSomeDeltas<kTypes>(deltas + d, k - d, d == 0 ? nullptr : g, last ? nullptr : g, tile,
                            count, update);
    }
  }
}

// Elements [begin, begin + n), n a multiple of kLanes.
template <class Update>
ATOLL_INLINE void StepBlock(const Update& update, const WeightedDelta* deltas, int64_t k,
                            int64_t begin, int64_t n) {
  bool same = true;
  for (int64_t d = 1; d < k; ++d)
    same = same && deltas[d].delta.encoding == deltas[0].delta.encoding;
  const Types types = !same    ? Types::kMixed
                      : k == 0 ? Types::kFloat32
                               : static_cast<Types>(deltas[0].delta.encoding);
  switch (types) {
    case Types::kFloat32:
      return StepOfTypes<Types::kFloat32>(update, deltas, k, begin, n);
    case Types::kBfloat16:
      return StepOfTypes<Types::kBfloat16>(update, deltas, k, begin, n);
    case Types::kInt8:
      return StepOfTypes<Types::kInt8>(update, deltas, k, begin, n);
    case Types::kInt4:
      return StepOfTypes<Types::kInt4>(update, deltas, k, begin, n);
    case Types::kMixed:
      return StepOfTypes<Types::kMixed>(update, deltas, k, begin, n);
  }
}

ATOLL_KERNEL(RunBlock,
             (const SgdUpdate& update, const WeightedDelta* deltas, int64_t k, int64_t begin,
              int64_t n),
             (update, deltas, k, begin, n)) {
  StepBlock(update, deltas, k, begin, n);
}
ATOLL_KERNEL(RunBlock,
             (const NesterovUpdate& update, const WeightedDelta* deltas, int64_t k, int64_t begin,
              int64_t n),
             (update, deltas, k, begin, n)) {
  StepBlock(update, deltas, k, begin, n);
}
ATOLL_KERNEL(RunBlock,
             (const AdamUpdate& update, const WeightedDelta* deltas, int64_t k, int64_t begin,
              int64_t n),
             (update, deltas, k, begin, n)) {
  StepBlock(update, deltas, k, begin, n);
}
ATOLL_KERNEL(RunBlock,
             (const DelayedUpdate& update, const WeightedDelta* deltas, int64_t k, int64_t begin,
              int64_t n),
             (update, deltas, k, begin, n)) {
  StepBlock(update, deltas, k, begin, n);
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
             (const void* a, Encoding a_type, const void* b, Encoding b_type, int64_t begin,
              int64_t n, double* sum),
             (a, a_type, b, b_type, begin, n, sum)) {
  D8 sums[2] = {};
  for (int64_t i = begin; i < begin + n; i += kLanes) {
    AddProducts(sums, LoadDelta(a, a_type, i), LoadDelta(b, b_type, i));
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
        DotBlock(a.data, a.encoding, b.data, b.encoding, tile, whole, sum);
        for (int64_t e = tile + whole; e < tile + n; ++e) {
          *sum += static_cast<double>(DeltaAt(a, e)) * DeltaAt(b, e);
        }
      }
    }
  }
}

}  // namespace

namespace {

template <class Update>
void Step(const Update& update, std::span<const WeightedDelta> deltas, int64_t size,
          ThreadPool& pool) {
  ATOLL_CHECK(deltas.size() <= kMaxDeltas, deltas.size(), " deltas");
  for (const WeightedDelta& d : deltas) CheckDelta(d.delta, size);
  pool.For(Tasks(size), [&](int64_t task, int) {
    const int64_t begin = task * kTaskElements;
    const int64_t end = std::min(size, begin + kTaskElements);
    const int64_t whole = (end - begin) / kLanes * kLanes;
    RunBlock(update, deltas.data(), static_cast<int64_t>(deltas.size()), begin, whole);
    for (int64_t i = begin + whole; i < end; ++i) {
      float g = 0;
      for (const WeightedDelta& d : deltas) g += d.weight * DeltaAt(d.delta, i);
      update.One(i, g);
    }
  });
}

int64_t SizeOf(std::span<float> theta, std::initializer_list<std::span<float>> slots) {
  for (const std::span<float> slot : slots) {
    ATOLL_CHECK(slot.size() == theta.size(), "a slot and parameters differ in size");
  }
  return static_cast<int64_t>(theta.size());
}

}  // namespace

void OuterSgd(std::span<float> theta, std::span<const WeightedDelta> deltas, float eta,
              ThreadPool& pool) {
  Step(SgdUpdate{theta.data(), eta}, deltas, SizeOf(theta, {}), pool);
}

void OuterNesterov(std::span<float> theta, std::span<float> velocity,
                   std::span<const WeightedDelta> deltas, float eta, float mu, ThreadPool& pool) {
  Step(NesterovUpdate{theta.data(), velocity.data(), eta, mu}, deltas, SizeOf(theta, {velocity}),
       pool);
}

void OuterAdam(std::span<float> theta, std::span<float> first, std::span<float> second,
               std::span<const WeightedDelta> deltas, const OuterAdamFactors& factors,
               ThreadPool& pool) {
  const auto t = static_cast<double>(factors.step);
  const AdamUpdate update{
      .theta = theta.data(),
      .first = first.data(),
      .second = second.data(),
      .beta1 = static_cast<float>(factors.beta1),
      .beta2 = static_cast<float>(factors.beta2),
      .step = static_cast<float>(factors.eta / (1 - std::pow(factors.beta1, t))),
      .rsqrt2 = static_cast<float>(1 / std::sqrt(1 - std::pow(factors.beta2, t))),
      .epsilon = static_cast<float>(factors.epsilon),
  };
  Step(update, deltas, SizeOf(theta, {first, second}), pool);
}

void OuterDelayedNesterov(std::span<float> theta, std::span<float> momentum, std::span<float> sum,
                          std::span<const WeightedDelta> deltas, float eta, float mu, float share,
                          bool last, ThreadPool& pool) {
  Step(DelayedUpdate{theta.data(), momentum.data(), sum.data(), eta, mu, share, last}, deltas,
       SizeOf(theta, {momentum, sum}), pool);
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
