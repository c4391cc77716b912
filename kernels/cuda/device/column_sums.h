// Sums over the rows of matrices, in an order that depends on shapes alone: blocks of rows into
// partial sums, then those in turn.

#ifndef ATOLL_KERNELS_CUDA_DEVICE_COLUMN_SUMS_H_
#define ATOLL_KERNELS_CUDA_DEVICE_COLUMN_SUMS_H_

#include "kernels/cuda/device/device.h"

namespace atl::ATOLL_DEVICE {

inline constexpr int kSumWarps = 8;
inline constexpr int kSumThreads = kSumWarps * kWarp;
inline constexpr int64_t kRowsPerBlockMin = 64;
inline constexpr int64_t kBlocksWanted = 528;  // enough for 132 multiprocessors
inline constexpr int64_t kPartsMax = 256;

// Partial sums are [planes * sums, parts, cols].
struct PartialSums {
  float* data;
  int64_t parts, cols;
  __device__ void Take(int64_t plane, int64_t part, int64_t col, float sum) const {
    data[(plane * parts + part) * cols + col] = sum;
  }
};

// Terms says what a row adds to the Terms::kSums sums of a column: Add<N>(row, col, sums); where
// sums have several planes, blockIdx.z is the plane. Block (x, y, z): columns [x, x + 1) * 32 * N,
// rows [y, y + 1) * rows_per_part, of which warps take one in turn. Out takes a part's sums.
template <int N, typename Terms, typename Out>
__global__ void __launch_bounds__(kSumThreads)
    PartialSumsKernel(const Terms terms, int64_t rows, int64_t cols, int64_t rows_per_part,
                      const Out out) {
  constexpr int kSums = Terms::kSums, kCols = kWarp * N;
  __shared__ float shared[kSums * kSumWarps * kCols];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t col = int64_t{blockIdx.x} * kCols + lane * N;
  const int64_t begin = blockIdx.y * rows_per_part;
  const int64_t end = begin + rows_per_part < rows ? begin + rows_per_part : rows;
  Pack<float, N> sums[kSums] = {};
  if (col < cols) {
    for (int64_t row = begin + warp; row < end; row += kSumWarps) terms.Add(row, col, sums);
  }
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      shared[(s * kSumWarps + warp) * kCols + lane * N + i] = sums[s].v[i];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kSums * kCols; i += kSumThreads) {
    const int s = i / kCols, c = i % kCols;
    const int64_t to = int64_t{blockIdx.x} * kCols + c;
    if (to >= cols) continue;
    float sum = 0.0f;
    for (int w = 0; w < kSumWarps; ++w) sum += shared[(s * kSumWarps + w) * kCols + c];
    out.Take(int64_t{blockIdx.z} * kSums + s, blockIdx.y, to, sum);
  }
}

// finish(plane, column, sums) for every column of every plane. A block has a column a lane; its
// warps take every so many parts, so that enough loads are in flight.
template <int kSums, typename Finish>
__global__ void __launch_bounds__(kSumThreads)
    FinishSumsKernel(const PartialSums partials, const Finish finish) {
  __shared__ float shared[kSums * kSumWarps * kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t col = int64_t{blockIdx.x} * kWarp + lane;
  const bool here = col < partials.cols;
  const int64_t size = partials.parts * partials.cols;
  const float* from = partials.data + blockIdx.y * kSums * size + col;
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    float sum = 0.0f;
#pragma unroll 4
    for (int64_t part = warp; here && part < partials.parts; part += kSumWarps) {
      sum += from[s * size + part * partials.cols];
    }
    shared[(s * kSumWarps + warp) * kWarp + lane] = sum;
  }
  __syncthreads();
  if (warp != 0 || !here) return;
  float sums[kSums];
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    sums[s] = 0.0f;
    for (int w = 0; w < kSumWarps; ++w) sums[s] += shared[(s * kSumWarps + w) * kWarp + lane];
  }
  finish(int64_t{blockIdx.y}, col, sums);
}

// Terms that are the elements themselves.
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

// out[s][col] += each sum.
template <int kSums>
struct AddSums {
  float* out[kSums];
  __device__ void operator()(int64_t, int64_t col, const float (&sums)[kSums]) const {
#pragma unroll
    for (int s = 0; s < kSums; ++s) out[s][col] += sums[s];
  }
};

// Returns the number of parts that the rows are cut into, by shape alone.
inline int64_t SumParts(int64_t rows, int64_t cols, int64_t planes) {
  const int64_t across = CeilDiv(cols, kWarp * 8) * planes;
  int64_t parts = CeilDiv(kBlocksWanted, across > 0 ? across : 1);
  const int64_t useful = CeilDiv(rows, kRowsPerBlockMin);
  if (parts > useful) parts = useful;
  return parts < 1 ? 1 : parts > kPartsMax ? kPartsMax : parts;
}

// Scratch for so many sums of each plane.
inline int64_t ColumnSumBytes(int64_t sums, int64_t rows, int64_t cols, int64_t planes = 1) {
  return planes * sums * SumParts(rows, cols, planes) * cols * static_cast<int64_t>(sizeof(float));
}

struct SumShape {
  int64_t rows, cols, planes = 1;
};

// `inputs`: what Terms reads in packs of columns, each with `shape`'s columns.
template <typename T, typename Terms, typename Finish>
void SumColumns(const Queue& queue, const char* name, const Terms& terms,
                std::initializer_list<Tensor> inputs, const SumShape& shape, const Finish& finish,
                Workspace workspace) {
  const int64_t rows = shape.rows, cols = shape.cols, planes = shape.planes;
  ATOLL_CHECK(workspace.bytes >= ColumnSumBytes(Terms::kSums, rows, cols, planes),
              "workspace too small");
  ATOLL_CHECK(planes <= 65535, "too many planes of sums for one kernel");
  const int64_t parts = SumParts(rows, cols, planes), rows_per_part = CeilDiv(rows, parts);
  const PartialSums partials{static_cast<float*>(workspace.data), parts, cols};
  const auto launch = [&]<int N>() {
    const dim3 grid(static_cast<unsigned>(CeilDiv(cols, kWarp * N)), static_cast<unsigned>(parts),
                    static_cast<unsigned>(planes));
    Launch(queue, grid, dim3(kSumThreads), 0, name, PartialSumsKernel<N, Terms, PartialSums>, terms,
           rows, cols, rows_per_part, partials);
  };
  ForPack<kWide<T>>(inputs, cols, launch);
  const dim3 grid(static_cast<unsigned>(CeilDiv(cols, kWarp)), static_cast<unsigned>(planes));
  Launch(queue, grid, dim3(kSumThreads), 0, name, FinishSumsKernel<Terms::kSums, Finish>, partials,
         finish);
}

}  // namespace atl::ATOLL_DEVICE

#endif  // ATOLL_KERNELS_CUDA_DEVICE_COLUMN_SUMS_H_
