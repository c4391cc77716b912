// Sums over rows, and the gradients of embeddings, whose rows are added in the order of the tokens.
//
// Bytes per element of s bytes (partial sums are a few thousandths), and FLOP:
//   NormBackwardWeight 2s, 3 (LayerNorm 4);  SumRows s, 1
//   EmbeddingBackwardWeight s + 8 for each row of the table that occurs; dpositions s + 8 / batch

#include "kernels/cuda/device/column_sums.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/launchers.h"

namespace atl::ATOLL_DEVICE {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kTile = 1024, kPartOfTile = kTile / kWarps;  // tokens that a block looks at together

template <typename T>
struct RmsTerms {
  static constexpr int kSums = 1;
  View<T> dy, x;
  const float* rstd;
  unsigned rows, width;  // of x; of a part: `row` counts the parts of all rows
  template <int N>
  __device__ void Add(int64_t row, int64_t col, Pack<float, N> (&sums)[1]) const {
    const unsigned part = static_cast<unsigned>(row) / rows;
    const unsigned of = static_cast<unsigned>(row) - part * rows;
    const int64_t at = int64_t{part} * width + col;
    const Pack<float, N> d = Load<N>(dy.Row(of) + at), v = Load<N>(x.Row(of) + at);
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

// Positions by token, those of a token in their own order.
struct SortedPositions {
  int32_t* token;
  int32_t* position;
};

// A position's place is the count of those that come before it, of which each warp counts a part:
// a block has as many positions as a warp has lanes. Some positions^2 comparisons: for 16,384 a few
// hundredths of a millisecond.
__global__ void __launch_bounds__(kThreads)
    SortPositionsKernel(const int32_t* tokens, int32_t positions, int32_t token_mask,
                        SortedPositions sorted) {
  __shared__ Pack<int32_t, 4> tile[kTile / 4];
  __shared__ int32_t counts[kWarps][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int32_t first = static_cast<int32_t>(blockIdx.x) * kWarp, n = first + lane;
  const int32_t token = n < positions ? tokens[n] & token_mask : 0;
  int32_t before = 0;
  for (int32_t begin = 0; begin < positions; begin += kTile) {
    for (int i = threadIdx.x; i < kTile; i += kThreads) {
      const int32_t m = begin + i;
      tile[i / 4].v[i % 4] = m < positions ? tokens[m] & token_mask : INT32_MAX;
    }
    __syncthreads();
    const int32_t from = begin + warp * kPartOfTile;
    const bool beside = from < first + kWarp && from + kPartOfTile > first;
    // The earlier position comes first of equal tokens.
    const int32_t bound = from < first ? token + 1 : token;
#pragma unroll 4
    for (int i = 0; i < kPartOfTile; i += 4) {
      const Pack<int32_t, 4> of = tile[(warp * kPartOfTile + i) / 4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int32_t limit = beside ? token + (from + i + j < n ? 1 : 0) : bound;
        before += of.v[j] < limit ? 1 : 0;
      }
    }
    __syncthreads();
  }
  counts[warp][lane] = before;
  __syncthreads();
  if (warp != 0 || n >= positions) return;
  int32_t index = 0;
  for (int w = 0; w < kWarps; ++w) index += counts[w][lane];
  sorted.token[index] = token;
  sorted.position[index] = n;
}

// Block (i, y) works if place i is its token's first: it sums the token's rows of dy, in the order
// of their positions. No two blocks write to one row of the table.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    EmbeddingTableKernel(SortedPositions sorted, int64_t positions, View<T> dy, int64_t cols,
                         int64_t first_token, View<float> dtable, int64_t table_rows) {
  constexpr int kAhead = 4;  // rows under way
  const int32_t token = sorted.token[blockIdx.x];
  const int64_t of_table = int64_t{token} - first_token;
  const int64_t col = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * N;
  if (blockIdx.x > 0 && sorted.token[blockIdx.x - 1] == token) return;
  if (of_table < 0 || of_table >= table_rows || col >= cols) return;  // in another part
  float* to = dtable.Row(of_table) + col;
  Pack<float, N> sum = {};
  for (int64_t at = blockIdx.x; at < positions && sorted.token[at] == token; at += kAhead) {
    Pack<float, N> rows[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const bool same = at + k < positions && sorted.token[at + k] == token;
      const int64_t row = same ? sorted.position[at + k] : 0;
      rows[k] = LoadOrZero<N>(same ? dy.data : nullptr, row * dy.stride + col);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
#pragma unroll
      for (int i = 0; i < N; ++i) sum.v[i] += rows[k].v[i];
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] += sum.v[i];
}

// dpositions[p] += dy of position p = offset + t of every sequence, each of one document.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    EmbeddingPositionsKernel(View<T> dy, int64_t rows, int64_t cols, View<float> dpositions,
                             Positions positions) {
  const int64_t t = blockIdx.y, col = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (col >= cols) return;
  float sum = 0.0f;
  for (int64_t row = t; row < rows; row += positions.seq_len) sum += ToFloat(dy.Row(row)[col]);
  dpositions.Row(positions.offset + t)[col] += sum;
}

// Makes keys of positions: with several documents one is summed like a token, each row read once.
__global__ void __launch_bounds__(kThreads)
    PositionKeysKernel(Positions positions, int64_t rows, int32_t* keys) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row < rows) keys[row] = static_cast<int32_t>(positions.At(row));
}

SortedPositions SortPositions(const Queue& queue, const int32_t* tokens, int64_t rows,
                              int32_t token_mask, Workspace workspace) {
  ATOLL_CHECK(rows < INT32_MAX - kTile, "too many tokens for a kernel");
  auto* words = static_cast<int32_t*>(workspace.data);
  const SortedPositions sorted{words, words + rows};
  const dim3 grid(static_cast<unsigned>(CeilDiv(rows, kWarp)));
  Launch(queue, grid, dim3(kThreads), 0, "EmbeddingBackwardWeight order", SortPositionsKernel,
         tokens, static_cast<int32_t>(rows), token_mask, sorted);
  return sorted;
}

// The rows of `table` are of the tokens from `first` on.
template <typename T>
void LaunchTable(const Queue& queue, SortedPositions sorted, const Tensor& dy, int64_t first,
                 const Tensor& table) {
  ForPack<kWide<T>>({dy}, dy.cols, [&]<int N>() {
    const int64_t packs = CeilDiv(dy.cols, N);
    const int64_t threads = packs < kThreads ? CeilDiv(packs, kWarp) * kWarp : kThreads;
    const dim3 grid(static_cast<unsigned>(dy.rows), static_cast<unsigned>(CeilDiv(packs, threads)));
    Launch(queue, grid, dim3(static_cast<unsigned>(threads)), 0, "EmbeddingBackwardWeight",
           EmbeddingTableKernel<T, N>, sorted, dy.rows, MakeView<T>(dy), dy.cols, first,
           MakeView<float>(table), table.rows);
  });
}

template <typename T>
void LaunchPositions(const Queue& queue, const EmbeddingBackwardWeight& op, Workspace workspace) {
  const Positions positions = MakePositions(op);
  const int64_t rows = op.dy.rows;
  if (positions.starts == nullptr) {
    const dim3 grid(static_cast<unsigned>(CeilDiv(op.dy.cols, kThreads)),
                    static_cast<unsigned>(op.seq_len));
    ATOLL_CHECK(op.seq_len <= 65535, "learned positions beyond 65535");
    return Launch(queue, grid, dim3(kThreads), 0, "EmbeddingBackwardWeight positions",
                  EmbeddingPositionsKernel<T>, MakeView<T>(op.dy), rows, op.dy.cols,
                  MakeView<float>(op.dpositions), positions);
  }
  int32_t* const keys = static_cast<int32_t*>(workspace.data) + 2 * rows;
  Launch(queue, dim3(static_cast<unsigned>(CeilDiv(rows, kThreads))), dim3(kThreads), 0,
         "EmbeddingBackwardWeight positions", PositionKeysKernel, positions, rows, keys);
  const SortedPositions sorted = SortPositions(queue, keys, rows, -1, workspace);
  LaunchTable<T>(queue, sorted, op.dy, /*first=*/0, op.dpositions);
}

}  // namespace

