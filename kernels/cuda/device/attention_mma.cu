// Attention in bf16 with tensor cores, for heads of up to 128 channels whose rows begin on
// 16 bytes. The algorithm is attention.cu's (online softmax forward; backward with keys, then
// queries, stationary), on tiles of 64 x 64 with products by mma.m16n8k16: bf16 in, fp32 sums.
//
// FLOP and bytes as in attention.cu. A block is four warps; each owns 16 rows of the stationary
// side and all columns, so that a row's maximum and sum stay within four lanes.

#include "kernels/cuda/device/attention_mask.h"
#include "kernels/cuda/device/fragments.h"
#include "kernels/cuda/device/launchers.h"

namespace atl::ATOLL_DEVICE {
namespace {

constexpr int kTile = 64;
constexpr int kThreads = 128;
constexpr int kRowsOfWarp = 16;
constexpr int kSteps = kTile / 16;   // of 16 in a tile
constexpr int kColumns = kTile / 8;  // of 8 in a tile

template <bool kPlain>
struct Arguments {
  int seq_len, heads, kv_heads, head_dim;
  float scale;
  AttentionMask<kPlain> mask;
  View<Bf16> q, k, v, out, dout, dq, dk, dv;
  View<float> lse, delta;  // [batch * heads, T]

  __device__ int64_t Row(int batch, int t) const { return int64_t{batch} * seq_len + t; }
  __device__ int64_t StatsRow(int batch, int head) const { return int64_t{batch} * heads + head; }
  __device__ int KeyHead(int head) const { return head / (heads / kv_heads); }
};

// sum[16 x 64] = rows [row, row + 16) of a times rows of b; both are [64][kDim].
template <int kDim>
__device__ inline void Scores(const Bf16* a, int row, const Bf16* b, float (&sum)[kColumns][4]) {
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[c][i] = 0.0f;
  }
#pragma unroll
  for (int k = 0; k < kDim; k += 16) {
    const Left left = LoadLeft(a, kDim + kFragmentPad, row, k);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      Multiply(sum[c], left, LoadRight(b, kDim + kFragmentPad, c * 8, k));
    }
  }
}

// sum[16 x kDim] += weights[16 x 64], as they come out of a product, times tile[64][kDim].
template <int kDim>
__device__ inline void Accumulate(const float (&weights)[kColumns][4], const Bf16* tile,
                                  float (&sum)[kDim / 8][4]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const float *low = weights[2 * step], *high = weights[2 * step + 1];
    const Left left = {{Pair(low[0], low[1]), Pair(low[2], low[3]), Pair(high[0], high[1]),
                        Pair(high[2], high[3])}};
#pragma unroll
    for (int c = 0; c < kDim / 8; ++c) {
      Multiply(sum[c], left, LoadTurnedRight(tile, kDim + kFragmentPad, c * 8, step * 16));
    }
  }
}

// Tokens [row, row + 64) of a head into shared memory, zeroes beyond the sequence and the head.
template <int kDim>
__device__ inline void LoadTile(const View<Bf16>& x, int64_t row, int left, int col, int head_dim,
                                Bf16* tile) {
  constexpr int kPacks = kDim / 8;
  for (int i = threadIdx.x; i < kTile * kPacks; i += kThreads) {
    const int r = i / kPacks, c = i % kPacks * 8;
    Pack<Bf16, 8> pack = {};
    if (r < left && c < head_dim) {
      pack = *reinterpret_cast<const Pack<Bf16, 8>*>(x.Row(row + r) + col + c);
    }
    *reinterpret_cast<Pack<Bf16, 8>*>(tile + r * (kDim + kFragmentPad) + c) = pack;
  }
}

// This warp's 16 rows; lanes hold pairs of columns.
template <int kDim>
__device__ inline void StoreRows(const float (&sum)[kDim / 8][4], const View<Bf16>& x, int64_t row,
                                 int left, int col, int head_dim) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = lane / 4 + 8 * half;
    if (r >= left) continue;
    Bf16* to = x.Row(row + r) + col + lane % 4 * 2;
#pragma unroll
    for (int c = 0; c < kDim / 8; ++c) {
      if (c * 8 >= head_dim) break;
      *reinterpret_cast<unsigned*>(to + c * 8) = Pair(sum[c][2 * half], sum[c][2 * half + 1]);
    }
  }
}

