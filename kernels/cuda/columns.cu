// Sums over rows, and the gradients of embeddings, whose rows are added in the order of the tokens.
//
// Bytes per element of s bytes (partial sums are a few thousandths), and FLOP:
//   RmsNormBackwardWeight 2s, 3;  LayerNormBackwardWeight 2s, 4;  SumRows s, 1
//   EmbeddingBackwardWeight s + 8 for each row of the table that occurs; dpositions s + 8 / batch

#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/launchers.h"

namespace atl::ATOLL_DEVICE {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;

// What one row adds to the sums of a column: kSums numbers.
template <typename T>
struct RmsTerms {
  static constexpr int kSums = 1;
  View<T> dy, x;
  const float* rstd;
  template <int N>
  __device__ void Add(int64_t row, int64_t col, Pack<float, N> (&sums)[1]) const {
    const Pack<float, N> d = Load<N>(dy.Row(row) + col), v = Load<N>(x.Row(row) + col);
    const float scale = rstd[row];
#pragma unroll
    for (int i = 0; i < N; ++i) sums[0].v[i] += d.v[i] * v.v[i] * scale;
  }
};

template <typename T>
struct LayerTerms {
  static constexpr int kSums = 2;
  View<T> dy, x;
  const float* mean;
  const float* rstd;
  template <int N>
  __device__ void Add(int64_t row, int64_t col, Pack<float, N> (&sums)[2]) const {
    const Pack<float, N> d = Load<N>(dy.Row(row) + col), v = Load<N>(x.Row(row) + col);
    const float scale = rstd[row], centre = mean[row];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      sums[0].v[i] += d.v[i] * (v.v[i] - centre) * scale;
      sums[1].v[i] += d.v[i];
    }
  }
};

template <typename T>
struct PlainTerms {
  static constexpr int kSums = 1;
  View<T> x;
  template <int N>
  __device__ void Add(int64_t row, int64_t col, Pack<float, N> (&sums)[1]) const {
    const Pack<float, N> v = Load<N>(x.Row(row) + col);
#pragma unroll
    for (int i = 0; i < N; ++i) sums[0].v[i] += v.v[i];
  }
};

// dy of the tokens of one type, which is the plane.
template <typename T>
struct TypeTerms {
  static constexpr int kSums = 1;
  const int32_t* tokens;
  View<T> dy;
  template <int N>
  __device__ void Add(int64_t row, int64_t col, Pack<float, N> (&sums)[1]) const {
    const bool of_type = static_cast<uint32_t>(tokens[row]) >> kTypeShift == blockIdx.z;
    const Pack<float, N> d = LoadOrZero<N>(of_type ? dy.data : nullptr, row * dy.stride + col);
#pragma unroll
    for (int i = 0; i < N; ++i) sums[0].v[i] += d.v[i];
  }
};

struct AddToRow {
  View<float> out;
  __device__ void operator()(int64_t plane, int64_t col, const float (&sums)[1]) const {
    out.Row(plane)[col] += sums[0];
  }
};

// ---- Embeddings ----

// Block (n, y) works if position n is its token's first: it finds all later ones, in order, and
// sums their rows of dy. No two blocks write to one row of the table.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    EmbeddingTableKernel(const int32_t* tokens, int64_t positions, View<T> dy, int64_t cols,
                         int64_t first_token, int32_t token_mask, View<float> dtable,
                         int64_t table_rows) {
  __shared__ unsigned matches[kWarps];
  __shared__ int seen_before;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t n = blockIdx.x;
  const int32_t token = tokens[n] & token_mask;
  const int64_t of_table = token - first_token;
  if (of_table < 0 || of_table >= table_rows) return;  // in another part of the table
  if (threadIdx.x == 0) seen_before = 0;
  __syncthreads();
  for (int64_t chunk = n; chunk > 0; chunk -= kThreads) {  // backwards: frequent tokens are near
    const int64_t m = chunk - 1 - threadIdx.x;
    if (m >= 0 && (tokens[m] & token_mask) == token) seen_before = 1;
    __syncthreads();
    if (seen_before != 0) return;
    __syncthreads();
  }
  const int64_t col = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * N;
  Pack<float, N> sum = {};
  for (int64_t chunk = n; chunk < positions; chunk += kThreads) {
    const int64_t m = chunk + threadIdx.x;
    const unsigned of_warp = Ballot(m < positions && (tokens[m] & token_mask) == token);
    if (lane == 0) matches[warp] = of_warp;
    __syncthreads();
    for (int w = 0; w < kWarps && col < cols; ++w) {
      for (unsigned rest = matches[w]; rest != 0; rest &= rest - 1) {
        const int64_t row = chunk + w * kWarp + __ffs(rest) - 1;
        const Pack<float, N> d = Load<N>(dy.Row(row) + col);
#pragma unroll
        for (int i = 0; i < N; ++i) sum.v[i] += d.v[i];
      }
    }
    __syncthreads();
  }
  if (col >= cols) return;
  float* to = dtable.Row(of_table) + col;
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] += sum.v[i];
}

