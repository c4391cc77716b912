// A plain tiled product for whatever cuBLASLt declines, such as rows that begin on odd addresses.
// 2 m n k FLOP by FMA in fp32; each operand is read once per 64 rows, or columns, of the other.

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/launchers.h"

namespace atl::ATOLL_DEVICE {
namespace {

constexpr int kTile = 64;   // of rows and columns
constexpr int kDepth = 16;  // of what is summed over, at a time
constexpr int kSide = 16;   // threads stand 16 x 16, each with 4 x 4 elements
constexpr int kEach = kTile / kSide;
constexpr int kThreads = kSide * kSide;
constexpr int kStride = kTile + 1;

// A matrix by the distances between rows and between columns.
template <typename T>
struct Strided {
  const T* data;
  int64_t of_row, of_col;
  __device__ float At(int64_t row, int64_t col) const {
    return ToFloat(data[row * of_row + col * of_col]);
  }
};

template <typename T, typename Out>
__global__ void __launch_bounds__(kThreads)
    ProductKernel(Strided<T> a, Strided<T> b, View<Out> c, View<Out> d, int64_t rows, int64_t cols,
                  int64_t depth) {
  __shared__ float left[kDepth * kStride], right[kDepth * kStride];
  const int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
  const int64_t row = int64_t{blockIdx.y} * kTile, col = int64_t{blockIdx.x} * kTile;
  float sum[kEach][kEach] = {};
  for (int64_t k = 0; k < depth; k += kDepth) {
    for (int i = threadIdx.x; i < kDepth * kTile; i += kThreads) {
      // Neighbouring threads read neighbouring elements, whichever way the matrix lies.
      const bool along_a = a.of_col == 1;
      const int ra = along_a ? i / kDepth : i % kTile, ka = along_a ? i % kDepth : i / kTile;
      left[ka * kStride + ra] = row + ra < rows && k + ka < depth ? a.At(row + ra, k + ka) : 0.0f;
      const bool along_b = b.of_row == 1;
      const int cb = along_b ? i / kDepth : i % kTile, kb = along_b ? i % kDepth : i / kTile;
      right[kb * kStride + cb] = col + cb < cols && k + kb < depth ? b.At(k + kb, col + cb) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
#pragma unroll
      for (int r = 0; r < kEach; ++r) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          sum[r][j] += left[i * kStride + ty + kSide * r] * right[i * kStride + tx + kSide * j];
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

template <typename T>
Strided<T> MakeStrided(const Tensor& x, bool transposed) {
  const auto* data = static_cast<const T*>(x.data);
  return transposed ? Strided<T>{data, 1, x.stride} : Strided<T>{data, x.stride, 1};
}

}  // namespace

void Enqueue(const Queue& queue, const Product& p) {
  ATOLL_CHECK(p.epilogue == Epilogue::kNone);
  const int64_t down = CeilDiv(p.d.rows, kTile);
  ATOLL_CHECK(down <= 65535, "a product of ", p.d.rows, " rows is too tall");
  ForType(p.a.dtype, [&]<typename T>() {
    ForType(p.d.dtype, [&]<typename Out>() {
      Launch(queue,
             dim3(static_cast<unsigned>(CeilDiv(p.d.cols, kTile)), static_cast<unsigned>(down)),
             dim3(kThreads), 0, "Product", ProductKernel<T, Out>,
             MakeStrided<T>(p.a, p.a_transposed), MakeStrided<T>(p.b, p.b_transposed),
             MakeView<Out>(p.c), MakeView<Out>(p.d), p.d.rows, p.d.cols, p.depth());
    });
  });
}

}  // namespace atl::ATOLL_DEVICE
