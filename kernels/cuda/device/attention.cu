// Attention for every shape and type that neither cuDNN nor attention_mma.cu takes: tiles of
// queries and keys in shared memory, products by FMA in fp32. Forward keeps running maxima and sums
// (online softmax); backward computes the probabilities again from lse, once for dk and dv with
// keys stationary and once for dq with queries stationary, so that every output has one
// writer.
//
// With N tokens of T-token sequences, H heads of D channels (KV key heads), s bytes an element:
//   AttentionForward   2 N T H D FLOP (two products over half a square each), 2 N (H + KV) D s
//   bytes AttentionBackward  7 N T H D FLOP (seven), 4 N (H + KV) D s bytes and delta's 8 N H
// Keys and values are read again for every tile of queries, from the second-level cache.

#include <type_traits>

#include "kernels/cuda/device/attention_mask.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/launchers.h"

namespace atl::ATOLL_DEVICE {
namespace {

constexpr int kDeltaThreads = 256;
// Shared memory that a block may have on every device: sm_75's limit.
constexpr int64_t kSharedBytesMax = int64_t{64} << 10;

// AttentionShape in fewer registers.
struct Shape {
  int seq_len, heads, kv_heads, head_dim;
  float scale;
};

Shape MakeShape(const AttentionShape& s) {
  ATOLL_CHECK(s.seq_len <= 1 << 24 && s.heads <= 1 << 16, "sequences too long for one kernel");
  return {static_cast<int>(s.seq_len), static_cast<int>(s.heads), static_cast<int>(s.kv_heads),
          static_cast<int>(s.head_dim), s.scale};
}

template <typename T, bool kPlain>
struct Operands {
  Shape shape;
  AttentionMask<kPlain> mask;
  View<T> q, k, v, out, dout, dq, dk, dv;
  View<float> lse;
  View<float> delta;  // [batch * heads, T]: dot products of dout and out

  __device__ int64_t QueryRow(int batch, int t) const { return int64_t{batch} * shape.seq_len + t; }
  // Row of lse and delta.
  __device__ int64_t StatsRow(int batch, int head) const {
    return int64_t{batch} * shape.heads + head;
  }
  __device__ int KeyHead(int head) const { return head / (shape.heads / shape.kv_heads); }
};

// Tiles are kTile rows of kWidth floats, zeroes beyond the sequence and the head. Threads stand
// kSide x kSide; thread (ty, tx) owns rows ty * kRows + r, and columns tx + kSide c.
template <int side, int rows, int columns>
struct Tile {
  static constexpr int kSide = side, kRows = rows, kColumns = columns;
  static constexpr int kThreads = kSide * kSide;
  static constexpr int kTile = kSide * kRows;
  static constexpr int kWidth = kSide * kColumns;
  static constexpr int kStride = kWidth + 1;  // odd: lanes that read one column meet no bank twice
  static constexpr int kFloats = kTile * kStride;
  static constexpr int kSquareStride = kTile + 1;
  static constexpr int kSquare = kTile * kSquareStride;

  template <typename T>
  __device__ static void Load(const View<T>& x, int64_t row, int rows_left, int col, int cols,
                              float* tile) {
    for (int i = threadIdx.x; i < kTile * kWidth; i += kThreads) {
      const int r = i / kWidth, c = i % kWidth;
      tile[r * kStride + c] = r < rows_left && c < cols ? ToFloat(x.Row(row + r)[col + c]) : 0.0f;
    }
  }

