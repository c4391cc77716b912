#include "kernels/image_ops.h"

#include "kernels/ops.h"

namespace atl {
namespace {

void Expect(const Tensor& x, const char* name, int64_t rows, int64_t cols) {
  ATOLL_CHECK(x.rows == rows && x.cols == cols && x.contiguous(), name, " is ", x.rows, " x ",
              x.cols, " with stride ", x.stride, ", not ", rows, " x ", cols);
}

void ExpectAct(const Tensor& x, const char* name, int64_t rows, int64_t cols, const Tensor& like) {
  Expect(x, name, rows, cols);
  ATOLL_CHECK(x.dtype != DType::kInt32 && x.dtype == like.dtype, name,
              ": activations of one operation have one dtype");
}

void ExpectState(const Tensor& x, const char* name, int64_t rows, int64_t cols) {
  Expect(x, name, rows, cols);
  ATOLL_CHECK(x.dtype == DType::kFloat32 || x.dtype == DType::kFloat64, name, " must be f32");
}

bool Given(const Tensor& x) { return x.rows != 0 || x.present(); }

void CheckWindow(const WindowShape& s) {
  ATOLL_CHECK(s.batch > 0 && s.in_height > 0 && s.in_width > 0 && s.kernel > 0 && s.stride > 0 &&
              s.pad >= 0 && s.pad < s.kernel);
  ATOLL_CHECK(s.in_height + 2 * s.pad >= s.kernel && s.in_width + 2 * s.pad >= s.kernel,
              "a window of ", s.kernel, " over images of ", s.in_height, " x ", s.in_width);
}

void CheckConv(const ConvShape& s, const Tensor& x, const Tensor& w, const Tensor& y,
               bool state_weights) {
  CheckWindow(s.window);
  ATOLL_CHECK(s.groups > 0 && s.in_channels % s.groups == 0 && s.out_channels % s.groups == 0,
              s.groups, " groups of ", s.in_channels, " and ", s.out_channels, " channels");
  ExpectAct(x, "x", s.window.in_rows(), s.in_channels, y);
  ExpectAct(y, "y", s.window.out_rows(), s.out_channels, y);
  if (state_weights) return ExpectState(w, "dw", s.out_channels, s.weight_cols());
  ExpectAct(w, "w", s.out_channels, s.weight_cols(), y);
}

void CheckPool(PoolKind kind, const WindowShape& s, const Tensor& x, const Tensor& y) {
  CheckWindow(s);
  ATOLL_CHECK(kind != PoolKind::kAverage || s.pad == 0, "an average has no padding");
  ExpectAct(x, "x", s.in_rows(), y.cols, y);
  ExpectAct(y, "y", s.out_rows(), y.cols, y);
}

void CheckActivation(Activation activation) {
  ATOLL_CHECK(activation == Activation::kNone || activation == Activation::kRelu ||
              activation == Activation::kSilu);
}

}  // namespace

void PixelsForward::Check() const {
  ATOLL_CHECK(y.cols <= kMaxPixelChannels, y.cols, " channels of pixels");
  ExpectAct(y, "y", y.rows, y.cols, y);
  Expect(pixels, "pixels", 1, y.size());
  ATOLL_CHECK(pixels.dtype == DType::kInt32, "pixels must be int32");
}

void ConvForward::Check() const { CheckConv(shape, x, w, y, false); }
void ConvBackwardInput::Check() const { CheckConv(shape, dx, w, dy, false); }
void ConvBackwardWeight::Check() const { CheckConv(shape, x, dw, dy, true); }

void BatchNormForward::Check() const {
  const int64_t n = x.rows, c = x.cols;
  CheckActivation(activation);
  ExpectAct(x, "x", n, c, x);
  ExpectAct(w, "w", 1, c, x);
  ExpectAct(b, "b", 1, c, x);
  if (Given(add)) ExpectAct(add, "add", n, c, x);
  ExpectAct(y, "y", n, c, x);
  if (Given(running_mean)) {
    ExpectAct(running_mean, "running_mean", 1, c, x);
    return ExpectAct(running_variance, "running_variance", 1, c, x);
  }
  ExpectState(mean, "mean", 1, c);
  ExpectState(rstd, "rstd", 1, c);
}

void BatchNormBackwardInput::Check() const {
  const int64_t n = x.rows, c = x.cols;
  CheckActivation(activation);
  ExpectAct(x, "x", n, c, x);
  ExpectAct(w, "w", 1, c, x);
  ExpectAct(b, "b", 1, c, x);
  if (Given(add)) ExpectAct(add, "add", n, c, x);
  ExpectState(mean, "mean", 1, c);
  ExpectState(rstd, "rstd", 1, c);
  ExpectAct(dy, "dy", n, c, x);
  ExpectState(sums, "sums", 2, c);
  ExpectAct(dx, "dx", n, c, x);
  if (Given(dadd)) ExpectAct(dadd, "dadd", n, c, x);
}

void BatchNormBackwardWeight::Check() const {
  const int64_t c = sums.cols;
  ExpectState(sums, "sums", 2, c);
  for (const Tensor* x : {&mean, &rstd, &dw, &db, &dmean, &dvariance}) {
    ExpectState(*x, "a statistic", 1, c);
  }
  ATOLL_CHECK(rows > 0 && samples > 0);
}

void RunningMean::Check() const {
  ExpectState(running, "running", 1, running.cols);
  ExpectState(sums, "sums", 1, running.cols);
  if (Given(param_copy)) Expect(param_copy, "param_copy", 1, running.cols);
  ATOLL_CHECK(samples > 0);
}

void PoolForward::Check() const { CheckPool(kind, shape, x, y); }

void PoolBackward::Check() const {
  CheckPool(kind, shape, dx, dy);
  ExpectAct(x, "x", shape.in_rows(), dy.cols, dy);
  if (Given(add)) ExpectAct(add, "add", shape.in_rows(), dy.cols, dy);
}

void ChannelGateForward::Check() const {
  ATOLL_CHECK(gate.rows > 0 && x.rows % gate.rows == 0, gate.rows, " gates of ", x.rows, " rows");
  ExpectAct(x, "x", x.rows, x.cols, x);
  ExpectAct(gate, "gate", gate.rows, x.cols, x);
  ExpectAct(y, "y", x.rows, x.cols, x);
}

void ChannelGateBackward::Check() const {
  ChannelGateForward{x, gate, dx}.Check();
  ExpectAct(dy, "dy", x.rows, x.cols, x);
  ExpectAct(dgate, "dgate", gate.rows, x.cols, x);
}

void CountHits::Check() const {
  Expect(targets, "targets", 1, logits.rows);
  ATOLL_CHECK(targets.dtype == DType::kInt32, "targets must be int32");
  ExpectState(hits, "hits", 1, 1);
  if (sums.rows != 0) ExpectState(sums, "sums", 3, logits.rows);
}

}  // namespace atl
