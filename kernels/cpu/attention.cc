// Attention. A task is one key head of one sequence, with all query heads that read it: dk
// and dv then have one writer and need no joining. Inside a task queries are handled in blocks of
// rows; the scores of one block exist at a time, and what a mask hides is computed only in the
// 8 x 16 tiles that its edge crosses.
//
// Everything a task reads again and again is first copied into scratch memory, in the layout that
// the products below read: keys (and values, in backward) transposed, rows padded with zeros to
// whole vectors.

#include "kernels/cpu/cpu_backend.h"
#include "kernels/simd.h"

namespace atl {
namespace {

using simd::kLanes;
using simd::LoadUpTo;
using simd::Splat;

constexpr int64_t kTileRows = 8;    // rows of a product held in registers
constexpr int64_t kBlockRows = 64;  // queries whose scores are held at a time
constexpr float kMinusInfinity = -__builtin_inff();

ATOLL_INLINE int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
ATOLL_INLINE int64_t Smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Sizes of a task's scratch memory, in floats.
struct Layout {
  int64_t seq_len, head_dim;
  int64_t head_cols;     // head_dim in whole vectors
  int64_t rows;          // seq_len in whole tiles
  int64_t score_stride;  // a row of scores or of transposed keys; not a power of two, whose rows
                         // would all fall into the same few sets of the cache

  explicit Layout(const AttentionShape& s)
      : seq_len(s.seq_len),
        head_dim(s.head_dim),
        head_cols(RoundUp(s.head_dim, kLanes)),
        rows(RoundUp(s.seq_len, kTileRows)),
        score_stride(RoundUp(s.seq_len, kLanes) + kLanes) {}

  int64_t transposed() const { return head_dim * score_stride; }
  int64_t sequence() const { return rows * head_cols; }
  int64_t block() const { return kBlockRows * head_cols; }
  int64_t scores() const { return kBlockRows * score_stride; }
  int64_t forward() const { return transposed() + sequence() + 2 * block() + scores(); }
  int64_t backward() const {
    return 2 * transposed() + 3 * sequence() + 3 * block() + 2 * scores() + kBlockRows;
  }
};

// Which keys a query sees, in one sequence, and what becomes of their scores.
struct Mask {
  bool causal;
  int64_t window;
  float softcap;
  int64_t length;  // keys that exist
  int64_t seq_len;
  const int32_t* starts;  // of the queries' documents; null: there is one

  // The keys of one query: [first, end). First never falls.
  ATOLL_INLINE int64_t First(int64_t query) const {
    const int64_t start = starts == nullptr ? 0 : starts[Smaller(query, seq_len - 1)];
    return window > 0 && query + 1 - window > start ? query + 1 - window : start;
  }
  ATOLL_INLINE int64_t End(int64_t query) const {
    return causal ? Smaller(query + 1, length) : length;
  }
  // The keys that the 8 queries from `query` on need, in whole vectors.
  ATOLL_INLINE int64_t FirstOfTile(int64_t query) const { return First(query) / kLanes * kLanes; }
  ATOLL_INLINE int64_t EndOfTile(int64_t query) const {
    return causal ? RoundUp(query + kTileRows, kLanes) : RoundUp(seq_len, kLanes);
  }
};

// Where the rows of one head lie: element (t, d) at data[t * stride + d].
struct Head {
  float* data;
  int64_t stride;
};

// Rows and vectors of a tile of a product whose sums an instruction set's registers hold.
template <class V>
struct Registers;
template <>
struct Registers<simd::Avx512> {  // 32 of a vector each
  static constexpr int kRows = 8, kVectors = 2;
};
template <>
struct Registers<simd::Avx2> {  // 16 of half a vector
  static constexpr int kRows = 4, kVectors = 1;
};
template <>
struct Registers<simd::Sse> {  // 16 of a quarter
  static constexpr int kRows = 2, kVectors = 1;
};

// c[0..kRows) [kVectors * 16] = (accumulate ? c : 0) + sum over k in [k_begin, k_end) of a[row][k]
// * b[k]: the accumulators stay in registers.
template <class V, int kRows, int kVectors>
ATOLL_INLINE void ProductTile(const float* a, int64_t a_row, int64_t a_k, const float* b,
                              int64_t b_stride, float* c, int64_t c_stride, int64_t k_begin,
                              int64_t k_end, bool accumulate) {
  V sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      sums[row][i] = accumulate ? simd::Load<V>(c + row * c_stride + i * kLanes) : V{};
    }
  }
  for (int64_t k = k_begin; k < k_end; ++k) {
    V right[kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) right[i] = simd::Load<V>(b + k * b_stride + i * kLanes);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const float left = a[row * a_row + k * a_k];
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) sums[row][i] += right[i] * left;
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) simd::Store(c + row * c_stride + i * kLanes, sums[row][i]);
  }
}