  // s[r][c] = a's row ty * kRows + r times b's row tx + 16 c.
  __device__ static void Multiply(const float* a, const float* b, float (&s)[kRows][kRows]) {
    const int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kRows; ++c) s[r][c] = 0.0f;
    }
#pragma unroll 8
    for (int d = 0; d < kWidth; ++d) {
      float left[kRows], right[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) left[r] = a[(ty * kRows + r) * kStride + d];
#pragma unroll
      for (int c = 0; c < kRows; ++c) right[c] = b[(tx + kSide * c) * kStride + d];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int c = 0; c < kRows; ++c) s[r][c] += left[r] * right[c];
      }
    }
  }

  // sum[r][j] += square's row (or column, if transposed) ty * kRows + r times tile's columns.
  template <bool kTransposed>
  __device__ static void Accumulate(const float* square, const float* tile,
                                    float (&sum)[kRows][kColumns]) {
    const int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
#pragma unroll 4
    for (int i = 0; i < kTile; ++i) {
      float weight[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int own = ty * kRows + r;
        weight[r] = kTransposed ? square[i * kSquareStride + own] : square[own * kSquareStride + i];
      }
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const float x = tile[i * kStride + tx + kSide * j];
#pragma unroll
        for (int r = 0; r < kRows; ++r) sum[r][j] += weight[r] * x;
      }
    }
  }

  template <typename T>
  __device__ static void StoreRows(const float (&sum)[kRows][kColumns], const View<T>& x,
                                   int64_t row, int rows_left, int col, int cols) {
    const int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (ty * kRows + r >= rows_left) continue;
      T* to = x.Row(row + ty * kRows + r) + col;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        if (tx + kSide * j < cols) Put(to + tx + kSide * j, sum[r][j]);
      }
    }
  }
};

// Block (tile of queries, head, sequence).
template <typename T, bool kPlain, typename Tiles>
__global__ void __launch_bounds__(Tiles::kThreads, 2) ForwardKernel(const Operands<T, kPlain> a) {
  constexpr int kSide = Tiles::kSide;
  constexpr int kRows = Tiles::kRows, kColumns = Tiles::kColumns;
  ATOLL_DYNAMIC_SHARED(float, shared);
  float *queries = shared, *keys = queries + Tiles::kFloats, *square = keys + Tiles::kFloats;
  const int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
  const int first = blockIdx.x * Tiles::kTile, head = blockIdx.y, batch = blockIdx.z;
  const int head_dim = a.shape.head_dim, seq_len = a.shape.seq_len;
  const int key_col = a.KeyHead(head) * head_dim;
  Tiles::Load(a.q, a.QueryRow(batch, first), seq_len - first, head * head_dim, head_dim, queries);
  float largest[kRows], total[kRows], out[kRows][kColumns] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) largest[r] = -INFINITY, total[r] = 0.0f;
  const SequenceKeys keys_there = a.mask.Keys(batch);
  const int end = a.mask.EndKey(first, Tiles::kTile, keys_there);
  for (int key = a.mask.FirstKey(first, Tiles::kTile, keys_there); key < end; key += Tiles::kTile) {
    Tiles::Load(a.k, a.QueryRow(batch, key), seq_len - key, key_col, head_dim, keys);
    __syncthreads();
    float s[kRows][kRows];
    Tiles::Multiply(queries, keys, s);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int t = first + ty * kRows + r;
      float top = -INFINITY;
#pragma unroll
      for (int c = 0; c < kRows; ++c) {
        const bool visible = a.mask.Sees(t, key + tx + kSide * c, keys_there);
        s[r][c] = visible ? a.mask.Cap(s[r][c] * a.shape.scale).score : -INFINITY;
        top = fmaxf(top, s[r][c]);
      }
      top = fmaxf(largest[r], GroupReduce<kSide>(top, Max()));
      const float base = a.mask.Base(top);  // kPlain: key `key` is visible to all
      const float shrink = expf(largest[r] - base);
      largest[r] = top;
      float sum = 0.0f;
#pragma unroll
      for (int c = 0; c < kRows; ++c) {
        const float p = expf(s[r][c] - base);
        sum += p;
        square[(ty * kRows + r) * Tiles::kSquareStride + tx + kSide * c] = p;
      }
      total[r] = total[r] * shrink + GroupReduce<kSide>(sum, Sum());
#pragma unroll
      for (int j = 0; j < kColumns; ++j) out[r][j] *= shrink;
    }
    __syncthreads();  // all have read the keys: values take their place
    Tiles::Load(a.v, a.QueryRow(batch, key), seq_len - key, key_col, head_dim, keys);
    __syncthreads();
    Tiles::template Accumulate<false>(square, keys, out);
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int t = first + ty * kRows + r;
    if (tx == 0 && t < seq_len) {
      a.lse.Row(a.StatsRow(batch, head))[t] = largest[r] + logf(total[r]);
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) out[r][j] /= total[r];
  }
  Tiles::StoreRows(out, a.out, a.QueryRow(batch, first), seq_len - first, head * head_dim,
                   head_dim);
}