int64_t ScratchBytes(const NormBackwardWeight& op) {
  return ColumnSumBytes(op.centred() ? 2 : 1, op.x.rows * (op.x.cols / op.dw.cols), op.dw.cols);
}
int64_t ScratchBytes(const SumRows& op) { return ColumnSumBytes(1, op.x.rows, op.x.cols); }
int64_t ScratchBytes(const EmbeddingBackwardWeight& op) {
  const int64_t types = op.typed ? ColumnSumBytes(1, op.dy.rows, op.dy.cols, op.dtypes.rows) : 0;
  // Behind what is sorted, positions in documents: which of the tensors are there is not known yet.
  const int64_t sorted = 3 * op.dy.rows * static_cast<int64_t>(sizeof(int32_t));
  return types > sorted ? types : sorted;  // one after the other
}

void Enqueue(const Queue& queue, const NormBackwardWeight& op, Workspace workspace) {
  const int64_t width = op.dw.cols, parts = op.x.rows * (op.x.cols / width);
  ATOLL_CHECK(parts < INT32_MAX, "too many rows for a kernel");
  ForType(op.x.dtype, [&]<typename T>() {
    const View<T> dy = MakeView<T>(op.dy), x = MakeView<T>(op.x);
    if (op.centred()) {
      return SumColumns<T>(queue, "LayerNormBackwardWeight",
                           LayerTerms<T>{dy, x, op.mean.f32(), op.rstd.f32()}, {op.dy, op.x},
                           {parts, width}, AddSums<2>{{op.dw.f32(), op.db.f32()}}, workspace);
    }
    const RmsTerms<T> terms{dy, x, op.rstd.f32(), static_cast<unsigned>(op.x.rows),
                            static_cast<unsigned>(width)};
    SumColumns<T>(queue, "RmsNormBackwardWeight", terms, {op.dy, op.x}, {parts, width},
                  AddSums<1>{{op.dw.f32()}}, workspace);
  });
}

