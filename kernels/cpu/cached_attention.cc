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
using simd::V16;

// One query of one head: `keys` and `values` are rows of `width` floats, `scores` has room for
// `count` floats.
ATOLL_KERNEL(AttendOne,
             (const float* query, const float* keys, const float* values, int64_t count,
              int64_t width, float scale, float softcap, float* scores, float* out),
             (query, keys, values, count, width, scale, softcap, scores, out)) {
  // Four positions at a time: their sums do not wait for each other.
  for (int64_t p = 0; p < count; p += 4) {
    const int64_t last = count - 1;
    const float* a = keys + p * width;
    const float* b = keys + std::min(p + 1, last) * width;
    const float* c = keys + std::min(p + 2, last) * width;
    const float* d = keys + std::min(p + 3, last) * width;
    V16 dot_a{}, dot_b{}, dot_c{}, dot_d{};
    for (int64_t i = 0; i < width; i += kLanes) {
      const V16 part = simd::LoadUpTo(query + i, width - i);
      dot_a += part * simd::LoadUpTo(a + i, width - i);
      dot_b += part * simd::LoadUpTo(b + i, width - i);
      dot_c += part * simd::LoadUpTo(c + i, width - i);
      dot_d += part * simd::LoadUpTo(d + i, width - i);
    }
    scores[p] = simd::Sum(dot_a) * scale;
    if (p + 1 < count) scores[p + 1] = simd::Sum(dot_b) * scale;
    if (p + 2 < count) scores[p + 2] = simd::Sum(dot_c) * scale;
    if (p + 3 < count) scores[p + 3] = simd::Sum(dot_d) * scale;
  }
  V16 highest = simd::Splat(-INFINITY);
  for (int64_t p = 0; p < count; p += kLanes) {
    V16 score = simd::LoadUpTo(scores + p, count - p);
    if (softcap > 0) score = softcap * simd::Tanh(score / softcap);
    simd::StoreUpTo(scores + p, score, count - p);
    highest = simd::Max(highest, simd::KeepFirst(score, count - p, -INFINITY));
  }
  const float largest = simd::Largest(highest);
  V16 sums{};
  for (int64_t p = 0; p < count; p += kLanes) {
    const V16 weight = simd::Exp(simd::LoadUpTo(scores + p, count - p) - largest);
    simd::StoreUpTo(scores + p, weight, count - p);
    sums += simd::KeepFirst(weight, count - p, 0);
  }
  const float sum = simd::Sum(sums);
  // So many channels at a time that their sums stay in registers.
  constexpr int64_t kBlock = 4 * kLanes;
  int64_t i = 0;
  for (; i + kBlock <= width; i += kBlock) {
    V16 out_a{}, out_b{}, out_c{}, out_d{};
    for (int64_t p = 0; p < count; ++p) {
      const float* value = values + p * width + i;
      out_a += scores[p] * simd::Load(value);
      out_b += scores[p] * simd::Load(value + kLanes);
      out_c += scores[p] * simd::Load(value + 2 * kLanes);
      out_d += scores[p] * simd::Load(value + 3 * kLanes);
    }
    simd::Store(out + i, out_a / sum);
    simd::Store(out + i + kLanes, out_b / sum);
    simd::Store(out + i + 2 * kLanes, out_c / sum);
    simd::Store(out + i + 3 * kLanes, out_d / sum);
  }
  for (; i < width; i += kLanes) {
    V16 part{};
    for (int64_t p = 0; p < count; ++p) {
      part += scores[p] * simd::LoadUpTo(values + p * width + i, width - i);
    }
    simd::StoreUpTo(out + i, part / sum, width - i);
  }
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
    ATOLL_CHECK(op.shape.batch == 1, "a cache is of one sequence");
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
  // Of one layer, for each key head: rows of its channels, by position.
  struct Kept {
    std::vector<std::vector<float>> keys, values;
  };

  void Keep(const Tensor& rows, const AttentionShape& shape,
            std::vector<std::vector<float>>* kept) const {
    kept->resize(static_cast<size_t>(shape.kv_heads));
    for (int64_t head = 0; head < shape.kv_heads; ++head) {
      std::vector<float>& own = (*kept)[static_cast<size_t>(head)];
      own.resize(static_cast<size_t>(position_ * shape.head_dim));
      for (int64_t row = 0; row < rows.rows; ++row) {
        const float* from = Pointer(rows, row, head * shape.head_dim);
        own.insert(own.end(), from, from + shape.head_dim);
      }
    }
  }

  void Attend(const AttentionForward& op, const Kept& kept, int64_t head) const {
    const AttentionShape& shape = op.shape;
    const int64_t width = shape.head_dim;
    const auto kv_head = static_cast<size_t>(head / (shape.heads / shape.kv_heads));
    std::vector<float> scores(static_cast<size_t>(position_ + shape.seq_len));
    for (int64_t row = 0; row < shape.seq_len; ++row) {
      const int64_t end = position_ + row + 1;
      const int64_t begin = shape.window > 0 ? std::max<int64_t>(0, end - shape.window) : 0;
      AttendOne(Pointer(op.q, row, head * width), kept.keys[kv_head].data() + begin * width,
                kept.values[kv_head].data() + begin * width, end - begin, width, shape.scale,
                shape.softcap, scores.data(), Pointer(op.out, row, head * width));
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