// One warp per query and head.
template <typename T, bool kPlain>
__global__ void __launch_bounds__(kDeltaThreads)
    DeltaKernel(const Operands<T, kPlain> a, int64_t count) {
  const int64_t i = (int64_t{blockIdx.x} * kDeltaThreads + threadIdx.x) / kWarp;
  const int lane = threadIdx.x % kWarp;
  float sum = 0.0f;
  const int heads = a.shape.heads, head = static_cast<int>(i % heads);
  const int64_t row = i / heads;
  if (i < count) {
    const int64_t col = int64_t{head} * a.shape.head_dim;
    for (int d = lane; d < a.shape.head_dim; d += kWarp) {
      sum += ToFloat(a.dout.Row(row)[col + d]) * ToFloat(a.out.Row(row)[col + d]);
    }
  }
  sum = GroupReduce<kWarp>(sum, Sum());
  const int seq_len = a.shape.seq_len;
  if (i < count && lane == 0) {
    a.delta.Row(a.StatsRow(static_cast<int>(row / seq_len), head))[row % seq_len] = sum;
  }
}

// Probabilities p and the scores' gradients ds of a tile of queries and a tile of keys,
// [query][key] in shared memory (p only if wanted).
template <typename Tiles, typename T, bool kPlain>
__device__ inline void Gradients(const Operands<T, kPlain>& a, int64_t stats, int query, int key,
                                 const SequenceKeys& keys_there, const float* queries,
                                 const float* keys, const float* douts, const float* values,
                                 float* p_square, float* ds_square) {
  constexpr int kSide = Tiles::kSide, kRows = Tiles::kRows;
  const int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
  float s[kRows][kRows], dp[kRows][kRows];
  Tiles::Multiply(queries, keys, s);
  Tiles::Multiply(douts, values, dp);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int t = query + ty * kRows + r;
    const bool inside = t < a.shape.seq_len;
    const float lse = inside ? a.lse.Row(stats)[t] : 0.0f,
                delta = inside ? a.delta.Row(stats)[t] : 0.0f;
#pragma unroll
    for (int c = 0; c < kRows; ++c) {
      const bool visible = inside && a.mask.Sees(t, key + tx + kSide * c, keys_there);
      const CappedScore capped = a.mask.Cap(s[r][c] * a.shape.scale);
      const float p = visible ? expf(capped.score - lse) : 0.0f;
      const int at = (ty * kRows + r) * Tiles::kSquareStride + tx + kSide * c;
      if (p_square != nullptr) p_square[at] = p;
      ds_square[at] = a.shape.scale * p * (dp[r][c] - delta) * capped.slope;
    }
  }
}

// Block (tile of keys, key head, sequence): all queries that see them, of all heads that share
// them.
template <typename T, bool kPlain, typename Tiles>
__global__ void __launch_bounds__(Tiles::kThreads, 2)
    KeyGradientKernel(const Operands<T, kPlain> a) {
  constexpr int kRows = Tiles::kRows, kColumns = Tiles::kColumns;
  ATOLL_DYNAMIC_SHARED(float, shared);
  float *keys = shared, *values = keys + Tiles::kFloats, *queries = values + Tiles::kFloats;
  float *douts = queries + Tiles::kFloats, *p = douts + Tiles::kFloats, *ds = p + Tiles::kSquare;
  const int key = blockIdx.x * Tiles::kTile, batch = blockIdx.z;
  const int head_dim = a.shape.head_dim, seq_len = a.shape.seq_len;
  const int key_head = blockIdx.y, key_col = key_head * head_dim;
  const int group = a.shape.heads / a.shape.kv_heads;
  Tiles::Load(a.k, a.QueryRow(batch, key), seq_len - key, key_col, head_dim, keys);
  Tiles::Load(a.v, a.QueryRow(batch, key), seq_len - key, key_col, head_dim, values);
  float dk[kRows][kColumns] = {}, dv[kRows][kColumns] = {};
  const SequenceKeys keys_there = a.mask.Keys(batch);
  const int end = a.mask.EndQuery(key, Tiles::kTile, keys_there);
  for (int head = key_head * group; head < (key_head + 1) * group; ++head) {
    for (int query = a.mask.FirstQuery(key); query < end; query += Tiles::kTile) {
      const int64_t row = a.QueryRow(batch, query);
      const int left = seq_len - query;
      Tiles::Load(a.q, row, left, head * head_dim, head_dim, queries);
      Tiles::Load(a.dout, row, left, head * head_dim, head_dim, douts);
      __syncthreads();
      Gradients<Tiles>(a, a.StatsRow(batch, head), query, key, keys_there, queries, keys, douts,
                       values, p, ds);
      __syncthreads();
      Tiles::template Accumulate<true>(p, douts, dv);
      Tiles::template Accumulate<true>(ds, queries, dk);
      __syncthreads();
    }
  }
  const int64_t row = a.QueryRow(batch, key);
  const int left = seq_len - key;
  Tiles::StoreRows(dk, a.dk, row, left, key_col, head_dim);
  Tiles::StoreRows(dv, a.dv, row, left, key_col, head_dim);
}