void Enqueue(const Queue& queue, const SumRows& op, Workspace workspace) {
  ForType(op.x.dtype, [&]<typename T>() {
    SumColumns<T>(queue, "SumRows", PlainTerms<T>{MakeView<T>(op.x)}, {op.x},
                  {op.x.rows, op.x.cols}, AddSums<1>{{op.sum.f32()}}, workspace);
  });
}

void Enqueue(const Queue& queue, const EmbeddingBackwardWeight& op, Workspace workspace) {
  ATOLL_CHECK(workspace.bytes >= ScratchBytes(op), "workspace too small");
  const SortedPositions sorted = SortPositions(queue, op.tokens.as<int32_t>(), op.dy.rows,
                                               op.typed ? kTokenMask : -1, workspace);
  ForType(op.dy.dtype, [&]<typename T>() {
    LaunchTable<T>(queue, sorted, op.dy, op.first_token, op.dtable);
    if (op.typed && op.dtypes.present()) {
      const TypeTerms<T> terms{op.tokens.as<int32_t>(), MakeView<T>(op.dy)};
      SumColumns<T>(queue, "EmbeddingBackwardWeight types", terms, {op.dy},
                    {op.dy.rows, op.dy.cols, op.dtypes.rows}, AddToRow{MakeView<float>(op.dtypes)},
                    workspace);
    }
    if (op.dpositions.present()) LaunchPositions<T>(queue, op, workspace);
  });
}

}  // namespace atl::ATOLL_DEVICE
