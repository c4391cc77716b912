// Sums over rows, in a fixed order: blocks of rows into partial sums, then those in turn. And the
// gradients of embeddings, whose rows are added in the order of the tokens.
//
// Bytes per element of s bytes (partial sums are a few thousandths), and FLOP:
//   RmsNormBackwardWeight 2s, 3;  LayerNormBackwardWeight 2s, 4;  SumRows s, 1
//   EmbeddingBackwardWeight s + 8 for each row of the table that occurs; dpositions s + 8 / batch

#include "kernels/cuda/device.h"
#include "kernels/cuda/launchers.h"

namespace atl::ATOLL_DEVICE {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int64_t kRowsPerBlockMin = 64;
constexpr int64_t kBlocksWanted = 528;  // enough for 132 multiprocessors
constexpr int64_t kPartsMax = 256;

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

// Block (x, y): columns [x, x + 1) * 32 * N, rows [y, y + 1) * rows_per_part. Warps take rows in
// turn. partials is [kSums, parts, cols].
template <int N, typename Terms>
__global__ void __launch_bounds__(kThreads)
    PartialSumsKernel(const Terms terms, int64_t rows, int64_t cols, int64_t rows_per_part,
                      float* partials) {
  constexpr int kSums = Terms::kSums, kCols = kWarp * N;
  __shared__ float shared[kSums * kWarps * kCols];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t col = int64_t{blockIdx.x} * kCols + lane * N;
  const int64_t begin = blockIdx.y * rows_per_part;
  const int64_t end = begin + rows_per_part < rows ? begin + rows_per_part : rows;
  Pack<float, N> sums[kSums] = {};
  if (col < cols) {
    for (int64_t row = begin + warp; row < end; row += kWarps) terms.Add(row, col, sums);
  }
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
#pragma unroll
    for (int i = 0; i < N; ++i) shared[(s * kWarps + warp) * kCols + lane * N + i] = sums[s].v[i];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kSums * kCols; i += kThreads) {
    const int s = i / kCols, c = i % kCols;
    const int64_t to = int64_t{blockIdx.x} * kCols + c;
    if (to >= cols) continue;
    float sum = 0.0f;
    for (int w = 0; w < kWarps; ++w) sum += shared[(s * kWarps + w) * kCols + c];
    partials[(int64_t{s} * gridDim.y + blockIdx.y) * cols + to] = sum;
  }
}

// out[c] += sum over parts, for one of the sums.
__global__ void __launch_bounds__(kThreads)
    FinishSumsKernel(const float* partials, int64_t parts, int64_t cols, float* out) {
  const int64_t col = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (col >= cols) return;
  float sum = 0.0f;
  for (int64_t part = 0; part < parts; ++part) sum += partials[part * cols + col];
  out[col] += sum;
}

// Of the rows, by shape alone.
int64_t Parts(int64_t rows, int64_t cols) {
  const int64_t across = CeilDiv(cols, kWarp * 8);
  int64_t parts = CeilDiv(kBlocksWanted, across > 0 ? across : 1);
  const int64_t useful = CeilDiv(rows, kRowsPerBlockMin);
  if (parts > useful) parts = useful;
  return parts < 1 ? 1 : parts > kPartsMax ? kPartsMax : parts;
}

int64_t PartialBytes(int64_t sums, int64_t rows, int64_t cols) {
  return sums * Parts(rows, cols) * cols * static_cast<int64_t>(sizeof(float));
}

template <int N, typename Terms>
void SumColumns(const Queue& queue, const char* name, const Terms& terms, int64_t rows,
                int64_t cols, std::initializer_list<float*> outs, Workspace workspace) {
  ATOLL_CHECK(workspace.bytes >= PartialBytes(Terms::kSums, rows, cols), "workspace too small");
  const int64_t parts = Parts(rows, cols), rows_per_part = CeilDiv(rows, parts);
  auto* partials = static_cast<float*>(workspace.data);
  const dim3 grid(static_cast<unsigned>(CeilDiv(cols, kWarp * N)), static_cast<unsigned>(parts));
  Launch(queue, grid, dim3(kThreads), 0, name, PartialSumsKernel<N, Terms>, terms, rows, cols,
         rows_per_part, partials);
  const dim3 finish(static_cast<unsigned>(CeilDiv(cols, kThreads)));
  for (float* out : outs) {
    Launch(queue, finish, dim3(kThreads), 0, name, FinishSumsKernel, partials, parts, cols, out);
    partials += parts * cols;
  }
}

