// Products of mixtures of experts in bf16 with tensor cores, for matrices whose rows begin on 16
// bytes and are multiples of 8 elements: what experts.cu does, by tiles of 64 x 128 with
// mma.m16n8k16 (bf16 in, fp32 sums), 2 m n k FLOP; each operand is read once per tile of the other.
//
// A block is four warps, each with 32 x 64 of the tile. Shared memory has two steps of the depth:
// the next one is on its way in registers while one is multiplied.

#include "kernels/cuda/device/fragments.h"
#include "kernels/cuda/device/launchers.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/product_tile.h"

namespace atl::ATOLL_DEVICE {
namespace {

constexpr int kThreads = 128;
constexpr int kColumns = 128;  // of a tile, whose rows are kTile
constexpr int kStep = 32;      // of what is summed over
constexpr int kPack = 8;       // elements in 16 bytes
constexpr int kLefts = 2;      // of 16 rows, of a warp
constexpr int kRights = 8;     // of 8 columns, of a warp

// A matrix of a product by its extent (rows of the left one, columns of the right one) and what is
// summed over, the depth. Turned: the extent lies along its rows in memory, else the depth does.
struct Operand {
  const Bf16* data;
  int64_t stride;
  int64_t extent, depth;
};

// kExtent x kStep of an operand, in shared memory.
template <bool kTurned, int kExtent>
struct OperandTile {
  static constexpr int kRows = kTurned ? kStep : kExtent, kCols = kTurned ? kExtent : kStep;
  static constexpr int kStride = kCols + kFragmentPad;
  static constexpr int kElements = kRows * kStride;
  static constexpr int kPacks = kRows * kCols / kPack / kThreads;  // of a thread
  static_assert(kPacks * kThreads * kPack == kRows * kCols);

  // A thread's elements; zero beyond the operand.
  Pack<Bf16, kPack> packs[kPacks];

  static __device__ int Row(int i) { return (threadIdx.x + i * kThreads) / (kCols / kPack); }
  static __device__ int Col(int i) {
    return (threadIdx.x + i * kThreads) % (kCols / kPack) * kPack;
  }
  __device__ void Read(const Operand& x, int64_t at, int64_t depth) {
    const int64_t row = kTurned ? depth : at, col = kTurned ? at : depth;
    const int64_t rows = kTurned ? x.depth : x.extent, cols = kTurned ? x.extent : x.depth;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int64_t r = row + Row(i), c = col + Col(i);
      packs[i] = {};
      if (r < rows && c < cols) {
        packs[i] = *reinterpret_cast<const Pack<Bf16, kPack>*>(x.data + r * x.stride + c);
      }
    }
  }
  __device__ void Write(Bf16* tile) const {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      *reinterpret_cast<Pack<Bf16, kPack>*>(tile + Row(i) * kStride + Col(i)) = packs[i];
    }
  }
};

// sum += this warp's part of a step.
template <bool kLeftTurned, bool kRightTurned>
__device__ inline void MultiplyStep(const Bf16* left, const Bf16* right,
                                    float (&sum)[kLefts][kRights][4]) {
  constexpr int kLeftStride = OperandTile<kLeftTurned, kTile>::kStride;
  constexpr int kRightStride = OperandTile<kRightTurned, kColumns>::kStride;
  const int warp = threadIdx.x / kWarp, row = warp / 2 * 32, col = warp % 2 * 64;
#pragma unroll
  for (int k = 0; k < kStep; k += 16) {
    Left rows[kLefts];
#pragma unroll
    for (int m = 0; m < kLefts; ++m) {
      rows[m] = kLeftTurned ? LoadTurnedLeft(left, kLeftStride, row + 16 * m, k)
                            : LoadLeft(left, kLeftStride, row + 16 * m, k);
    }
#pragma unroll
    for (int c = 0; c < kRights; ++c) {
      const Right column = kRightTurned ? LoadTurnedRight(right, kRightStride, col + 8 * c, k)
                                        : LoadRight(right, kRightStride, col + 8 * c, k);
#pragma unroll
      for (int m = 0; m < kLefts; ++m) Multiply(sum[m][c], rows[m], column);
    }
  }
}

// Calls finish(row, col, low, high) for pairs of columns of the tile at [row, col] of left * right.
template <bool kLeftTurned, bool kRightTurned, typename Finish>
__device__ inline void MultiplyOperands(const Operand& left, const Operand& right, int64_t row,
                                        int64_t col, const Finish& finish) {
  OperandTile<kLeftTurned, kTile> next_left;
  OperandTile<kRightTurned, kColumns> next_right;
  alignas(16) __shared__ Bf16 lefts[2][OperandTile<kLeftTurned, kTile>::kElements];
  alignas(16) __shared__ Bf16 rights[2][OperandTile<kRightTurned, kColumns>::kElements];
  float sum[kLefts][kRights][4] = {};
  const auto read = [&](int64_t depth) {
    next_left.Read(left, row, depth);
    next_right.Read(right, col, depth);
  };
  const auto write = [&](int buffer) {
    next_left.Write(lefts[buffer]);
    next_right.Write(rights[buffer]);
  };
  read(0);
  write(0);
  __syncthreads();
  int buffer = 0;
  for (int64_t k = 0; k < left.depth; k += kStep, buffer = 1 - buffer) {
    const bool more = k + kStep < left.depth;
    if (more) read(k + kStep);
    MultiplyStep<kLeftTurned, kRightTurned>(lefts[buffer], rights[buffer], sum);
    if (more) write(1 - buffer);
    __syncthreads();
  }
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  row += warp / 2 * 32 + lane / 4;
  col += warp % 2 * 64 + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 2 * kLefts; ++i) {
    if (row + 8 * i >= left.extent) break;
#pragma unroll
    for (int c = 0; c < kRights; ++c) {
      if (col + 8 * c >= right.extent) break;
      const float* pair = sum[i / 2][c] + i % 2 * 2;
      finish(row + 8 * i, col + 8 * c, pair[0], pair[1]);
    }
  }
}

