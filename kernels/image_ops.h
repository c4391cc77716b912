// The arguments of operations on images; see ops.h for the notation and rules.
//
// An image is height * width rows of C channels (pixels row by row), a batch its images one after
// the other, so that a convolution of 1 x 1 is a product and a channel a column. All tensors here
// are contiguous.

#ifndef ATOLL_KERNELS_IMAGE_OPS_H_
#define ATOLL_KERNELS_IMAGE_OPS_H_

#include <array>
#include <cstdint>

#include "kernels/tensor.h"

namespace atl {

enum class Activation : uint8_t;

// Windows that move over images.
struct WindowShape {
  int64_t batch = 0;
  int64_t in_height = 0, in_width = 0;
  int64_t kernel = 1;  // height and width
  int64_t stride = 1;
  int64_t pad = 0;  // on every side

  int64_t out_height() const { return (in_height + 2 * pad - kernel) / stride + 1; }
  int64_t out_width() const { return (in_width + 2 * pad - kernel) / stride + 1; }
  int64_t in_rows() const { return batch * in_height * in_width; }
  int64_t out_rows() const { return batch * out_height() * out_width(); }
  bool operator==(const WindowShape&) const = default;
};

inline constexpr int64_t kMaxPixelChannels = 4;

// y = pixel * scale[channel] + shift[channel].
struct PixelsForward {
  Tensor pixels;  // int32 [1, N * C]
  Tensor y;       // act [N, C]
  std::array<float, kMaxPixelChannels> scale{}, shift{};
  void Check() const;
};

// ---- Convolution (cross-correlation, as PyTorch's conv2d without bias). Of `groups`, output
// channels of group g see the input channels of group g alone. ----

struct ConvShape {
  WindowShape window;
  int64_t in_channels = 0;
  int64_t out_channels = 0;
  int64_t groups = 1;  // divides both

  int64_t weight_cols() const { return in_channels / groups * window.kernel * window.kernel; }
  bool operator==(const ConvShape&) const = default;
};

struct ConvForward {
  ConvShape shape;
  Tensor x;  // act [in_rows, in_channels]
  Tensor w;  // act [out_channels, in_channels / groups * kernel * kernel], as PyTorch has it
  Tensor y;  // act [out_rows, out_channels]
  void Check() const;
};

// B
struct ConvBackwardInput {
  ConvShape shape;
  Tensor dy;  // act [out_rows, out_channels]
  Tensor w;   // as in forward
  Tensor dx;  // act [in_rows, in_channels]
  void Check() const;
};

// W: dw += ...
struct ConvBackwardWeight {
  ConvShape shape;
  Tensor x;   // act [in_rows, in_channels]
  Tensor dy;  // act [out_rows, out_channels]
  Tensor dw;  // f32, as w
  void Check() const;
};

// ---- Batch normalisation over rows: y = activation((x - mean) * rstd * w + b + add), with mean
// and rstd = 1 / sqrt(variance + eps) of each column. ----

struct BatchNormForward {
  Tensor x;    // act [N, C]
  Tensor w;    // act [1, C]
  Tensor b;    // act [1, C]
  Tensor add;  // act [N, C]; optional
  Tensor y;    // act [N, C]; may be x or add
  // The batch's, kept for backward; or, with both of these, they are used in the batch's place and
  // mean and rstd are absent.
  Tensor running_mean, running_variance;  // act [1, C]; optional
  Tensor mean;                            // f32 [1, C]
  Tensor rstd;                            // f32 [1, C]
  float eps = 1e-5f;
  Activation activation{};  // kNone, kRelu or kSilu
  void Check() const;
};

// B. With dz = dy * activation'(what it was applied to).
struct BatchNormBackwardInput {
  Tensor x, w, b, add, mean, rstd;  // as in forward
  Tensor dy;                        // act [N, C]
  Tensor sums;  // f32 [2, C]: sums over rows of dz, and of dz * (x - mean) * rstd
  Tensor dx;    // act [N, C]; may be dy where there is no dadd
  Tensor dadd;  // act [N, C]: dz; optional; may be dy
  Activation activation{};
  void Check() const;
};

// W: dw += sums[1], db += sums[0]; and for the running statistics, in whose gradients means wait
// for the optimizer: dmean += samples * mean, dvariance += samples * variance * N / (N - 1).
struct BatchNormBackwardWeight {
  Tensor sums;                      // f32 [2, C]
  Tensor mean, rstd;                // f32 [1, C]
  Tensor dw, db, dmean, dvariance;  // f32 [1, C]
  int64_t rows = 0;                 // N
  int64_t samples = 0;
  float eps = 1e-5f;
  void Check() const;
};

// running = (1 - momentum) * running + momentum * sums / samples. Flat.
struct RunningMean {
  Tensor running;     // f32
  Tensor sums;        // f32
  Tensor param_copy;  // bf16; optional: receives the new numbers rounded
  float samples = 1;
  float momentum = 0.1f;
  bool zero_sums = false;
  void Check() const;
};

// ---- Pooling. Of equal largest elements in a window the first one gets the gradient, as in
// PyTorch. An average has no padding. A window of a whole image pools globally. ----

enum class PoolKind : uint8_t { kMax, kAverage };

struct PoolForward {
  PoolKind kind = PoolKind::kMax;
  WindowShape shape;
  Tensor x;  // act [in_rows, C]
  Tensor y;  // act [out_rows, C]
  void Check() const;
};

// dx = ... + add
struct PoolBackward {
  PoolKind kind = PoolKind::kMax;
  WindowShape shape;
  Tensor x;    // act [in_rows, C]
  Tensor dy;   // act [out_rows, C]
  Tensor add;  // act [in_rows, C]; optional; may be dx
  Tensor dx;   // act [in_rows, C]
  void Check() const;
};

// ---- The second half of squeeze-and-excitation: y = x * sigmoid(gate of the image). ----

struct ChannelGateForward {
  Tensor x;     // act [N, C]
  Tensor gate;  // act [batch, C]; batch divides N
  Tensor y;     // act [N, C]
  void Check() const;
};

struct ChannelGateBackward {
  Tensor x;      // act [N, C]
  Tensor gate;   // act [batch, C]
  Tensor dy;     // act [N, C]
  Tensor dx;     // act [N, C]; may be dy
  Tensor dgate;  // act [batch, C]
  void Check() const;
};

// hits += rows whose target is the first class of those that have the largest logit; ignored rows
// are none. Of a vocabulary cut into parts, what CrossEntropySums found over all of them says so.
struct CountHits {
  Tensor logits;   // act [N, V], rows of any stride
  Tensor targets;  // int32 [1, N]
  Tensor hits;     // f32 [1, 1]
  Tensor sums;     // f32 [3, N], of the parts' CrossEntropySums together; absent: there is one part
  void Check() const;
};

}  // namespace atl

#endif  // ATOLL_KERNELS_IMAGE_OPS_H_
