// The layers of models of images: stems, blocks and heads, as common/model/image_model.h describes
// them. A sample's activation is a row between layers, and rows of channels inside.

#include <algorithm>

#include "common/model/image_model.h"
#include "worker/model/layer_base.h"

namespace atl {
namespace {

Activation Kernel(ImageActivation activation) {
  switch (activation) {
    case ImageActivation::kNone:
      return Activation::kNone;
    case ImageActivation::kRelu:
      return Activation::kRelu;
    case ImageActivation::kSilu:
      return Activation::kSilu;
  }
  ATOLL_CHECK(false, "no such activation");
  __builtin_unreachable();
}

WindowShape Window(int64_t images, const ImageSize& in, int64_t kernel, int64_t stride,
                   int64_t pad) {
  return {.batch = images,
          .in_height = in.height,
          .in_width = in.width,
          .kernel = kernel,
          .stride = stride,
          .pad = pad};
}

Tensor Shaped(const Tensor& x, int64_t rows, int64_t cols) {
  ATOLL_CHECK(x.size() >= rows * cols && x.contiguous());
  return {x.data, x.dtype, rows, cols};
}

class ImageLayerOps final : public LayerBase {
 public:
  ImageLayerOps(const ModelConfig& config, DType compute, LayerLayout layout, ImageLayer made)
      : LayerBase(config, WholePart(config), compute, std::move(layout)), made_(std::move(made)) {
    for (const ConvPart& part : made_.convs)
      params_.push_back(FindConvParams(this->layout(), part));
    if (made_.shortcut) shortcut_params_ = FindConvParams(this->layout(), *made_.shortcut);
  }

  int64_t output_cols() const override { return made_.out().elements(); }

 private:
  // One convolution with its norm: what it is, where its parameters and its stash are.
  struct Conv {
    const ConvPart& part;
    const ConvParams& params;
    ConvShape shape;
    Tensor raw, mean, rstd, out, grad_raw, sums;
  };

  Tensor InputShape(const BatchShape& shape) const override {
    if (made_.pixels) return {nullptr, DType::kInt32, 1, shape.tokens() * made_.in.elements()};
    return {nullptr, compute_, shape.tokens(), made_.in.elements()};
  }
  void StashBytes(const BatchShape& shape, LayerBytes* bytes) const override {
    const ImageStash stash = MakeImageStash(made_, shape.tokens(), element_bytes());
    bytes->forward_stash = stash.forward_bytes;
    bytes->backward_stash = stash.backward_bytes;
  }
  ImageStash GetStash(const Args& a) const {
    return MakeImageStash(made_, a.shape.tokens(), element_bytes());
  }

  Conv Take(const Args& a, const ConvPart& part, const ConvParams& params,
            const ConvSlots& s) const {
    void* const f = a.stash.forward;
    void* const b = a.stash.backward;
    const ConvShape shape = {
        Window(a.shape.tokens(), part.in, part.kernel, part.stride, part.kernel / 2),
        part.in.channels, part.out_channels, part.groups};
    return {part,          params,        shape,        At(s.raw, f),
            At(s.mean, f), At(s.rstd, f), At(s.out, f), At(s.grad_raw, b),
            At(s.sums, b)};
  }
  Conv Take(const Args& a, const ImageStash& s, size_t i) const {
    return Take(a, made_.convs[i], params_[i], s.convs[i]);
  }
  Conv Shortcut(const Args& a, const ImageStash& s) const {
    return Take(a, *made_.shortcut, shortcut_params_, s.shortcut);
  }

  Tensor Place(void* base, DType dtype, const ParamSpec& param, int64_t rows) const {
    char* data =
        base == nullptr ? nullptr : static_cast<char*>(base) + param.offset * GetElementSize(dtype);
    return {data, dtype, rows, param.size / rows};
  }
  // A matrix of the layer has its outputs as rows, a vector is a row.
  Tensor Weight(const Args& a, const ParamSpec& param) const {
    return Place(a.memory.params, compute_, param, param.decay ? param.shape[0] : 1);
  }
  Tensor Grad(const Args& a, const ParamSpec& param) const {
    return Place(a.memory.grads, state_, param, param.decay ? param.shape[0] : 1);
  }
  Tensor Weight(const Args& a, const std::string& name) const {
    return Weight(a, layout().Find(name));
  }
  Tensor Grad(const Args& a, const std::string& name) const { return Grad(a, layout().Find(name)); }