// Block (tile of queries, head, sequence).
template <int kDim, bool kPlain>
__global__ void __launch_bounds__(kThreads) ForwardKernel(const Arguments<kPlain> a) {
  ATOLL_DYNAMIC_SHARED(Bf16, shared);
  constexpr int kElements = kTile * (kDim + kFragmentPad);
  Bf16 *queries = shared, *keys = queries + kElements, *values = keys + kElements;
  const int lane = threadIdx.x % kWarp, warp_row = threadIdx.x / kWarp * kRowsOfWarp;
  const int first = blockIdx.x * kTile, head = blockIdx.y, batch = blockIdx.z;
  const int key_col = a.KeyHead(head) * a.head_dim, col = head * a.head_dim;
  LoadTile<kDim>(a.q, a.Row(batch, first), a.seq_len - first, col, a.head_dim, queries);
  float out[kDim / 8][4] = {}, largest[2] = {-INFINITY, -INFINITY}, total[2] = {};
  const int t = first + warp_row + lane / 4;  // and t + 8
  const SequenceKeys keys_there = a.mask.Keys(batch);
  const int end = a.mask.EndKey(first, kTile, keys_there);
  for (int key = a.mask.FirstKey(first, kTile, keys_there); key < end; key += kTile) {
    const int64_t row = a.Row(batch, key);
    LoadTile<kDim>(a.k, row, a.seq_len - key, key_col, a.head_dim, keys);
    LoadTile<kDim>(a.v, row, a.seq_len - key, key_col, a.head_dim, values);
    __syncthreads();
    float s[kColumns][4];
    Scores<kDim>(queries, warp_row, keys, s);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = -INFINITY;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          const int column = key + c * 8 + lane % 4 * 2 + i % 2;
          const bool visible = a.mask.Sees(t + 8 * half, column, keys_there);
          s[c][i] = visible ? a.mask.Cap(s[c][i] * a.scale).score : -INFINITY;
          top = fmaxf(top, s[c][i]);
        }
      }
      top = fmaxf(largest[half], GroupReduce<4>(top, Max()));
      const float base = a.mask.Base(top);  // kPlain: key `key` is visible to all
      const float shrink = expf(largest[half] - base);
      largest[half] = top;
      float sum = 0.0f;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          s[c][i] = expf(s[c][i] - base);
          sum += s[c][i];
        }
      }
      total[half] = total[half] * shrink + GroupReduce<4>(sum, Sum());
#pragma unroll
      for (int c = 0; c < kDim / 8; ++c) {
        out[c][2 * half] *= shrink;
        out[c][2 * half + 1] *= shrink;
      }
    }
    Accumulate<kDim>(s, values, out);
    __syncthreads();
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (lane % 4 == 0 && t + 8 * half < a.seq_len) {
      a.lse.Row(a.StatsRow(batch, head))[t + 8 * half] = largest[half] + logf(total[half]);
    }
#pragma unroll
    for (int c = 0; c < kDim / 8; ++c) {
      out[c][2 * half] /= total[half];
      out[c][2 * half + 1] /= total[half];
    }
  }
  StoreRows<kDim>(out, a.out, a.Row(batch, first + warp_row), a.seq_len - first - warp_row, col,
                  a.head_dim);
}

// lse and delta of 64 queries, into shared memory; beyond the sequence, what makes p zero.
template <bool kPlain>
__device__ inline void LoadStats(const Arguments<kPlain>& a, int64_t stats_row, int query,
                                 float* lse, float* delta) {
  for (int i = threadIdx.x; i < kTile; i += kThreads) {
    const bool inside = query + i < a.seq_len;
    lse[i] = inside ? a.lse.Row(stats_row)[query + i] : INFINITY;
    delta[i] = inside ? a.delta.Row(stats_row)[query + i] : 0.0f;
  }
}