// The same of kTileRows rows and any number of columns, a multiple of 16.
template <class V>
ATOLL_INLINE void Product(const float* a, int64_t a_row, int64_t a_k, const float* b,
                          int64_t b_stride, float* c, int64_t c_stride, int64_t cols,
                          int64_t k_begin, int64_t k_end, bool accumulate) {
  constexpr int kRows = Registers<V>::kRows, kVectors = Registers<V>::kVectors;
  int64_t col = 0;
  for (; col + kVectors * kLanes <= cols; col += kVectors * kLanes) {
    for (int64_t row = 0; row < kTileRows; row += kRows) {
      ProductTile<V, kRows, kVectors>(a + row * a_row, a_row, a_k, b + col, b_stride,
                                      c + row * c_stride + col, c_stride, k_begin, k_end,
                                      accumulate);
    }
  }
  if (kVectors > 1 && col < cols) {
    ProductTile<V, kRows, 1>(a, a_row, a_k, b + col, b_stride, c + col, c_stride, k_begin, k_end,
                             accumulate);
  }
}

// to[t][d] = from[begin + t][d] * factor for t < rows, zeros up to padded_rows and head_cols.
template <class V>
ATOLL_INLINE void PackRows(const Head& from, int64_t begin, int64_t rows, int64_t padded_rows,
                           const Layout& l, float factor, float* to) {
  for (int64_t t = 0; t < padded_rows; ++t) {
    for (int64_t d = 0; d < l.head_cols; d += kLanes) {
      V v{};
      if (t < rows) {
        v = LoadUpTo<V>(from.data + (begin + t) * from.stride + d, l.head_dim - d) * factor;
      }
      simd::Store(to + t * l.head_cols + d, v);
    }
  }
}

// to[d][t] = from[t][d], zeros behind the last row.
ATOLL_INLINE void PackTransposed(const Head& from, const Layout& l, float* to) {
  for (int64_t t = 0; t < l.seq_len; ++t) {
    const float* row = from.data + t * from.stride;
    for (int64_t d = 0; d < l.head_dim; ++d) to[d * l.score_stride + t] = row[d];
  }
  for (int64_t d = 0; d < l.head_dim; ++d) {
    for (int64_t t = l.seq_len; t < l.score_stride; ++t) to[d * l.score_stride + t] = 0;
  }
}

// to[begin + t][d] = from[t][d] * factor.
template <class V>
ATOLL_INLINE void UnpackRow(const float* from, float factor, const Layout& l, float* to) {
  for (int64_t d = 0; d < l.head_dim; d += kLanes) {
    simd::StoreUpTo(to + d, simd::Load<V>(from + d) * factor, l.head_dim - d);
  }
}

// scores[i][j] = a[i] . transposed[:, j] for the queries [begin, begin + padded_rows) and the keys
// that each tile of them sees.
template <class V>
ATOLL_INLINE void ScoreBlock(const float* a, const float* transposed, int64_t begin,
                             int64_t padded_rows, const Layout& l, const Mask& mask,
                             float* scores) {
  for (int64_t t = 0; t < padded_rows; t += kTileRows) {
    const int64_t first = mask.FirstOfTile(begin + t);
    Product<V>(a + t * l.head_cols, l.head_cols, 1, transposed + first, l.score_stride,
               scores + t * l.score_stride + first, l.score_stride,
               mask.EndOfTile(begin + t) - first, 0, l.head_dim, false);
  }
}

