// Operations on images.

#include "kernels/testing/case_makers.h"

namespace atl::testing {
namespace {

// Contiguous, as all tensors of images are.
Arg Flat(const std::string& name, Role role, int64_t rows, int64_t cols, Type type = kAct,
         const std::string& added_to = "", std::function<double(int64_t)> value = nullptr) {
  return {name, role, rows, cols, type, std::move(value), true, added_to};
}

// Numbers of which no two near each other are equal, in steps that no slope's step reaches.
double Apart(int64_t i) { return static_cast<double>((i * 7919 + 13) % 257) / 16 - 8; }

std::string DescribeWindow(const WindowShape& s) {
  return absl::StrCat(s.batch, "x", s.in_height, "x", s.in_width, " kernel ", s.kernel, " stride ",
                      s.stride, " pad ", s.pad);
}

}  // namespace

OpCase PixelsCase(int64_t pixels, int64_t channels) {
  OpCase c;
  c.name = absl::StrCat("pixels ", pixels, "x", channels);
  c.args = {Flat("pixels", Role::kInput, 1, pixels * channels, Type::kInt32, "",
                 [](int64_t i) { return static_cast<double>(i * 31 % 256); }),
            Flat("y", Role::kOutput, pixels, channels), Flat("dy", Role::kInput, pixels, channels)};
  c.forward = [](Call& a) {
    a.Run(PixelsForward{.pixels = a["pixels"],
                        .y = a["y"],
                        .scale = {0.01f, 0.02f, 0.015f, 0.03f},
                        .shift = {-1, 0.5f, 0.25f, 0}});
  };
  return c;
}

OpCase ConvCase(const ConvShape& shape) {
  const WindowShape& s = shape.window;
  OpCase c;
  c.name = absl::StrCat("conv ", DescribeWindow(s), " channels ", shape.in_channels, "->",
                        shape.out_channels, " groups ", shape.groups);
  const int64_t cols = shape.weight_cols();
  c.args = {Flat("x", Role::kInput, s.in_rows(), shape.in_channels),
            Flat("w", Role::kInput, shape.out_channels, cols),
            Flat("y", Role::kOutput, s.out_rows(), shape.out_channels),
            Flat("dy", Role::kInput, s.out_rows(), shape.out_channels),
            Flat("dx", Role::kGradient, s.in_rows(), shape.in_channels),
            Flat("dw", Role::kGradient, shape.out_channels, cols, kF32, "dw")};
  c.forward = [shape](Call& a) { a.Run(ConvForward{shape, a["x"], a["w"], a["y"]}); };
  c.backward = [shape](Call& a) {
    a.Run(ConvBackwardInput{shape, a["dy"], a["w"], a["dx"]});
    a.Run(ConvBackwardWeight{shape, a["x"], a["dy"], a["dw"]});
  };
  c.forward_flops = 2.0 * static_cast<double>(s.out_rows() * shape.out_channels * cols);
  c.backward_flops = 2 * c.forward_flops;
  return c;
}

OpCase BatchNormCase(int64_t n, int64_t channels, Activation activation, bool add) {
  OpCase c;
  c.name = absl::StrCat("batch_norm ", n, "x", channels, Name(activation), add ? " add" : "");
  // Far from where a slope changes: channels are all above it, or all below.
  const bool relu = activation == Activation::kRelu;
  const auto shift = [=](int64_t i) { return (relu ? 12.0 : 0.5) * (i % 2 == 0 ? 1 : -1); };
  c.args = {Flat("x", Role::kInput, n, channels),
            Flat("w", Role::kInput, 1, channels),
            Flat("b", Role::kInput, 1, channels, kAct, "", shift),
            Flat("y", Role::kOutput, n, channels),
            Flat("mean", Role::kSaved, 1, channels, kF32),
            Flat("rstd", Role::kSaved, 1, channels, kF32),
            Flat("dy", Role::kInput, n, channels),
            Flat("sums", Role::kState, 2, channels, kF32),
            Flat("means", Role::kState, 2, channels, kF32),
            Flat("dx", Role::kGradient, n, channels),
            Flat("dw", Role::kGradient, 1, channels, kF32, "dw"),
            Flat("db", Role::kGradient, 1, channels, kF32, "db")};
  if (add) {
    c.args.push_back(Flat("add", Role::kInput, n, channels));
    c.args.push_back(Flat("dadd", Role::kGradient, n, channels));
  }
  c.forward = [=](Call& a) {
    a.Run(BatchNormForward{.x = a["x"],
                           .w = a["w"],
                           .b = a["b"],
                           .add = a["add"],
                           .y = a["y"],
                           .mean = a["mean"],
                           .rstd = a["rstd"],
                           .activation = activation});
  };
  c.backward = [=](Call& a) {
    a.Run(BatchNormBackwardInput{.x = a["x"],
                                 .w = a["w"],
                                 .b = a["b"],
                                 .add = a["add"],
                                 .mean = a["mean"],
                                 .rstd = a["rstd"],
                                 .dy = a["dy"],
                                 .sums = a["sums"],
                                 .dx = a["dx"],
                                 .dadd = a["dadd"],
                                 .activation = activation});
    a.Run(BatchNormBackwardWeight{.sums = a["sums"],
                                  .mean = a["mean"],
                                  .rstd = a["rstd"],
                                  .dw = a["dw"],
                                  .db = a["db"],
                                  .dmean = a["means"].Rows(0, 1),
                                  .dvariance = a["means"].Rows(1, 1),
                                  .rows = n,
                                  .samples = 3});
  };
  c.forward_bytes = Floats(3.0 * n * channels);
  c.backward_bytes = Floats(5.0 * n * channels);
  return c;
}

OpCase RunningNormCase(int64_t n, int64_t channels) {
  OpCase c;
  c.name = absl::StrCat("running norm ", n, "x", channels);
  const auto variance = [](int64_t i) { return i == 0 ? -0.5 : 0.3 + 0.1 * (i % 7); };
  c.args = {Flat("x", Role::kInput, n, channels),
            Flat("w", Role::kInput, 1, channels),
            Flat("b", Role::kInput, 1, channels),
            Flat("running_mean", Role::kInput, 1, channels),
            Flat("running_variance", Role::kInput, 1, channels, kAct, "", variance),
            Flat("y", Role::kOutput, n, channels),
            Flat("dy", Role::kInput, n, channels),
            Flat("running", Role::kState, 1, channels, kF32),
            Flat("sums", Role::kState, 1, channels, kF32)};
  c.forward = [](Call& a) {
    a.Run(BatchNormForward{.x = a["x"],
                           .w = a["w"],
                           .b = a["b"],
                           .y = a["y"],
                           .running_mean = a["running_mean"],
                           .running_variance = a["running_variance"],
                           .eps = 0.5f});
    a.Run(RunningMean{.running = a["running"], .sums = a["sums"], .samples = 5, .zero_sums = true});
  };
  return c;
}

OpCase PoolCase(PoolKind kind, const WindowShape& shape, int64_t channels, bool add) {
  OpCase c;
  c.name = absl::StrCat(kind == PoolKind::kMax ? "max" : "average", " pool ", DescribeWindow(shape),
                        "x", channels, add ? " add" : "");
  const int64_t in = shape.in_rows(), out = shape.out_rows();
  c.args = {Flat("x", Role::kInput, in, channels, kAct, "", Apart),
            Flat("y", Role::kOutput, out, channels), Flat("dy", Role::kInput, out, channels),
            Flat("dx", Role::kGradient, in, channels, kAct, add ? "dadd" : "")};
  if (add) c.args.push_back(Flat("dadd", Role::kInput, in, channels));
  c.forward = [=](Call& a) { a.Run(PoolForward{kind, shape, a["x"], a["y"]}); };
  c.backward = [=](Call& a) {
    a.Run(PoolBackward{kind, shape, a["x"], a["dy"], a["dadd"], a["dx"]});
  };
  c.forward_bytes = Floats(static_cast<double>((in + out) * channels));
  c.backward_bytes = Floats(static_cast<double>((2 * in + out) * channels));
  return c;
}

OpCase ChannelGateCase(int64_t batch, int64_t rows, int64_t channels) {
  OpCase c;
  c.name = absl::StrCat("channel gate ", batch, "x", rows, "x", channels);
  const int64_t n = batch * rows;
  c.args = {
      Flat("x", Role::kInput, n, channels),     Flat("gate", Role::kInput, batch, channels),
      Flat("y", Role::kOutput, n, channels),    Flat("dy", Role::kInput, n, channels),
      Flat("dx", Role::kGradient, n, channels), Flat("dgate", Role::kGradient, batch, channels)};
  c.forward = [](Call& a) { a.Run(ChannelGateForward{a["x"], a["gate"], a["y"]}); };
  c.backward = [](Call& a) {
    a.Run(ChannelGateBackward{a["x"], a["gate"], a["dy"], a["dx"], a["dgate"]});
  };
  c.forward_bytes = Floats(2.0 * n * channels);
  c.backward_bytes = Floats(3.0 * n * channels);
  return c;
}

OpCase CountHitsCase(int64_t n, int64_t classes, bool parted) {
  OpCase c;
  c.name = absl::StrCat(parted ? "parted " : "", "hits ", n, "x", classes);
  c.args = {Flat("logits", Role::kInput, n, classes, kAct, "",
                 [](int64_t i) { return static_cast<double>(i * 7 % 11 % 3); }),  // many are equal
            Flat("targets", Role::kInput, 1, n, Type::kInt32, "",
                 [=](int64_t i) { return i % 5 == 3 ? -100.0 : static_cast<double>(i % classes); }),
            Flat("hits", Role::kState, 1, 1, kF32)};
  if (parted) {
    // Below the maximum; classes before the target that reach it.
    c.args.push_back(Flat("sums", Role::kInput, 3, n, kF32, "", [=](int64_t i) {
      return i % 3 == 1 ? 0.0 : i < 2 * n ? -0.5 : 2.0;
    }));
  }
  c.forward = [=](Call& a) {
    a.Run(CountHits{a["logits"], a["targets"], a["hits"], parted ? a["sums"] : Tensor()});
  };
  return c;
}

std::vector<OpCase> ImageTestCases() {
  const auto relu = Activation::kRelu, silu = Activation::kSilu, none = Activation::kNone;
  return {
      PixelsCase(35, 3),
      PixelsCase(20, 1),
      ConvCase({{3, 7, 6, 3, 1, 1}, 5, 8}),
      ConvCase({{2, 9, 9, 3, 2, 1}, 16, 16}),
      ConvCase({{20, 5, 5, 1, 1, 0}, 8, 24}),
      ConvCase({{3, 8, 8, 1, 2, 0}, 16, 32}),
      ConvCase({{1, 13, 11, 7, 2, 3}, 3, 16}),
      ConvCase({{5, 6, 6, 3, 1, 1}, 16, 16, 16}),
      ConvCase({{2, 7, 7, 5, 2, 2}, 24, 24, 24}),
      ConvCase({{3, 6, 6, 3, 1, 1}, 8, 12, 4}),
      // More columns than the CUDA backend makes at a time.
      ConvCase({{3, 64, 64, 3, 1, 1}, 64, 1}),
      BatchNormCase(40, 16, none, false),
      BatchNormCase(1200, 37, silu, false),
      BatchNormCase(70, 24, relu, true),
      BatchNormCase(33, 8, relu, false),
      BatchNormCase(33, 8, none, true),
      RunningNormCase(40, 24),
      PoolCase(PoolKind::kMax, {2, 7, 7, 3, 2, 1}, 5, false),
      PoolCase(PoolKind::kMax, {2, 5, 5, 3, 1, 1}, 8, false),
      PoolCase(PoolKind::kMax, {3, 6, 6, 2, 2, 0}, 16, true),
      PoolCase(PoolKind::kAverage, {3, 5, 5, 5, 5, 0}, 24, true),
      PoolCase(PoolKind::kAverage, {2, 7, 6, 3, 2, 0}, 5, false),
      ChannelGateCase(3, 25, 24),
      ChannelGateCase(2, 9, 5),
      CountHitsCase(40, 3, /*parted=*/false),
      CountHitsCase(40, 3, /*parted=*/true),
      SmoothedCrossEntropyCase(11, 23),
  };
}

}  // namespace atl::testing