// Block (x, y) is the x-th tile of rows, of all groups in order, and the y-th of columns. The right
// matrix of the first group is `right`.
template <bool kRightTurned>
__global__ void __launch_bounds__(kThreads)
    GroupedRowsKernel(View<Bf16> left, Operand right, int64_t stride, const int32_t* group_starts,
                      int groups, View<Bf16> d) {
  int group = 0;
  int64_t row = 0;
  if (!FindTile(group_starts, groups, blockIdx.x, &group, &row)) return;
  const int64_t first = group_starts[group], rows = group_starts[group + 1] - first;
  right.data += stride * group;
  MultiplyOperands<false, kRightTurned>(
      {left.Row(first), left.stride, rows, right.depth}, right, row, int64_t{blockIdx.y} * kColumns,
      [&](int64_t r, int64_t c, float low, float high) {
        *reinterpret_cast<unsigned*>(d.Row(first + r) + c) = Pair(low, high);
      });
}

// Block (x, y, z) is tile (y, x) of group z's matrix [out, in].
__global__ void __launch_bounds__(kThreads)
    GroupedWeightKernel(View<Bf16> dy, View<Bf16> x, const int32_t* group_starts, View<float> dw,
                        int64_t stride, int64_t out, int64_t in) {
  const int64_t first = group_starts[blockIdx.z], depth = group_starts[blockIdx.z + 1] - first;
  if (depth == 0) return;
  float* const of_group = dw.data + stride * blockIdx.z;
  MultiplyOperands<true, true>({dy.Row(first), dy.stride, out, depth},
                               {x.Row(first), x.stride, in, depth}, int64_t{blockIdx.y} * kTile,
                               int64_t{blockIdx.x} * kColumns,
                               [&](int64_t r, int64_t c, float low, float high) {
                                 float* const to = of_group + r * dw.stride + c;
                                 to[0] += low;
                                 to[1] += high;
                               });
}

// ---- Launchers ----

// `width`, `other`: of rows in memory.
bool Takes(std::initializer_list<Tensor> tensors, int64_t width, int64_t other, int64_t stride) {
  for (const Tensor& x : tensors) {
    if (x.dtype != DType::kBfloat16) return false;
  }
  return stride % kPack == 0 && PackSize(tensors, width, kPack) == kPack &&
         PackSize(tensors, other, kPack) == kPack;
}

template <bool kRightTurned>
void EnqueueRows(const Queue& queue, const char* name, const Tensor& x, const Operand& right,
                 int64_t stride, const Tensor& group_starts, const Tensor& y) {
  const auto groups = static_cast<int>(group_starts.cols - 1);
  const dim3 grid(static_cast<unsigned>(CeilDiv(y.rows, kTile) + groups),
                  static_cast<unsigned>(CeilDiv(y.cols, kColumns)));
  Launch(queue, grid, dim3(kThreads), 0, name, GroupedRowsKernel<kRightTurned>, MakeView<Bf16>(x),
         right, stride, group_starts.as<int32_t>(), groups, MakeView<Bf16>(y));
}

}  // namespace

bool EnqueueOnTensorCores(const Queue& queue, const GroupedForward& op) {
  if (!Takes({op.x, op.w, op.y}, op.x.cols, op.y.cols, op.stride)) return false;
  const Operand right{static_cast<const Bf16*>(op.w.data), op.w.stride, op.y.cols, op.x.cols};
  EnqueueRows<false>(queue, "GroupedForward", op.x, right, op.stride, op.group_starts, op.y);
  return true;
}

bool EnqueueOnTensorCores(const Queue& queue, const GroupedBackwardInput& op) {
  if (!Takes({op.dy, op.w, op.dx}, op.dy.cols, op.dx.cols, op.stride)) return false;
  const Operand right{static_cast<const Bf16*>(op.w.data), op.w.stride, op.dx.cols, op.dy.cols};
  EnqueueRows<true>(queue, "GroupedBackwardInput", op.dy, right, op.stride, op.group_starts, op.dx);
  return true;
}

bool EnqueueOnTensorCores(const Queue& queue, const GroupedBackwardWeight& op) {
  if (!Takes({op.x, op.dy}, op.x.cols, op.dy.cols, 0)) return false;
  const dim3 grid(static_cast<unsigned>(CeilDiv(op.dw.cols, kColumns)),
                  static_cast<unsigned>(CeilDiv(op.dw.rows, kTile)),
                  static_cast<unsigned>(op.group_starts.cols - 1));
  Launch(queue, grid, dim3(kThreads), 0, "GroupedBackwardWeight", GroupedWeightKernel,
         MakeView<Bf16>(op.dy), MakeView<Bf16>(op.x), op.group_starts.as<int32_t>(),
         MakeView<float>(op.dw), op.stride, op.dw.rows, op.dw.cols);
  return true;
}

}  // namespace atl::ATOLL_DEVICE