// Block (tile of queries, head, sequence).
template <typename T, bool kPlain, typename Tiles>
__global__ void __launch_bounds__(Tiles::kThreads, 2)
    QueryGradientKernel(const Operands<T, kPlain> a) {
  constexpr int kRows = Tiles::kRows, kColumns = Tiles::kColumns;
  ATOLL_DYNAMIC_SHARED(float, shared);
  float *keys = shared, *values = keys + Tiles::kFloats, *queries = values + Tiles::kFloats;
  float *douts = queries + Tiles::kFloats, *ds = douts + Tiles::kFloats;
  const int query = blockIdx.x * Tiles::kTile, head = blockIdx.y, batch = blockIdx.z;
  const int head_dim = a.shape.head_dim, seq_len = a.shape.seq_len;
  const int key_col = a.KeyHead(head) * head_dim, left = seq_len - query;
  const int64_t row = a.QueryRow(batch, query);
  Tiles::Load(a.q, row, left, head * head_dim, head_dim, queries);
  Tiles::Load(a.dout, row, left, head * head_dim, head_dim, douts);
  float dq[kRows][kColumns] = {};
  const SequenceKeys keys_there = a.mask.Keys(batch);
  const int end = a.mask.EndKey(query, Tiles::kTile, keys_there);
  for (int key = a.mask.FirstKey(query, Tiles::kTile, keys_there); key < end; key += Tiles::kTile) {
    Tiles::Load(a.k, a.QueryRow(batch, key), seq_len - key, key_col, head_dim, keys);
    Tiles::Load(a.v, a.QueryRow(batch, key), seq_len - key, key_col, head_dim, values);
    __syncthreads();
    Gradients<Tiles>(a, a.StatsRow(batch, head), query, key, keys_there, queries, keys, douts,
                     values, nullptr, ds);
    __syncthreads();
    Tiles::template Accumulate<false>(ds, keys, dq);
    __syncthreads();
  }
  Tiles::StoreRows(dq, a.dq, row, left, head * head_dim, head_dim);
}

// Calls function.operator()<kColumns>() with room for the head: 64, 128 or 256 channels.
template <typename Function>
void ForHeadDim(int64_t head_dim, const Function& function) {
  ATOLL_CHECK(head_dim <= 256, "heads of ", head_dim, " channels; at most 256");
  if (head_dim <= 64) {
    function.template operator()<4>();
  } else if (head_dim <= 128) {
    function.template operator()<8>();
  } else {
    function.template operator()<16>();
  }
}

dim3 ComputeGrid(const AttentionShape& shape, int tile, int64_t heads) {
  ATOLL_CHECK(shape.batch <= 65535 && heads <= 65535, "too many sequences for one kernel");
  return dim3(static_cast<unsigned>(CeilDiv(shape.seq_len, tile)), static_cast<unsigned>(heads),
              static_cast<unsigned>(shape.batch));
}

}  // namespace