// Block (tile of keys, key head, sequence): rows are keys, columns queries.
template <int kDim, bool kPlain>
__global__ void __launch_bounds__(kThreads) KeyGradientKernel(const Arguments<kPlain> a) {
  ATOLL_DYNAMIC_SHARED(Bf16, shared);
  constexpr int kElements = kTile * (kDim + kFragmentPad);
  Bf16 *keys = shared, *values = keys + kElements, *queries = values + kElements;
  Bf16* douts = queries + kElements;
  float* lse = reinterpret_cast<float*>(douts + kElements);
  float* delta = lse + kTile;
  const int lane = threadIdx.x % kWarp, warp_row = threadIdx.x / kWarp * kRowsOfWarp;
  const int key = blockIdx.x * kTile, key_head = blockIdx.y, batch = blockIdx.z;
  const int key_col = key_head * a.head_dim, group = a.heads / a.kv_heads;
  const int64_t key_row = a.Row(batch, key);
  LoadTile<kDim>(a.k, key_row, a.seq_len - key, key_col, a.head_dim, keys);
  LoadTile<kDim>(a.v, key_row, a.seq_len - key, key_col, a.head_dim, values);
  float dk[kDim / 8][4] = {}, dv[kDim / 8][4] = {};
  const int j = key + warp_row + lane / 4;  // and j + 8
  const SequenceKeys keys_there = a.mask.Keys(batch);
  const int end = a.mask.EndQuery(key, kTile, keys_there);
  for (int head = key_head * group; head < (key_head + 1) * group; ++head) {
    for (int query = a.mask.FirstQuery(key); query < end; query += kTile) {
      const int64_t row = a.Row(batch, query);
      const int left = a.seq_len - query, col = head * a.head_dim;
      LoadTile<kDim>(a.q, row, left, col, a.head_dim, queries);
      LoadTile<kDim>(a.dout, row, left, col, a.head_dim, douts);
      LoadStats(a, a.StatsRow(batch, head), query, lse, delta);
      __syncthreads();
      float p[kColumns][4], ds[kColumns][4];
      Scores<kDim>(keys, warp_row, queries, p);
      Scores<kDim>(values, warp_row, douts, ds);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = c * 8 + lane % 4 * 2 + i % 2;
          const bool visible = a.mask.Sees(query + column, j + 8 * (i / 2), keys_there);
          const CappedScore capped = a.mask.Cap(p[c][i] * a.scale);
          p[c][i] = visible ? expf(capped.score - lse[column]) : 0.0f;
          ds[c][i] = a.scale * p[c][i] * (ds[c][i] - delta[column]) * capped.slope;
        }
      }
      Accumulate<kDim>(p, douts, dv);
      Accumulate<kDim>(ds, queries, dk);
      __syncthreads();
    }
  }
  const int left = a.seq_len - key - warp_row;
  StoreRows<kDim>(dk, a.dk, key_row + warp_row, left, key_col, a.head_dim);
  StoreRows<kDim>(dv, a.dv, key_row + warp_row, left, key_col, a.head_dim);
}

// Block (tile of queries, head, sequence): rows are queries, columns keys.
template <int kDim, bool kPlain>
__global__ void __launch_bounds__(kThreads) QueryGradientKernel(const Arguments<kPlain> a) {
  ATOLL_DYNAMIC_SHARED(Bf16, shared);
  constexpr int kElements = kTile * (kDim + kFragmentPad);
  Bf16 *queries = shared, *douts = queries + kElements, *keys = douts + kElements;
  Bf16* values = keys + kElements;
  const int lane = threadIdx.x % kWarp, warp_row = threadIdx.x / kWarp * kRowsOfWarp;
  const int query = blockIdx.x * kTile, head = blockIdx.y, batch = blockIdx.z;
  const int key_col = a.KeyHead(head) * a.head_dim, col = head * a.head_dim;
  const int64_t row = a.Row(batch, query);
  LoadTile<kDim>(a.q, row, a.seq_len - query, col, a.head_dim, queries);
  LoadTile<kDim>(a.dout, row, a.seq_len - query, col, a.head_dim, douts);
  const int t = query + warp_row + lane / 4;  // and t + 8
  float lse[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool inside = t + 8 * half < a.seq_len;
    const int64_t stats = a.StatsRow(batch, head);
    lse[half] = inside ? a.lse.Row(stats)[t + 8 * half] : INFINITY;
    delta[half] = inside ? a.delta.Row(stats)[t + 8 * half] : 0.0f;
  }
  float dq[kDim / 8][4] = {};
  const SequenceKeys keys_there = a.mask.Keys(batch);
  const int end = a.mask.EndKey(query, kTile, keys_there);
  for (int key = a.mask.FirstKey(query, kTile, keys_there); key < end; key += kTile) {
    const int64_t key_row = a.Row(batch, key);
    const int left = a.seq_len - key;
    LoadTile<kDim>(a.k, key_row, left, key_col, a.head_dim, keys);
    LoadTile<kDim>(a.v, key_row, left, key_col, a.head_dim, values);
    __syncthreads();
    float p[kColumns][4], ds[kColumns][4];
    Scores<kDim>(queries, warp_row, keys, p);
    Scores<kDim>(douts, warp_row, values, ds);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = key + c * 8 + lane % 4 * 2 + i % 2;
        const bool visible = a.mask.Sees(t + 8 * (i / 2), column, keys_there);
        const CappedScore capped = a.mask.Cap(p[c][i] * a.scale);
        const float probability = visible ? expf(capped.score - lse[i / 2]) : 0.0f;
        ds[c][i] = a.scale * probability * (ds[c][i] - delta[i / 2]) * capped.slope;
      }
    }
    Accumulate<kDim>(ds, keys, dq);
    __syncthreads();
  }
  StoreRows<kDim>(dq, a.dq, row + warp_row, a.seq_len - query - warp_row, col, a.head_dim);
}