  // Rows of channels, from rows of images.
  Tensor Inside(const Tensor& x, const ImageSize& size) const {
    return Shaped(x, x.size() / size.channels, size.channels);
  }
  Tensor Input(const Args& a, const ImageStash& s) const {
    return made_.pixels ? At(s.pixels, a.stash.forward) : Inside(a.input, made_.in);
  }
  // Returns the input of convolution `i`.
  Tensor ConvInput(const Args& a, const ImageStash& s, size_t i) const {
    const bool last = i + 1 == made_.convs.size();
    if (last && made_.squeeze_channels > 0) return At(s.gated, a.stash.forward);
    return i == 0 ? Input(a, s) : At(s.convs[i - 1].out, a.stash.forward);
  }

  void RunConv(Exec& exec, const Args& a, const Conv& c, const Tensor& x, const Tensor& add,
               const Tensor& out) const {
    exec.Run(ConvForward{c.shape, x, Weight(a, *c.params.weight), c.raw});
    BatchNormForward norm{.x = c.raw,
                          .w = Weight(a, *c.params.gain),
                          .b = Weight(a, *c.params.shift),
                          .add = add,
                          .y = out,
                          .eps = static_cast<float>(config_.norm_eps),
                          .activation = Kernel(c.part.activation)};
    if (a.evaluates) {
      norm.running_mean = Weight(a, *c.params.running_mean);
      norm.running_variance = Weight(a, *c.params.running_variance);
    } else {
      norm.mean = c.mean;
      norm.rstd = c.rstd;
    }
    exec.Run(norm);
  }

  void Squeeze(Exec& exec, const Args& a, const ImageStash& s, const Tensor& x) const {
    void* const f = a.stash.forward;
    exec.Run(PoolForward{PoolKind::kAverage, WholeImage(a, made_.convs.back().in), x,
                         At(s.squeezed, f)});
    exec.Run(LinearForward{.x = At(s.squeezed, f),
                           .w = Weight(a, made_.squeeze_in + ".weight"),
                           .bias = Weight(a, made_.squeeze_in + ".bias"),
                           .y = At(s.activated, f),
                           .activation = Activation::kSilu,
                           .pre = At(s.inner, f)});
    exec.Run(LinearForward{.x = At(s.activated, f),
                           .w = Weight(a, made_.squeeze_out + ".weight"),
                           .bias = Weight(a, made_.squeeze_out + ".bias"),
                           .y = At(s.gate, f)});
    exec.Run(ChannelGateForward{x, At(s.gate, f), At(s.gated, f)});
  }
  WindowShape WholeImage(const Args& a, const ImageSize& size) const {
    return Window(a.shape.tokens(), size, size.height, size.height, 0);
  }
  WindowShape StemPool(const Args& a) const {
    return Window(a.shape.tokens(), made_.convolved(), 3, 2, 1);
  }

  void DoForward(Exec& exec, const Args& a) const override {
    const ImageStash s = GetStash(a);
    if (made_.pixels) RunPixels(exec, a, s);
    Tensor add;
    if (made_.residual) add = Input(a, s);
    if (made_.shortcut) {
      const Conv c = Shortcut(a, s);
      RunConv(exec, a, c, Input(a, s), {}, c.out);
      add = c.out;
    }
    Tensor x = Input(a, s);
    for (size_t i = 0; i < made_.convs.size(); ++i) {
      const bool last = i + 1 == made_.convs.size();
      const Conv c = Take(a, s, i);
      if (last && made_.squeeze_channels > 0) Squeeze(exec, a, s, x);
      const Tensor out = c.out.rows > 0 ? c.out : Inside(a.output, c.part.out());
      RunConv(exec, a, c, ConvInput(a, s, i), last ? add : Tensor(), out);
      x = out;
    }
    if (made_.pools) {
      exec.Run(PoolForward{PoolKind::kMax, StemPool(a), x, Inside(a.output, made_.out())});
    }
    if (made_.classes > 0) {
      const Tensor pooled = At(s.pooled, a.stash.forward);
      exec.Run(PoolForward{PoolKind::kAverage, WholeImage(a, made_.convolved()), x, pooled});
      exec.Run(LinearForward{.x = pooled,
                             .w = Weight(a, made_.classifier + ".weight"),
                             .bias = Weight(a, made_.classifier + ".bias"),
                             .y = a.output});
    }
  }