namespace {

template <typename T, bool kPlain>
void LaunchForward(const Queue& queue, const AttentionForward& op) {
  const Operands<T, kPlain> operands{.shape = MakeShape(op.shape),
                                     .mask = {op.shape, op.lengths, op.starts},
                                     .q = MakeView<T>(op.q),
                                     .k = MakeView<T>(op.k),
                                     .v = MakeView<T>(op.v),
                                     .out = MakeView<T>(op.out),
                                     .lse = MakeView<float>(op.lse)};
  ForHeadDim(op.shape.head_dim, [&]<int kColumns>() {
    using Tiles = Tile<16, 16 / kColumns, kColumns>;  // of 64, 32 or 16 rows
    constexpr int64_t kBytes = int64_t{sizeof(float)} * (2 * Tiles::kFloats + Tiles::kSquare);
    static_assert(kBytes <= kSharedBytesMax);
    Launch(queue, ComputeGrid(op.shape, Tiles::kTile, op.shape.heads), dim3(Tiles::kThreads),
           kBytes, "AttentionForward", ForwardKernel<T, kPlain, Tiles>, operands);
  });
}

template <typename T, bool kPlain>
void LaunchBackward(const Queue& queue, const AttentionBackward& op, Workspace workspace) {
  const Operands<T, kPlain> operands{
      .shape = MakeShape(op.shape),
      .mask = {op.shape, op.lengths, op.starts},
      .q = MakeView<T>(op.q),
      .k = MakeView<T>(op.k),
      .v = MakeView<T>(op.v),
      .out = MakeView<T>(op.out),
      .dout = MakeView<T>(op.dout),
      .dq = MakeView<T>(op.dq),
      .dk = MakeView<T>(op.dk),
      .dv = MakeView<T>(op.dv),
      .lse = MakeView<float>(op.lse),
      .delta = {static_cast<float*>(workspace.data), op.shape.seq_len}};
  const int64_t count = op.q.rows * op.shape.heads;
  Launch(queue, dim3(static_cast<unsigned>(CeilDiv(count, kDeltaThreads / kWarp))),
         dim3(kDeltaThreads), 0, "AttentionBackward delta", DeltaKernel<T, kPlain>, operands,
         count);
  if (EnqueueOnTensorCores(queue, op, operands.delta.data)) return;
  ForHeadDim(op.shape.head_dim, [&]<int kColumns>() {
    // Tiles of 32, 16 or 8 rows.
    using Tiles = std::conditional_t<kColumns == 16, Tile<8, 1, 32>,
                                     Tile<16, kColumns == 4 ? 2 : 1, kColumns>>;
    constexpr int64_t kBytes = int64_t{sizeof(float)} * (4 * Tiles::kFloats + 2 * Tiles::kSquare);
    static_assert(kBytes <= kSharedBytesMax);
    Launch(queue, ComputeGrid(op.shape, Tiles::kTile, op.shape.kv_heads), dim3(Tiles::kThreads),
           kBytes, "AttentionBackward dk dv", KeyGradientKernel<T, kPlain, Tiles>, operands);
    Launch(queue, ComputeGrid(op.shape, Tiles::kTile, op.shape.heads), dim3(Tiles::kThreads),
           kBytes, "AttentionBackward dq", QueryGradientKernel<T, kPlain, Tiles>, operands);
  });
}

}  // namespace

void Enqueue(const Queue& queue, const AttentionForward& op) {
  if (EnqueueOnTensorCores(queue, op)) return;
  ForType(op.q.dtype, [&]<typename T>() {
    ForMask(op.shape, op.lengths.present() || op.starts.present(),
            [&]<bool kPlain>() { LaunchForward<T, kPlain>(queue, op); });
  });
}

int64_t ScratchBytes(const AttentionBackward& op) {
  return op.shape.batch * op.shape.heads * op.shape.seq_len * int64_t{sizeof(float)};
}

void Enqueue(const Queue& queue, const AttentionBackward& op, Workspace workspace) {
  ATOLL_CHECK(workspace.bytes >= ScratchBytes(op), "workspace too small");
  ForType(op.q.dtype, [&]<typename T>() {
    ForMask(op.shape, op.lengths.present() || op.starts.present(),
            [&]<bool kPlain>() { LaunchBackward<T, kPlain>(queue, op, workspace); });
  });
}

}  // namespace atl::ATOLL_DEVICE
