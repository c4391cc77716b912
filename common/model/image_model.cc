#include "common/model/image_model.h"

#include "common/check.h"
#include "common/model/family.h"

namespace atl {
namespace {

class ImageLayoutBuilder {
 public:
  explicit ImageLayoutBuilder(std::string name) { layout_.name = std::move(name); }

  void Add(std::string name, std::vector<int64_t> shape, Init init) {
    ParamSpec param;
    param.name = std::move(name);
    param.use = Param::kImage;
    param.decay = shape.size() >= 2;
    param.init = init;
    param.offset = layout_.size;
    param.size = 1;
    for (const int64_t extent : shape) param.size *= extent;
    param.shape = std::move(shape);
    layout_.size += param.size;
    if (param.decay) layout_.decay_size = layout_.size;
    layout_.params.push_back(std::move(param));
  }
  void Weight(const ConvPart& part) {
    Add(part.conv + ".weight",
        {part.out_channels, part.in.channels / part.groups, part.kernel, part.kernel},
        Init::kFanOut);
  }
  void Norm(const ConvPart& part) {
    Add(part.norm + ".weight", {part.out_channels}, Init::kOnes);
    Add(part.norm + ".bias", {part.out_channels}, Init::kZeros);
  }
  // Last of all.
  void Statistics(const ConvPart& part) {
    Add(part.norm + ".running_mean", {part.out_channels}, Init::kZeros);
    Add(part.norm + ".running_var", {part.out_channels}, Init::kOnes);
  }
  void EndTrained() { layout_.trained_size = layout_.size; }
  LayerLayout Done() { return std::move(layout_); }

 private:
  LayerLayout layout_;
};

std::vector<const ConvPart*> ListConvParts(const ImageLayer& layer) {
  std::vector<const ConvPart*> parts;
  for (const ConvPart& part : layer.convs) parts.push_back(&part);
  if (layer.shortcut) parts.push_back(&*layer.shortcut);
  return parts;
}

}  // namespace

ImageSize ConvPart::out() const {
  const auto side = [&](int64_t in_side) {
    return (in_side + 2 * (kernel / 2) - kernel) / stride + 1;
  };
  return {side(in.height), side(in.width), out_channels};
}

double ConvPart::flops() const {
  return 2.0 * static_cast<double>(out().elements()) *
         static_cast<double>(in.channels / groups * kernel * kernel);
}

ImageSize ImageLayer::out() const {
  if (classes > 0) return {1, 1, classes};
  ImageSize size = convolved();
  if (pools) size = {(size.height - 1) / 2 + 1, (size.width - 1) / 2 + 1, size.channels};
  return size;
}

std::vector<ImageLayer> ImageLayers(const ModelConfig& config) {
  ATOLL_CHECK(config.is_images());
  return GetFamily(config.family).image_layers(config);
}

LayerLayout MakeImageLayout(const ImageLayer& layer) {
  ImageLayoutBuilder b(layer.name);
  const std::vector<const ConvPart*> parts = ListConvParts(layer);
  for (const ConvPart* part : parts) b.Weight(*part);
  const int64_t inner = layer.squeeze_channels;
  const int64_t wide = inner > 0 ? layer.convs.back().in.channels : 0;
  if (inner > 0) b.Add(layer.squeeze_in + ".weight", {inner, wide, 1, 1}, Init::kFanOut);
  if (inner > 0) b.Add(layer.squeeze_out + ".weight", {wide, inner, 1, 1}, Init::kFanOut);
  if (layer.classes > 0) {
    b.Add(layer.classifier + ".weight", {layer.classes, layer.convolved().channels}, Init::kNormal);
  }
  for (const ConvPart* part : parts) b.Norm(*part);
  if (inner > 0) b.Add(layer.squeeze_in + ".bias", {inner}, Init::kZeros);
  if (inner > 0) b.Add(layer.squeeze_out + ".bias", {wide}, Init::kZeros);
  if (layer.classes > 0) b.Add(layer.classifier + ".bias", {layer.classes}, Init::kZeros);
  b.EndTrained();
  for (const ConvPart* part : parts) b.Statistics(*part);
  return b.Done();
}

ConvParams FindConvParams(const LayerLayout& layout, const ConvPart& part) {
  return {&layout.Find(part.conv + ".weight"), &layout.Find(part.norm + ".weight"),
          &layout.Find(part.norm + ".bias"), &layout.Find(part.norm + ".running_mean"),
          &layout.Find(part.norm + ".running_var")};
}

double ForwardFlops(const ImageLayer& layer) {
  double flops = 0;
  for (const ConvPart* part : ListConvParts(layer)) flops += part->flops();
  if (layer.squeeze_channels > 0) {
    flops += 4.0 * static_cast<double>(layer.squeeze_channels * layer.convs.back().in.channels);
  }
  return flops + 2.0 * static_cast<double>(layer.classes * layer.convolved().channels);
}

ImageStash MakeImageStash(const ImageLayer& layer, int64_t images, const ElementBytes& element) {
  SlotCarver f(element), b(element);
  ImageStash s;
  const auto carve = [&](const ConvPart& part, bool keeps_out) {
    const int64_t rows = images * part.out().rows(), channels = part.out_channels;
    ConvSlots slots;
    slots.raw = f.Activation(rows, channels);
    slots.mean = f.State(1, channels);
    slots.rstd = f.State(1, channels);
    if (keeps_out) slots.out = f.Activation(rows, channels);
    slots.grad_raw = b.Activation(rows, channels);
    slots.sums = b.State(2, channels);
    return slots;
  };
  if (layer.pixels) s.pixels = f.Activation(images * layer.in.rows(), layer.in.channels);
  for (size_t i = 0; i < layer.convs.size(); ++i) {
    const bool last = i + 1 == layer.convs.size();
    s.convs.push_back(carve(layer.convs[i], !last || layer.pools || layer.classes > 0));
  }
  if (layer.shortcut) s.shortcut = carve(*layer.shortcut, true);
  if (layer.squeeze_channels > 0) {
    const ImageSize wide = layer.convs.back().in;
    s.squeezed = f.Activation(images, wide.channels);
    s.inner = f.Activation(images, layer.squeeze_channels);
    s.activated = f.Activation(images, layer.squeeze_channels);
    s.gate = f.Activation(images, wide.channels);
    s.gated = f.Activation(images * wide.rows(), wide.channels);
    s.grad_gate = b.Activation(images, wide.channels);
    s.grad_inner = b.Activation(images, layer.squeeze_channels);
  }
  if (layer.classes > 0) s.pooled = f.Activation(images, layer.convolved().channels);
  s.forward_bytes = f.bytes();
  s.backward_bytes = b.bytes();
  return s;
}

}  // namespace atl
