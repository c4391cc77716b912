// A warp's fragments of products by mma.m16n8k16 (MmaBf16), from tiles in shared memory. Rows of a
// tile are kFragmentPad elements longer than they need to be, so that the eight rows of a fragment
// lie in different banks.

#ifndef ATOLL_KERNELS_CUDA_DEVICE_FRAGMENTS_H_
#define ATOLL_KERNELS_CUDA_DEVICE_FRAGMENTS_H_

#include "kernels/cuda/device/device.h"

namespace atl::ATOLL_DEVICE {

inline constexpr int kFragmentPad = 8;

__device__ inline unsigned Pair(const Bf16* p) { return *reinterpret_cast<const unsigned*>(p); }

__device__ inline unsigned Pair(float low, float high) {
  Bf16 pair[2];
  Put(&pair[0], low);
  Put(&pair[1], high);
  return unsigned{pair[0].bits} | unsigned{pair[1].bits} << 16;
}

// 16 x 16 of the left matrix.
struct Left {
  unsigned r[4];
};

// From a tile whose rows are the product's rows.
__device__ inline Left LoadLeft(const Bf16* tile, int stride, int row, int k) {
  const int lane = threadIdx.x % kWarp;
  const Bf16* at = tile + (row + lane / 4) * stride + k + lane % 4 * 2;
  return {{Pair(at), Pair(at + 8 * stride), Pair(at + 8), Pair(at + 8 * stride + 8)}};
}

// From a tile whose columns are the product's rows.
__device__ inline Left LoadTurnedLeft(const Bf16* tile, int stride, int row, int k) {
  const Bf16* at = tile + (k + threadIdx.x % 16) * stride + row;
  unsigned upper[2], lower[2];
  LoadTurned(upper, at);
  LoadTurned(lower, at + 8);
  return {{upper[0], lower[0], upper[1], lower[1]}};
}

// 16 x 8 of the right matrix.
struct Right {
  unsigned r[2];
};

// From a tile whose rows are the product's columns.
__device__ inline Right LoadRight(const Bf16* tile, int stride, int column, int k) {
  const int lane = threadIdx.x % kWarp;
  const Bf16* at = tile + (column + lane / 4) * stride + k + lane % 4 * 2;
  return {{Pair(at), Pair(at + 8)}};
}

// From a tile whose columns are the product's columns.
__device__ inline Right LoadTurnedRight(const Bf16* tile, int stride, int column, int k) {
  Right right;
  LoadTurned(right.r, tile + (k + threadIdx.x % 16) * stride + column);
  return right;
}

// sum += left * right.
__device__ inline void Multiply(float (&sum)[4], const Left& left, const Right& right) {
  MmaBf16(sum, left.r, right.r);
}

}  // namespace atl::ATOLL_DEVICE

#endif  // ATOLL_KERNELS_CUDA_DEVICE_FRAGMENTS_H_