// out[i] = sum over keys j of weights[i][j] * values[j].
template <class V>
ATOLL_INLINE void WeighBlock(const float* weights, const float* values, int64_t begin,
                             int64_t padded_rows, const Layout& l, const Mask& mask, float* out) {
  for (int64_t t = 0; t < padded_rows; t += kTileRows) {
    const int64_t end = mask.causal ? Smaller(begin + t + kTileRows, l.rows) : l.rows;
    Product<V>(weights + t * l.score_stride, l.score_stride, 1, values, l.head_cols,
               out + t * l.head_cols, l.head_cols, l.head_cols, mask.FirstOfTile(begin + t), end,
               false);
  }
}

// out[j] += sum over queries i of weights[i][j] * rows[i] for all keys j that the block's queries
// see.
template <class V>
ATOLL_INLINE void ScatterBlock(const float* weights, const float* rows, int64_t begin,
                               int64_t count, const Layout& l, const Mask& mask, float* out) {
  const int64_t keys = mask.causal ? begin + count : l.seq_len;
  for (int64_t j = mask.FirstOfTile(begin); j < keys; j += kTileRows) {
    const int64_t first = mask.causal && j > begin ? j - begin : 0;
    // Behind it no query sees any key of the tile, and not all of its scores are there.
    int64_t end = count;
    while (end > first && mask.First(begin + end - 1) >= j + kTileRows) --end;
    if (first >= end) continue;
    Product<V>(weights + j, 1, l.score_stride, rows, l.head_cols, out + j * l.head_cols,
               l.head_cols, l.head_cols, first, end, true);
  }
}

// Keys that a mask leaves of one row: [first, end), of which [begin, padded) are in memory.
struct RowKeys {
  int64_t begin, first, end, padded;
};

ATOLL_INLINE RowKeys GetRowKeys(const Mask& mask, int64_t query) {
  const int64_t tile = query / kTileRows * kTileRows;
  return {mask.FirstOfTile(tile), mask.First(query), mask.End(query), mask.EndOfTile(tile)};
}

// Lanes of the keys [j, j + 16) that the row sees, `otherwise` elsewhere.
template <class V>
ATOLL_INLINE V KeepSeen(const V& v, int64_t j, const RowKeys& keys, float otherwise) {
  const V kept = simd::KeepFirst(v, keys.end - j, otherwise);
  return j < keys.first ? simd::KeepFrom(kept, keys.first - j, otherwise) : kept;
}

template <class V>
ATOLL_INLINE V Capped(const V& score, float cap) {
  return cap > 0 ? cap * simd::Tanh(score / cap) : score;
}

// A row of scores becomes exp(score - largest) over its keys, zeros around them.
template <class V>
ATOLL_INLINE void ExpRow(float* scores, const RowKeys& keys, float cap, float* largest,
                         float* sum) {
  V most = Splat<V>(kMinusInfinity);
  for (int64_t j = keys.begin; j < keys.end; j += kLanes) {
    const V score = Capped(simd::Load<V>(scores + j), cap);
    if (cap > 0) simd::Store(scores + j, score);
    most = simd::Max(KeepSeen(score, j, keys, kMinusInfinity), most);
  }
  *largest = simd::Largest(most);
  V sums{};
  for (int64_t j = keys.begin; j < keys.padded; j += kLanes) {
    const V e = KeepSeen(simd::Exp(simd::Load<V>(scores + j) - *largest), j, keys, 0.0f);
    simd::Store(scores + j, e);
    sums += e;
  }
  *sum = simd::Sum(sums);
}

// Scores become probabilities p = exp(score - lse), and dp becomes ds = p * (dp - delta).
template <class V>
ATOLL_INLINE void SoftmaxBackwardRow(float* scores, float* dp, const RowKeys& keys, float cap,
                                     float lse, float delta) {
  for (int64_t j = keys.begin; j < keys.padded; j += kLanes) {
    const V score = Capped(simd::Load<V>(scores + j), cap);
    const V p = KeepSeen(simd::Exp(score - lse), j, keys, 0.0f);
    simd::Store(scores + j, p);
    V ds = p * (simd::Load<V>(dp + j) - delta);
    if (cap > 0) ds *= 1.0f - score / cap * (score / cap);
    simd::Store(dp + j, ds);
  }
}

