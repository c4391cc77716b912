// Windows over images, as kernels see them: which rows of the input a row of the output looks at.

#ifndef ATOLL_KERNELS_CUDA_DEVICE_WINDOW_H_
#define ATOLL_KERNELS_CUDA_DEVICE_WINDOW_H_

#include "kernels/cuda/device/device.h"
#include "kernels/image_ops.h"

namespace atl::ATOLL_DEVICE {

struct Window {
  int in_height, in_width, out_height, out_width, kernel, stride, pad;

  __device__ int taps() const { return kernel * kernel; }

  // The input row of a tap of an output row; -1 where the tap lies beside the image.
  __device__ int64_t InRow(int64_t out_row, int tap) const {
    const int64_t image = out_row / (out_height * out_width);
    const int at = static_cast<int>(out_row % (out_height * out_width));
    const int y = at / out_width * stride + tap / kernel - pad;
    const int x = at % out_width * stride + tap % kernel - pad;
    if (y < 0 || y >= in_height || x < 0 || x >= in_width) return -1;
    return (image * in_height + y) * in_width + x;
  }

  // The output row whose tap this input row is; -1 where there is none.
  __device__ int64_t OutRow(int64_t in_row, int tap) const {
    const int64_t image = in_row / (in_height * in_width);
    const int at = static_cast<int>(in_row % (in_height * in_width));
    const int y = at / in_width + pad - tap / kernel, x = at % in_width + pad - tap % kernel;
    if (y < 0 || x < 0 || y % stride != 0 || x % stride != 0) return -1;
    if (y / stride >= out_height || x / stride >= out_width) return -1;
    return (image * out_height + y / stride) * out_width + x / stride;
  }
};

inline Window WindowFrom(const WindowShape& s) {
  ATOLL_CHECK(s.in_height * s.in_width < INT32_MAX && s.kernel * s.kernel < INT32_MAX,
              "images too large for a kernel");
  const auto whole = [](int64_t x) { return static_cast<int>(x); };
  return {whole(s.in_height), whole(s.in_width), whole(s.out_height()), whole(s.out_width()),
          whole(s.kernel),    whole(s.stride),   whole(s.pad)};
}

}  // namespace atl::ATOLL_DEVICE

#endif  // ATOLL_KERNELS_CUDA_DEVICE_WINDOW_H_