// dpositions[offset + t] += dy of position t of every sequence.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    EmbeddingPositionsKernel(View<T> dy, int64_t rows, int64_t seq_len, int64_t cols,
                             View<float> dpositions, int64_t offset) {
  const int64_t t = blockIdx.y, col = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (col >= cols) return;
  float sum = 0.0f;
  for (int64_t row = t; row < rows; row += seq_len) sum += ToFloat(dy.Row(row)[col]);
  dpositions.Row(offset + t)[col] += sum;
}

template <typename T, int N>
void LaunchTable(const Queue& queue, const EmbeddingBackwardWeight& op) {
  const int64_t positions = op.dy.rows, cols = op.dy.cols;
  const dim3 grid(static_cast<unsigned>(positions),
                  static_cast<unsigned>(CeilDiv(cols, kThreads * N)));
  Launch(queue, grid, dim3(kThreads), 0, "EmbeddingBackwardWeight", EmbeddingTableKernel<T, N>,
         op.tokens.as<int32_t>(), positions, ViewOf<T>(op.dy), cols, op.first_token,
         op.typed ? kTokenMask : -1, ViewOf<float>(op.dtable), op.dtable.rows);
}

}  // namespace

int64_t ScratchBytes(const RmsNormBackwardWeight& op) {
  return ColumnSumBytes(1, op.x.rows, op.x.cols);
}
int64_t ScratchBytes(const LayerNormBackwardWeight& op) {
  return ColumnSumBytes(2, op.x.rows, op.x.cols);
}
int64_t ScratchBytes(const SumRows& op) { return ColumnSumBytes(1, op.x.rows, op.x.cols); }
int64_t ScratchBytes(const EmbeddingBackwardWeight& op) {
  return op.typed ? ColumnSumBytes(1, op.dy.rows, op.dy.cols, op.dtypes.rows) : 0;
}

void Enqueue(const Queue& queue, const RmsNormBackwardWeight& op, Workspace workspace) {
  ForType(op.x.dtype, [&]<typename T>() {
    const RmsTerms<T> terms{ViewOf<T>(op.dy), ViewOf<T>(op.x), op.rstd.f32()};
    SumColumns<T>(queue, "RmsNormBackwardWeight", terms, {op.dy, op.x}, {op.x.rows, op.x.cols},
                  AddSums<1>{{op.dw.f32()}}, workspace);
  });
}

void Enqueue(const Queue& queue, const LayerNormBackwardWeight& op, Workspace workspace) {
  ForType(op.x.dtype, [&]<typename T>() {
    const LayerTerms<T> terms{ViewOf<T>(op.dy), ViewOf<T>(op.x), op.mean.f32(), op.rstd.f32()};
    SumColumns<T>(queue, "LayerNormBackwardWeight", terms, {op.dy, op.x}, {op.x.rows, op.x.cols},
                  AddSums<2>{{op.dw.f32(), op.db.f32()}}, workspace);
  });
}

void Enqueue(const Queue& queue, const SumRows& op, Workspace workspace) {
  ForType(op.x.dtype, [&]<typename T>() {
    SumColumns<T>(queue, "SumRows", PlainTerms<T>{ViewOf<T>(op.x)}, {op.x}, {op.x.rows, op.x.cols},
                  AddSums<1>{{op.sum.f32()}}, workspace);
  });
}

void Enqueue(const Queue& queue, const EmbeddingBackwardWeight& op, Workspace workspace) {
  ForType(op.dy.dtype, [&]<typename T>() {
    if (PackSize({op.dy}, op.dy.cols, kWide<T>) > 1) {
      LaunchTable<T, kWide<T>>(queue, op);
    } else {
      LaunchTable<T, 1>(queue, op);
    }
    if (op.typed && op.dtypes.present()) {
      const TypeTerms<T> terms{op.tokens.as<int32_t>(), ViewOf<T>(op.dy)};
      SumColumns<T>(queue, "EmbeddingBackwardWeight types", terms, {op.dy},
                    {op.dy.rows, op.dy.cols, op.dtypes.rows}, AddToRow{ViewOf<float>(op.dtypes)},
                    workspace);
    }
    if (!op.dpositions.present()) return;
    const dim3 grid(static_cast<unsigned>(CeilDiv(op.dy.cols, kThreads)),
                    static_cast<unsigned>(op.seq_len));
    ATOLL_CHECK(op.seq_len <= 65535, "learned positions beyond 65535");
    Launch(queue, grid, dim3(kThreads), 0, "EmbeddingBackwardWeight positions",
           EmbeddingPositionsKernel<T>, ViewOf<T>(op.dy), op.dy.rows, op.seq_len, op.dy.cols,
           ViewOf<float>(op.dpositions), op.position_offset);
  });
}

}  // namespace atl::ATOLL_DEVICE