// One query head: keys_t and values are packed already.
ATOLL_KERNEL(ForwardHead,
             (const Head& q, const Head& out, float* lse, float scale, const Layout& l,
              const Mask& mask, const float* keys_t, const float* values, float* scratch),
             (q, out, lse, scale, l, mask, keys_t, values, scratch)) {
  float* queries = scratch;
  float* results = queries + l.block();
  float* scores = results + l.block();
  for (int64_t begin = 0; begin < l.seq_len; begin += kBlockRows) {
    const int64_t rows = Smaller(kBlockRows, l.seq_len - begin);
    const int64_t padded_rows = RoundUp(rows, kTileRows);
    PackRows<V>(q, begin, rows, padded_rows, l, scale, queries);
    ScoreBlock<V>(queries, keys_t, begin, padded_rows, l, mask, scores);
    float sums[kBlockRows];
    for (int64_t t = 0; t < padded_rows; ++t) {
      float largest;
      ExpRow<V>(scores + t * l.score_stride, GetRowKeys(mask, begin + t), mask.softcap, &largest,
                &sums[t]);
      if (t < rows) lse[begin + t] = largest + __builtin_logf(sums[t]);
    }
    WeighBlock<V>(scores, values, begin, padded_rows, l, mask, results);
    for (int64_t t = 0; t < rows; ++t) {
      UnpackRow<V>(results + t * l.head_cols, 1.0f / sums[t], l,
                   out.data + (begin + t) * out.stride);
    }
  }
}

// Arguments that a key head's query heads share in backward.
struct BackwardShared {
  const float* keys_t;
  const float* values_t;
  const float* keys;
  float* dk;  // sums over the query heads
  float* dv;
};

ATOLL_KERNEL(BackwardHead,
             (const Head& q, const Head& out, const Head& dout, const Head& dq, const float* lse,
              float scale, const Layout& l, const Mask& mask, const BackwardShared& shared,
              float* scratch),
             (q, out, dout, dq, lse, scale, l, mask, shared, scratch)) {
  float* queries = scratch;
  float* gradients = queries + l.block();
  float* results = gradients + l.block();
  float* scores = results + l.block();
  float* dp = scores + l.scores();
  float* deltas = dp + l.scores();
  for (int64_t begin = 0; begin < l.seq_len; begin += kBlockRows) {
    const int64_t rows = Smaller(kBlockRows, l.seq_len - begin);
    const int64_t padded_rows = RoundUp(rows, kTileRows);
    PackRows<V>(q, begin, rows, padded_rows, l, scale, queries);
    PackRows<V>(dout, begin, rows, padded_rows, l, 1.0f, gradients);
    for (int64_t t = 0; t < padded_rows; ++t) {
      V dots{};
      for (int64_t d = 0; t < rows && d < l.head_dim; d += kLanes) {
        dots += simd::Load<V>(gradients + t * l.head_cols + d) *
                LoadUpTo<V>(out.data + (begin + t) * out.stride + d, l.head_dim - d);
      }
      deltas[t] = simd::Sum(dots);
    }
    ScoreBlock<V>(queries, shared.keys_t, begin, padded_rows, l, mask, scores);
    ScoreBlock<V>(gradients, shared.values_t, begin, padded_rows, l, mask, dp);
    for (int64_t t = 0; t < padded_rows; ++t) {
      SoftmaxBackwardRow<V>(scores + t * l.score_stride, dp + t * l.score_stride,
                            GetRowKeys(mask, begin + t), mask.softcap,
                            t < rows ? lse[begin + t] : 0.0f, deltas[t]);
    }
    WeighBlock<V>(dp, shared.keys, begin, padded_rows, l, mask, results);
    for (int64_t t = 0; t < rows; ++t) {
      UnpackRow<V>(results + t * l.head_cols, scale, l, dq.data + (begin + t) * dq.stride);
    }
    ScatterBlock<V>(dp, queries, begin, rows, l, mask, shared.dk);
    ScatterBlock<V>(scores, gradients, begin, rows, l, mask, shared.dv);
  }
}

ATOLL_KERNEL(PackHeadRows, (const Head& from, const Layout& l, float* to), (from, l, to)) {
  PackRows<V>(from, 0, l.seq_len, l.rows, l, 1.0f, to);
}

ATOLL_KERNEL(PackHeadTransposed, (const Head& from, const Layout& l, float* to), (from, l, to)) {
  PackTransposed(from, l, to);
}