  void RunPixels(Exec& exec, const Args& a, const ImageStash& s) const {
    PixelsForward op{.pixels = a.input, .y = At(s.pixels, a.stash.forward)};
    for (size_t c = 0; c < config_.image.mean.size(); ++c) {
      op.scale[c] = static_cast<float>(1 / (255 * config_.image.deviation[c]));
      op.shift[c] = static_cast<float>(-config_.image.mean[c] / config_.image.deviation[c]);
    }
    exec.Run(op);
  }

  // `dadd`: what the norm's other operand gets; absent where it is not needed.
  void RunNormBackward(Exec& exec, const Args& a, const Conv& c, const Tensor& add,
                       const Tensor& dy, const Tensor& dadd) const {
    exec.Run(BatchNormBackwardInput{.x = c.raw,
                                    .w = Weight(a, *c.params.gain),
                                    .b = Weight(a, *c.params.shift),
                                    .add = add,
                                    .mean = c.mean,
                                    .rstd = c.rstd,
                                    .dy = dy,
                                    .sums = c.sums,
                                    .dx = c.grad_raw,
                                    .dadd = dadd,
                                    .activation = Kernel(c.part.activation)});
  }
  void RunConvBackward(Exec& exec, const Args& a, const Conv& c, const Tensor& dx) const {
    exec.Run(ConvBackwardInput{c.shape, c.grad_raw, Weight(a, *c.params.weight), dx});
  }

  // dx: of the gated input, becomes that of the input `x`.
  void SqueezeBackward(Exec& exec, const Args& a, const ImageStash& s, const Tensor& x,
                       const Tensor& dx, const Tensor& means) const {
    void* const f = a.stash.forward;
    void* const b = a.stash.backward;
    exec.Run(ChannelGateBackward{x, At(s.gate, f), dx, dx, At(s.grad_gate, b)});
    exec.Run(LinearBackwardInput{.dy = At(s.grad_gate, b),
                                 .w = Weight(a, made_.squeeze_out + ".weight"),
                                 .dx = At(s.grad_inner, b),
                                 .activation = Activation::kSilu,
                                 .pre = At(s.inner, f)});
    const Tensor dsqueezed = Shaped(means, a.shape.tokens(), x.cols);
    exec.Run(LinearBackwardInput{
        .dy = At(s.grad_inner, b), .w = Weight(a, made_.squeeze_in + ".weight"), .dx = dsqueezed});
    exec.Run(PoolBackward{PoolKind::kAverage, WholeImage(a, made_.convs.back().in), x, dsqueezed,
                          dx, dx});
  }

  // The gradient of what the convolutions make: the layer's own, or in `scratch`.
  Tensor ConvolvedGradient(Exec& exec, const Args& a, const Tensor& x, const Tensor& scratch,
                           const Tensor& means) const {
    if (made_.pools) {
      const Tensor dx = Shaped(scratch, x.rows, x.cols);
      exec.Run(PoolBackward{PoolKind::kMax, StemPool(a), x, Inside(a.output, made_.out()), {}, dx});
      return dx;
    }
    if (made_.classes == 0) return Inside(a.output, made_.convolved());
    const Tensor dpooled = Shaped(means, a.shape.tokens(), x.cols);
    exec.Run(LinearBackwardInput{
        .dy = a.output, .w = Weight(a, made_.classifier + ".weight"), .dx = dpooled});
    const Tensor dx = Shaped(scratch, x.rows, x.cols);
    exec.Run(
        PoolBackward{PoolKind::kAverage, WholeImage(a, made_.convolved()), x, dpooled, {}, dx});
    return dx;
  }

