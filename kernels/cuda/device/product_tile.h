// A tile of a plain product on CUDA cores, for whatever no library takes. 2 m n k FLOP by FMA in
// fp32; each operand is read once per 64 rows, or columns, of the other.

#ifndef ATOLL_KERNELS_CUDA_DEVICE_PRODUCT_TILE_H_
#define ATOLL_KERNELS_CUDA_DEVICE_PRODUCT_TILE_H_

#include "kernels/cuda/device/device.h"

namespace atl::ATOLL_DEVICE {

inline constexpr int kTile = 64;   // of rows and columns
inline constexpr int kDepth = 16;  // of what is summed over, at a time
inline constexpr int kSide = 16;   // threads stand 16 x 16, each with 4 x 4 elements
inline constexpr int kEach = kTile / kSide;
inline constexpr int kTileThreads = kSide * kSide;
inline constexpr int kTileStride = kTile + 1;

// A matrix by the distances between rows and between columns.
template <typename T>
struct Strided {
  const T* data;
  int64_t of_row, of_col;
  __device__ float At(int64_t row, int64_t col) const {
    return ToFloat(data[row * of_row + col * of_col]);
  }
};

template <typename T>
Strided<T> MakeStrided(const Tensor& x, bool transposed) {
  const auto* data = static_cast<const T*>(x.data);
  return transposed ? Strided<T>{data, 1, x.stride} : Strided<T>{data, x.stride, 1};
}

// d = a b + c, for the tile that begins at [row, col] of d's [rows, cols]; c may be absent. All
// kTileThreads of a block call it.
template <typename T, typename Out>
__device__ inline void MultiplyTile(Strided<T> a, Strided<T> b, View<Out> c, View<Out> d,
                                    int64_t row, int64_t col, int64_t rows, int64_t cols,
                                    int64_t depth) {
  __shared__ float left[kDepth * kTileStride], right[kDepth * kTileStride];
  const int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
  float sum[kEach][kEach] = {};
  for (int64_t k = 0; k < depth; k += kDepth) {
    for (int i = threadIdx.x; i < kDepth * kTile; i += kTileThreads) {
      // Neighbouring threads read neighbouring elements, whichever way the matrix lies.
      const bool along_a = a.of_col == 1;
      const int ra = along_a ? i / kDepth : i % kTile, ka = along_a ? i % kDepth : i / kTile;
      left[ka * kTileStride + ra] =
          row + ra < rows && k + ka < depth ? a.At(row + ra, k + ka) : 0.0f;
      const bool along_b = b.of_row == 1;
      const int cb = along_b ? i / kDepth : i % kTile, kb = along_b ? i % kDepth : i / kTile;
      right[kb * kTileStride + cb] =
          col + cb < cols && k + kb < depth ? b.At(k + kb, col + cb) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
#pragma unroll
      for (int r = 0; r < kEach; ++r) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          sum[r][j] +=
              left[i * kTileStride + ty + kSide * r] * right[i * kTileStride + tx + kSide * j];
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t to_row = row + ty + kSide * r, to_col = col + tx + kSide * j;
      if (to_row >= rows || to_col >= cols) continue;
      const float before = c.data == nullptr ? 0.0f : ToFloat(c.Row(to_row)[to_col]);
      Put(d.Row(to_row) + to_col, sum[r][j] + before);
    }
  }
}

// Finds the group and the first of its rows of a tile, counted over all groups' rows in order.
// False: there are fewer.
__device__ inline bool FindTile(const int32_t* group_starts, int groups, int64_t tile, int* group,
                                int64_t* row) {
  for (int g = 0; g < groups; ++g) {
    const int64_t tiles = (group_starts[g + 1] - group_starts[g] + kTile - 1) / kTile;
    if (tile < tiles) {
      *group = g;
      *row = tile * kTile;
      return true;
    }
    tile -= tiles;
  }
  return false;
}

}  // namespace atl::ATOLL_DEVICE

#endif  // ATOLL_KERNELS_CUDA_DEVICE_PRODUCT_TILE_H_