ATOLL_KERNEL(UnpackHead, (const float* from, const Layout& l, const Head& to), (from, l, to)) {
  for (int64_t t = 0; t < l.seq_len; ++t) {
    UnpackRow<V>(from + t * l.head_cols, 1.0f, l, to.data + t * to.stride);
  }
}

Head SelectHead(const Tensor& x, const AttentionShape& shape, int64_t sequence, int64_t head) {
  return {Pointer(x, sequence * shape.seq_len, head * shape.head_dim), x.stride};
}

Mask MakeMask(const AttentionShape& shape, const Tensor& lengths, const Tensor& starts,
              int64_t sequence) {
  const int64_t length = lengths.present() ? lengths.as<int32_t>()[sequence] : shape.seq_len;
  const int32_t* own = starts.present() ? starts.as<int32_t>() + sequence * shape.seq_len : nullptr;
  return {shape.causal, shape.window, shape.softcap, length, shape.seq_len, own};
}

}  // namespace

int64_t CpuBackend::WorkspaceBytes(const AttentionForward& op) const {
  return pool_.threads() * Layout(op.shape).forward() * sizeof(float);
}

void CpuBackend::Run(Stream&, const AttentionForward& op, Workspace workspace) {
  op.Check();
  const AttentionShape& s = op.shape;
  const Layout l(s);
  float* scratch = Scratch<float>(workspace, pool_.threads() * l.forward());
  const int64_t group = s.heads / s.kv_heads;
  pool_.For(s.batch * s.kv_heads, [&](int64_t task, int thread) {
    const int64_t b = task / s.kv_heads, kv_head = task % s.kv_heads;
    const Mask mask = MakeMask(s, op.lengths, op.starts, b);
    float* keys_t = scratch + thread * l.forward();
    float* values = keys_t + l.transposed();
    PackHeadTransposed(SelectHead(op.k, s, b, kv_head), l, keys_t);
    PackHeadRows(SelectHead(op.v, s, b, kv_head), l, values);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      ForwardHead(SelectHead(op.q, s, b, head), SelectHead(op.out, s, b, head),
                  Pointer(op.lse, b * s.heads + head), s.scale, l, mask, keys_t, values,
                  values + l.sequence());
    }
  });
}

int64_t CpuBackend::WorkspaceBytes(const AttentionBackward& op) const {
  return pool_.threads() * Layout(op.shape).backward() * sizeof(float);
}

void CpuBackend::Run(Stream&, const AttentionBackward& op, Workspace workspace) {
  op.Check();
  const AttentionShape& s = op.shape;
  const Layout l(s);
  float* scratch = Scratch<float>(workspace, pool_.threads() * l.backward());
  const int64_t group = s.heads / s.kv_heads;
  pool_.For(s.batch * s.kv_heads, [&](int64_t task, int thread) {
    const int64_t b = task / s.kv_heads, kv_head = task % s.kv_heads;
    const Mask mask = MakeMask(s, op.lengths, op.starts, b);
    float* keys_t = scratch + thread * l.backward();
    float* values_t = keys_t + l.transposed();
    float* keys = values_t + l.transposed();
    float* dk = keys + l.sequence();
    float* dv = dk + l.sequence();
    PackHeadTransposed(SelectHead(op.k, s, b, kv_head), l, keys_t);
    PackHeadTransposed(SelectHead(op.v, s, b, kv_head), l, values_t);
    PackHeadRows(SelectHead(op.k, s, b, kv_head), l, keys);
    std::fill(dk, dk + 2 * l.sequence(), 0.0f);
    const BackwardShared shared = {keys_t, values_t, keys, dk, dv};
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      BackwardHead(SelectHead(op.q, s, b, head), SelectHead(op.out, s, b, head),
                   SelectHead(op.dout, s, b, head), SelectHead(op.dq, s, b, head),
                   Pointer(op.lse, b * s.heads + head), s.scale, l, mask, shared,
                   dv + l.sequence());
    }
    UnpackHead(dk, l, SelectHead(op.dk, s, b, kv_head));
    UnpackHead(dv, l, SelectHead(op.dv, s, b, kv_head));
  });
}

}  // namespace atl