template <bool kPlain, typename Op>
Arguments<kPlain> MakeArguments(const Op& op) {
  const AttentionShape& s = op.shape;
  ATOLL_CHECK(s.batch <= 65535 && s.heads <= 65535 && s.seq_len <= 1 << 24);
  return {.seq_len = static_cast<int>(s.seq_len),
          .heads = static_cast<int>(s.heads),
          .kv_heads = static_cast<int>(s.kv_heads),
          .head_dim = static_cast<int>(s.head_dim),
          .scale = s.scale,
          .mask = {s, op.lengths, op.starts}};
}

dim3 ComputeGrid(const AttentionShape& shape, int64_t heads) {
  return dim3(static_cast<unsigned>(CeilDiv(shape.seq_len, kTile)), static_cast<unsigned>(heads),
              static_cast<unsigned>(shape.batch));
}

int64_t TileBytes(int dim) { return kTile * (dim + kFragmentPad) * int64_t{sizeof(Bf16)}; }

bool Takes(const AttentionShape& shape, std::initializer_list<Tensor> tensors) {
  for (const Tensor& x : tensors) {
    if (x.dtype != DType::kBfloat16) return false;
  }
  return shape.head_dim <= 128 && PackSize(tensors, shape.head_dim, 8) > 1;
}

// Calls function.operator()<kDim, kPlain>() with room for the head.
template <typename Op, typename Function>
void ForKernel(const Op& op, const Function& function) {
  ForMask(op.shape, op.lengths.present() || op.starts.present(), [&]<bool kPlain>() {
    if (op.shape.head_dim <= 64) {
      function.template operator()<64, kPlain>();
    } else {
      function.template operator()<128, kPlain>();
    }
  });
}

}  // namespace

bool EnqueueOnTensorCores(const Queue& queue, const AttentionForward& op) {
  if (!Takes(op.shape, {op.q, op.k, op.v, op.out})) return false;
  ForKernel(op, [&]<int kDim, bool kPlain>() {
    Arguments<kPlain> a = MakeArguments<kPlain>(op);
    a.q = MakeView<Bf16>(op.q);
    a.k = MakeView<Bf16>(op.k);
    a.v = MakeView<Bf16>(op.v);
    a.out = MakeView<Bf16>(op.out);
    a.lse = MakeView<float>(op.lse);
    Launch(queue, ComputeGrid(op.shape, op.shape.heads), dim3(kThreads), 3 * TileBytes(kDim),
           "AttentionForward", ForwardKernel<kDim, kPlain>, a);
  });
  return true;
}

bool EnqueueOnTensorCores(const Queue& queue, const AttentionBackward& op, const float* delta) {
  if (!Takes(op.shape, {op.q, op.k, op.v, op.dout, op.dq, op.dk, op.dv})) return false;
  ForKernel(op, [&]<int kDim, bool kPlain>() {
    Arguments<kPlain> a = MakeArguments<kPlain>(op);
    a.q = MakeView<Bf16>(op.q);
    a.k = MakeView<Bf16>(op.k);
    a.v = MakeView<Bf16>(op.v);
    a.dout = MakeView<Bf16>(op.dout);
    a.dq = MakeView<Bf16>(op.dq);
    a.dk = MakeView<Bf16>(op.dk);
    a.dv = MakeView<Bf16>(op.dv);
    a.lse = MakeView<float>(op.lse);
    a.delta = {const_cast<float*>(delta), op.shape.seq_len};
    Launch(queue, ComputeGrid(op.shape, op.shape.kv_heads), dim3(kThreads),
           4 * TileBytes(kDim) + 2 * kTile * int64_t{sizeof(float)}, "AttentionBackward dk dv",
           KeyGradientKernel<kDim, kPlain>, a);
    Launch(queue, ComputeGrid(op.shape, op.shape.heads), dim3(kThreads), 4 * TileBytes(kDim),
           "AttentionBackward dq", QueryGradientKernel<kDim, kPlain>, a);
  });
  return true;
}

}  // namespace atl::ATOLL_DEVICE