template <typename T, typename Terms>
void SumColumns(const Queue& queue, const char* name, const Terms& terms,
                std::initializer_list<Tensor> inputs, const Tensor& like,
                std::initializer_list<float*> outs, Workspace workspace) {
  if (PackSize(inputs, like.cols, kWide<T>) > 1) {
    SumColumns<kWide<T>>(queue, name, terms, like.rows, like.cols, outs, workspace);
  } else {
    SumColumns<1>(queue, name, terms, like.rows, like.cols, outs, workspace);
  }
}

// ---- Embeddings ----

// Block (n, y) works if position n is its token's first: it finds all later ones, in order, and
// sums their rows of dy. No two blocks write to one row of the table.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    EmbeddingTableKernel(const int32_t* tokens, int64_t positions, View<T> dy, int64_t cols,
                         int64_t first_token, View<float> dtable, int64_t table_rows) {
  __shared__ unsigned matches[kWarps];
  __shared__ int seen_before;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t n = blockIdx.x;
  const int32_t token = tokens[n];
  const int64_t of_table = token - first_token;
  if (of_table < 0 || of_table >= table_rows) return;  // in another part of the table
  if (threadIdx.x == 0) seen_before = 0;
  __syncthreads();
  for (int64_t chunk = n; chunk > 0; chunk -= kThreads) {  // backwards: frequent tokens are near
    const int64_t m = chunk - 1 - threadIdx.x;
    if (m >= 0 && tokens[m] == token) seen_before = 1;
    __syncthreads();
    if (seen_before != 0) return;
    __syncthreads();
  }
  const int64_t col = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * N;
  Pack<float, N> sum = {};
  for (int64_t chunk = n; chunk < positions; chunk += kThreads) {
    const int64_t m = chunk + threadIdx.x;
    const unsigned of_warp = Ballot(m < positions && tokens[m] == token);
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
         ViewOf<float>(op.dtable), op.dtable.rows);
}

}  // namespace

int64_t ScratchBytes(const RmsNormBackwardWeight& op) {
  return PartialBytes(1, op.x.rows, op.x.cols);
}
int64_t ScratchBytes(const LayerNormBackwardWeight& op) {
  return PartialBytes(2, op.x.rows, op.x.cols);
}
int64_t ScratchBytes(const SumRows& op) { return PartialBytes(1, op.x.rows, op.x.cols); }

void Enqueue(const Queue& queue, const RmsNormBackwardWeight& op, Workspace workspace) {
  ForType(op.x.dtype, [&]<typename T>() {
    const RmsTerms<T> terms{ViewOf<T>(op.dy), ViewOf<T>(op.x), op.rstd.f32()};
    SumColumns<T>(queue, "RmsNormBackwardWeight", terms, {op.dy, op.x}, op.x, {op.dw.f32()},
                  workspace);
  });
}

void Enqueue(const Queue& queue, const LayerNormBackwardWeight& op, Workspace workspace) {
  ForType(op.x.dtype, [&]<typename T>() {
    const LayerTerms<T> terms{ViewOf<T>(op.dy), ViewOf<T>(op.x), op.mean.f32(), op.rstd.f32()};
    SumColumns<T>(queue, "LayerNormBackwardWeight", terms, {op.dy, op.x}, op.x,
                  {op.dw.f32(), op.db.f32()}, workspace);
  });
}

void Enqueue(const Queue& queue, const SumRows& op, Workspace workspace) {
  ForType(op.x.dtype, [&]<typename T>() {
    SumColumns<T>(queue, "SumRows", PlainTerms<T>{ViewOf<T>(op.x)}, {op.x}, op.x, {op.sum.f32()},
                  workspace);
  });
}

void Enqueue(const Queue& queue, const EmbeddingBackwardWeight& op) {
  ForType(op.dy.dtype, [&]<typename T>() {
    if (PackSize({op.dy}, op.dy.cols, kWide<T>) > 1) {
      LaunchTable<T, kWide<T>>(queue, op);
    } else {
      LaunchTable<T, 1>(queue, op);
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
