// Attention over keys and values that earlier passes left: NewCachedCpuBackend.

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/simd.h"

namespace atl {
namespace {

using simd::kLanes;

int64_t RoundUp(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// scores[p] = query . keys[p] * scale for kRows rows of `width` floats.
template <class V, int kRows>
ATOLL_INLINE void Score(const float* query, const float* keys, int64_t width, float scale,
                        float* scores) {
  V sums[kRows] = {};
  for (int64_t i = 0; i < width; i += kLanes) {
    const V right = simd::Load<V>(query + i);
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      sums[row] += right * simd::Load<V>(keys + row * width + i);
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) scores[row] = simd::Sum(sums[row]) * scale;
}

// out = sum over p of weights[p] * values[p] for kVectors * 16 channels of rows of `width` floats.
template <class V, int kVectors>
ATOLL_INLINE void Weigh(const float* weights, const float* values, int64_t count, int64_t width,
                        float sum, float* out) {
  V sums[kVectors] = {};
  for (int64_t p = 0; p < count; ++p) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      sums[i] += weights[p] * simd::Load<V>(values + p * width + i * kLanes);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) simd::Store(out + i * kLanes, sums[i] / sum);
}

// One query of one head. Rows have `width` floats, a multiple of 16; `scores` has room for `count`
// floats, rounded up to such a multiple.
ATOLL_KERNEL(AttendOne,
             (const float* query, const float* keys, const float* values, int64_t count,
              int64_t width, float scale, float softcap, float* scores, float* out),
             (query, keys, values, count, width, scale, softcap, scores, out)) {
  constexpr int kRows = 4;  // at a time: their sums do not wait for each other
  int64_t p = 0;
  for (; p + kRows <= count; p += kRows) {
    Score<V, kRows>(query, keys + p * width, width, scale, scores + p);
  }
  for (; p < count; ++p) Score<V, 1>(query, keys + p * width, width, scale, scores + p);
  V highest = simd::Splat<V>(-INFINITY);
  for (int64_t i = 0; i < count; i += kLanes) {
    V score = simd::Load<V>(scores + i);
    if (softcap > 0) score = softcap * simd::Tanh(score / softcap);
    simd::Store(scores + i, simd::KeepFirst(score, count - i, -INFINITY));
    highest = simd::Max(highest, simd::Load<V>(scores + i));
  }
  const float largest = simd::Largest(highest);
  V sums{};
  for (int64_t i = 0; i < count; i += kLanes) {
    const V weight = simd::KeepFirst(simd::Exp(simd::Load<V>(scores + i) - largest), count - i, 0);
    simd::Store(scores + i, weight);
    sums += weight;
  }
  const float sum = simd::Sum(sums);
  // The number of channels at a time, so that their sums stay in registers.
  constexpr int kMost = 4;
  int64_t i = 0;
  for (; i + kMost * kLanes <= width; i += kMost * kLanes) {
    Weigh<V, kMost>(scores, values + i, count, width, sum, out + i);
  }
  for (; i < width; i += kLanes) Weigh<V, 1>(scores, values + i, count, width, sum, out + i);
}

class CachedBackend final : public CpuBackend, public SequenceCache {
 public:
  explicit CachedBackend(int threads) : CpuBackend(threads, 0) {}

  void StartPass(int64_t position) override {
    position_ = position;
    next_ = 0;
  }

  using CpuBackend::Run;
  void Run(Stream& stream, const EmbeddingForward& op) override {
    EmbeddingForward moved = op;
    moved.position_offset += position_;
    CpuBackend::Run(stream, moved);
  }
  void Run(Stream& stream, const Rope& op) override {
    Rope moved = op;
    moved.position_offset += position_;
    CpuBackend::Run(stream, moved);
  }
  void Run(Stream& stream, const AttentionForward& op, Workspace workspace) override {
    ATOLL_CHECK(op.shape.batch == 1 && !op.starts.present(), "a cache is of one document");
    if (next_ == kept_.size()) kept_.emplace_back();
    Kept& kept = kept_[next_++];
    Keep(op.k, op.shape, &kept.keys);
    Keep(op.v, op.shape, &kept.values);
    if (position_ == 0) {
      CpuBackend::Run(stream, op, workspace);
    } else {
      op.Check();
      pool_.For(op.shape.heads, [&](int64_t head, int) { Attend(op, kept, head); });
    }
  }

 private:
  // Keys and values of one layer, for each key head: rows of its channels, by position, filled up
  // with zeroes to whole vectors.
  struct Kept {
    std::vector<std::vector<float>> keys, values;
  };

  void Keep(const Tensor& rows, const AttentionShape& shape,
            std::vector<std::vector<float>>* kept) const {
    const auto width = static_cast<size_t>(RoundUp(shape.head_dim));
    kept->resize(static_cast<size_t>(shape.kv_heads));
    for (int64_t head = 0; head < shape.kv_heads; ++head) {
      std::vector<float>& own = (*kept)[static_cast<size_t>(head)];
      own.resize(static_cast<size_t>(position_) * width);
      for (int64_t row = 0; row < rows.rows; ++row) {
        const float* from = Pointer(rows, row, head * shape.head_dim);
        own.insert(own.end(), from, from + shape.head_dim);
        own.resize(static_cast<size_t>(position_ + row + 1) * width);
      }
    }
  }

  void Attend(const AttentionForward& op, const Kept& kept, int64_t head) const {
    const AttentionShape& shape = op.shape;
    const int64_t width = RoundUp(shape.head_dim);
    const auto kv_head = static_cast<size_t>(head / (shape.heads / shape.kv_heads));
    // A query and its result in whole vectors, and scores.
    std::vector<float> scratch(static_cast<size_t>(2 * width + RoundUp(position_ + shape.seq_len)));
    float* const query = scratch.data();
    float* const result = query + width;
    for (int64_t row = 0; row < shape.seq_len; ++row) {
      const int64_t end = position_ + row + 1;
      const int64_t begin = shape.window > 0 ? std::max<int64_t>(0, end - shape.window) : 0;
      std::copy_n(Pointer(op.q, row, head * shape.head_dim), shape.head_dim, query);
      AttendOne(query, kept.keys[kv_head].data() + begin * width,
                kept.values[kv_head].data() + begin * width, end - begin, width, shape.scale,
                shape.softcap, result + width, result);
      std::copy_n(result, shape.head_dim, Pointer(op.out, row, head * shape.head_dim));
    }
  }

  int64_t position_ = 0;  // of the pass's first token
  size_t next_ = 0;       // attention call of this pass
  std::vector<Kept> kept_;
};

}  // namespace

CachedCpuBackend NewCachedCpuBackend(int threads) {
  auto backend = std::make_unique<CachedBackend>(threads);
  SequenceCache* cache = backend.get();
  return {std::move(backend), cache};
}

}  // namespace atl
