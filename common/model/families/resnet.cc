// ResNet (He et al. 2016), with the stride in a bottleneck's 3 x 3 convolution, as torchvision has
// it, and torchvision's names of parameters. `small_stem`: 3 x 3 without pooling, for small images.

#include "common/model/family.h"
#include "common/model/image_model.h"

namespace atl {
namespace resnet {

constexpr int64_t kMaxStages = 8;

void Fields(FieldPass& f) {
  ImageModel& m = f.config().image;
  ImageSizes(f);
  f.Integer("embedding_size", &m.stem_channels, kMaxWidth, 64);
  f.Flag("small_stem", &m.small_stem, false);
  f.Activation("hidden_act", "relu", {"relu"});
  f.Fixed("downsample_in_first_stage", false);
  f.Fixed("downsample_in_bottleneck", false);
  if (!f.reads()) {
    f.out()["depths"] = m.depths;
    f.out()["hidden_sizes"] = m.widths;
    f.out()["layer_type"] = m.bottleneck ? "bottleneck" : "basic";
    return;
  }
  ConfigFields& in = f.in();
  m.depths = in.Integers("depths", kMaxStages, kMaxLayers, {3, 4, 6, 3});
  m.widths = in.Integers("hidden_sizes", kMaxStages, kMaxWidth, {256, 512, 1024, 2048});
  const std::string type = in.Text("layer_type", "bottleneck");
  m.bottleneck = type == "bottleneck";
  if (!m.bottleneck && type != "basic") {
    in.Fail("layer_type", absl::StrCat("is \"", type, "\"; Atoll has basic and bottleneck"));
  }
  if (m.depths.size() != m.widths.size()) {
    in.Fail("hidden_sizes", "does not have as many numbers as depths");
  }
  for (const int64_t width : m.widths) {
    if (m.bottleneck && width % 4 != 0) in.Fail("hidden_sizes", "has no multiples of 4");
  }
}

ImageLayer Block(const ImageModel& m, const std::string& prefix, const ImageSize& in,
                 int64_t channels, int64_t stride) {
  const auto relu = ImageActivation::kRelu;
  ImageLayer block;
  block.in = in;
  const auto add = [&](int64_t out, int64_t kernel, int64_t by) {
    const auto n = absl::StrCat(block.convs.size() + 1);
    block.convs.push_back({.conv = prefix + "conv" + n,
                           .norm = prefix + "bn" + n,
                           .in = block.convolved(),
                           .out_channels = out,
                           .kernel = kernel,
                           .stride = by,
                           .activation = relu});
  };
  if (m.bottleneck) {
    add(channels / 4, 1, 1);
    add(channels / 4, 3, stride);
    add(channels, 1, 1);
  } else {
    add(channels, 3, stride);
    add(channels, 3, 1);
  }
  block.residual = true;
  if (stride != 1 || in.channels != channels) {
    block.shortcut = ConvPart{.conv = prefix + "downsample.0",
                              .norm = prefix + "downsample.1",
                              .in = in,
                              .out_channels = channels,
                              .stride = stride};
  }
  return block;
}

std::vector<ImageLayer> Layers(const ModelConfig& c) {
  const ImageModel& m = c.image;
  std::vector<ImageLayer> layers(1);
  ImageLayer& stem = layers[0];
  stem.name = "embedding";
  stem.in = {m.height, m.width, m.channels};
  stem.pixels = true;
  stem.pools = !m.small_stem;
  stem.convs.push_back({.conv = "conv1",
                        .norm = "bn1",
                        .in = stem.in,
                        .out_channels = m.stem_channels,
                        .kernel = m.small_stem ? 3 : 7,
                        .stride = m.small_stem ? 1 : 2,
                        .activation = ImageActivation::kRelu});
  for (size_t stage = 0; stage < m.depths.size(); ++stage) {
    for (int64_t i = 0; i < m.depths[stage]; ++i) {
      const int64_t stride = stage > 0 && i == 0 ? 2 : 1;
      ImageLayer block = Block(m, absl::StrCat("layer", stage + 1, ".", i, "."),
                               layers.back().out(), m.widths[stage], stride);
      block.name = absl::StrCat("block.", layers.size() - 1);
      layers.push_back(std::move(block));
    }
  }
  ImageLayer head;
  head.name = "head";
  head.in = layers.back().out();
  head.classes = c.vocab;
  head.classifier = "fc";
  layers.push_back(std::move(head));
  return layers;
}

}  // namespace resnet

constinit const Family kResNetFamily = {.id = ModelFamily::kResNet,
                                        .model_type = "resnet",
                                        .architecture = "ResNetForImageClassification",
                                        .fields = resnet::Fields,
                                        .describe = DescribeImages,
                                        .image_layers = resnet::Layers};

}  // namespace atl