  void DoBackwardInput(Exec& exec, const Args& a, const Tensor& grad_input) const override {
    const ImageStash s = GetStash(a);
    const int64_t images = a.shape.tokens();
    int64_t most = made_.convolved().elements(), channels = made_.convolved().channels;
    for (const ConvPart& part : made_.convs) {
      most = std::max({most, part.in.elements(), part.out().elements()});
      channels = std::max(channels, part.in.channels);
    }
    const Tensor scratch = exec.Temporary(compute_, images, most);
    const Tensor means = exec.Temporary(compute_, images, channels);
    const Tensor into = made_.pixels ? Tensor() : Inside(grad_input, made_.in);
    if (made_.convs.empty()) {  // a head alone
      ConvolvedGradient(exec, a, Input(a, s), into, means);
      return;
    }
    const size_t last = made_.convs.size() - 1;
    const Conv end = Take(a, s, last);
    Tensor dy = ConvolvedGradient(exec, a, end.out, scratch, means);
    Tensor add, skip;
    if (made_.residual) {
      add = made_.shortcut ? Shortcut(a, s).out : Input(a, s);
      skip = dy;
      if (end.part.activation != ImageActivation::kNone) {
        skip = exec.Temporary(compute_, dy.rows, dy.cols);
      }
    }
    for (size_t i = last + 1; i-- > 0;) {
      const Conv c = Take(a, s, i);
      const bool ends = i == last;
      RunNormBackward(exec, a, c, ends ? add : Tensor(), dy,
                      ends && skip.data != dy.data ? skip : Tensor());
      if (i == 0 && made_.pixels) return;
      dy = i == 0 ? into : Shaped(scratch, images * c.part.in.rows(), c.part.in.channels);
      RunConvBackward(exec, a, c, dy);
      if (ends && made_.squeeze_channels > 0) {
        SqueezeBackward(exec, a, s, At(s.convs[i - 1].out, a.stash.forward), dy, means);
      }
    }
    if (!made_.residual) return;
    if (made_.shortcut) {
      const Conv c = Shortcut(a, s);
      RunNormBackward(exec, a, c, {}, skip, {});
      skip = Shaped(scratch, into.rows, into.cols);
      RunConvBackward(exec, a, c, skip);
    }
    exec.Run(AddScaled{into, skip, into});
  }

  void ConvBackwardWeights(Exec& exec, const Args& a, const Conv& c, const Tensor& x) const {
    exec.Run(ConvBackwardWeight{c.shape, x, c.grad_raw, Grad(a, *c.params.weight)});
    exec.Run(BatchNormBackwardWeight{.sums = c.sums,
                                     .mean = c.mean,
                                     .rstd = c.rstd,
                                     .dw = Grad(a, *c.params.gain),
                                     .db = Grad(a, *c.params.shift),
                                     .dmean = Grad(a, *c.params.running_mean),
                                     .dvariance = Grad(a, *c.params.running_variance),
                                     .rows = c.raw.rows,
                                     .samples = a.shape.tokens(),
                                     .eps = static_cast<float>(config_.norm_eps)});
  }

  void DoBackwardWeight(Exec& exec, const Args& a) const override {
    const ImageStash s = GetStash(a);
    void* const f = a.stash.forward;
    void* const b = a.stash.backward;
    for (size_t i = 0; i < made_.convs.size(); ++i) {
      ConvBackwardWeights(exec, a, Take(a, s, i), ConvInput(a, s, i));
    }
    if (made_.shortcut) ConvBackwardWeights(exec, a, Shortcut(a, s), Input(a, s));
    if (made_.squeeze_channels > 0) {
      exec.Run(LinearBackwardWeight{.x = At(s.activated, f),
                                    .dy = At(s.grad_gate, b),
                                    .dw = Grad(a, made_.squeeze_out + ".weight"),
                                    .dbias = Grad(a, made_.squeeze_out + ".bias")});
      exec.Run(LinearBackwardWeight{.x = At(s.squeezed, f),
                                    .dy = At(s.grad_inner, b),
                                    .dw = Grad(a, made_.squeeze_in + ".weight"),
                                    .dbias = Grad(a, made_.squeeze_in + ".bias")});
    }
    if (made_.classes > 0) {
      exec.Run(LinearBackwardWeight{.x = At(s.pooled, f),
                                    .dy = a.output,
                                    .dw = Grad(a, made_.classifier + ".weight"),
                                    .dbias = Grad(a, made_.classifier + ".bias")});
    }
  }

  const ImageLayer made_;
  std::vector<ConvParams> params_;  // of convs
  ConvParams shortcut_params_;
};

}  // namespace

std::unique_ptr<Layer> NewImageLayer(const ModelConfig& config, DType compute, LayerLayout layout,
                                     int64_t index) {
  return std::make_unique<ImageLayerOps>(config, compute, std::move(layout),
                                         ImageLayers(config)[static_cast<size_t>(index)]);
}

}  // namespace atl
