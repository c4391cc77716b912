// A plain tiled product for whatever cuBLASLt declines, such as rows that begin on odd addresses.

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/launchers.h"
#include "kernels/cuda/device/product_tile.h"

namespace atl::ATOLL_DEVICE {
namespace {

template <typename T, typename Out>
__global__ void __launch_bounds__(kTileThreads)
    ProductKernel(Strided<T> a, Strided<T> b, View<Out> c, View<Out> d, int64_t rows, int64_t cols,
                  int64_t depth) {
  MultiplyTile(a, b, c, d, int64_t{blockIdx.y} * kTile, int64_t{blockIdx.x} * kTile, rows, cols,
               depth);
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
             dim3(kTileThreads), 0, "Product", ProductKernel<T, Out>,
             MakeStrided<T>(p.a, p.a_transposed), MakeStrided<T>(p.b, p.b_transposed),
             MakeView<Out>(p.c), MakeView<Out>(p.d), p.d.rows, p.d.cols, p.depth());
    });
  });
}

}  // namespace atl::ATOLL_DEVICE
