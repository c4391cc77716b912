// Attention over keys and values that earlier passes left: NewCachedCpuBackend.

#include <cmath>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_backend.h"

namespace atl {
namespace {

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
    Keep(op.k, &kept.keys);
    Keep(op.v, &kept.values);
    if (position_ == 0) {
      CpuBackend::Run(stream, op, workspace);
    } else {
      op.Check();
      pool_.For(op.shape.heads, [&](int64_t head, int) { Attend(op, kept, head); });
    }
  }

 private:
  // Of one layer: rows of all heads' channels, by position.
  struct Kept {
    std::vector<float> keys, values;
  };

  void Keep(const Tensor& rows, std::vector<float>* kept) const {
    kept->resize(static_cast<size_t>(position_ * rows.cols));
    for (int64_t row = 0; row < rows.rows; ++row) {
      const float* from = Pointer(rows, row);
      kept->insert(kept->end(), from, from + rows.cols);
    }
  }

  void Attend(const AttentionForward& op, const Kept& kept, int64_t head) const {
    const AttentionShape& shape = op.shape;
    const int64_t width = shape.head_dim, row_width = shape.kv_heads * width;
    const int64_t offset = head / (shape.heads / shape.kv_heads) * width;
    std::vector<float> weights(static_cast<size_t>(position_ + shape.seq_len));
    for (int64_t row = 0; row < shape.seq_len; ++row) {
      const int64_t seen = position_ + row + 1;
      const float* query = Pointer(op.q, row, head * width);
      float highest = -INFINITY;
      for (int64_t p = 0; p < seen; ++p) {
        const float* key = kept.keys.data() + p * row_width + offset;
        float dot = 0;
        for (int64_t i = 0; i < width; ++i) dot += query[i] * key[i];
        weights[static_cast<size_t>(p)] = dot * shape.scale;
        highest = std::max(highest, weights[static_cast<size_t>(p)]);
      }
      float* out = Pointer(op.out, row, head * width);
      std::fill_n(out, width, 0.0f);
      float sum = 0;
      for (int64_t p = 0; p < seen; ++p) {
        const float weight = std::exp(weights[static_cast<size_t>(p)] - highest);
        const float* value = kept.values.data() + p * row_width + offset;
        sum += weight;
        for (int64_t i = 0; i < width; ++i) out[i] += weight * value[i];
      }
      for (int64_t i = 0; i < width; ++i) out[i] /= sum;
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
