// EfficientNet (Tan and Le 2019): inverted bottlenecks with squeeze-and-excitation, scaled in width
// and depth. B0 is 1.0 and 1.0, B1 1.0 and 1.1, B2 1.1 and 1.2, B3 1.2 and 1.4, B4 1.4 and 1.8.
// torchvision's names of parameters, and its epsilon.

#include <algorithm>
#include <cmath>

#include "common/model/family.h"
#include "common/model/image_model.h"

namespace atl {
namespace efficientnet {

struct Stage {
  int64_t expand, kernel, stride, channels, blocks;
};
constexpr Stage kStages[] = {{1, 3, 1, 16, 1}, {6, 3, 2, 24, 2},  {6, 5, 2, 40, 2},
                             {6, 3, 2, 80, 3}, {6, 5, 1, 112, 3}, {6, 5, 2, 192, 4},
                             {6, 3, 1, 320, 1}};
constexpr int64_t kStemChannels = 32;
constexpr int64_t kHeadMultiple = 4;  // of the last stage's channels

// The nearest multiple of 8, that is no more than a tenth below.
int64_t Scaled(int64_t channels, double by) {
  const double wanted = static_cast<double>(channels) * by;
  const int64_t near = std::max<int64_t>(8, static_cast<int64_t>(wanted + 4) / 8 * 8);
  return static_cast<double>(near) < 0.9 * wanted ? near + 8 : near;
}

void Fields(FieldPass& f) {
  ImageModel& m = f.config().image;
  ImageSizes(f);
  f.Number("width_coefficient", &m.width_coefficient, 1);
  f.Number("depth_coefficient", &m.depth_coefficient, 1);
  f.Activation("hidden_act", "swish", {"swish", "silu"});
  f.Only("depth_divisor", 8);
  f.Only("squeeze_expansion_ratio", 0.25);
  for (const double by : {m.width_coefficient, m.depth_coefficient}) {
    if (f.reads() && !(by > 0 && by <= 8)) {
      f.in().Fail("width_coefficient", "or depth_coefficient is not above 0 and at most 8");
    }
  }
}

ImageLayer Block(const Stage& stage, const std::string& prefix, const ImageSize& in,
                 int64_t channels, int64_t stride) {
  ImageLayer block;
  block.in = in;
  int part = 0;
  const auto add = [&](int64_t out, int64_t kernel, int64_t by, int64_t groups,
                       ImageActivation activation) {
    const std::string name = absl::StrCat(prefix, "block.", part++);
    block.convs.push_back({.conv = name + ".0",
                           .norm = name + ".1",
                           .in = block.convolved(),
                           .out_channels = out,
                           .kernel = kernel,
                           .stride = by,
                           .groups = groups,
                           .activation = activation});
  };
  const int64_t wide = in.channels * stage.expand;
  if (stage.expand != 1) add(wide, 1, 1, 1, ImageActivation::kSilu);
  add(wide, stage.kernel, stride, wide, ImageActivation::kSilu);
  block.squeeze_channels = std::max<int64_t>(1, in.channels / 4);
  block.squeeze_in = absl::StrCat(prefix, "block.", part, ".fc1");
  block.squeeze_out = absl::StrCat(prefix, "block.", part, ".fc2");
  ++part;
  add(channels, 1, 1, 1, ImageActivation::kNone);
  block.residual = stride == 1 && in.channels == channels;
  return block;
}

std::vector<ImageLayer> Layers(const ModelConfig& c) {
  const ImageModel& m = c.image;
  std::vector<ImageLayer> layers(1);
  ImageLayer& stem = layers[0];
  stem.name = "embedding";
  stem.in = {m.height, m.width, m.channels};
  stem.pixels = true;
  stem.convs.push_back({.conv = "features.0.0",
                        .norm = "features.0.1",
                        .in = stem.in,
                        .out_channels = Scaled(kStemChannels, m.width_coefficient),
                        .kernel = 3,
                        .stride = 2,
                        .activation = ImageActivation::kSilu});
  int number = 0;
  for (const Stage& stage : kStages) {
    ++number;
    const auto blocks =
        static_cast<int64_t>(std::ceil(static_cast<double>(stage.blocks) * m.depth_coefficient));
    for (int64_t i = 0; i < blocks; ++i) {
      ImageLayer block =
          Block(stage, absl::StrCat("features.", number, ".", i, "."), layers.back().out(),
                Scaled(stage.channels, m.width_coefficient), i == 0 ? stage.stride : 1);
      block.name = absl::StrCat("block.", layers.size() - 1);
      layers.push_back(std::move(block));
    }
  }
  ImageLayer head;
  head.name = "head";
  head.in = layers.back().out();
  head.convs.push_back({.conv = "features.8.0",
                        .norm = "features.8.1",
                        .in = head.in,
                        .out_channels = kHeadMultiple * head.in.channels,
                        .activation = ImageActivation::kSilu});
  head.classes = c.vocab;
  head.classifier = "classifier.1";
  layers.push_back(std::move(head));
  return layers;
}

}  // namespace efficientnet

constinit const Family kEfficientNetFamily = {.id = ModelFamily::kEfficientNet,
                                              .model_type = "efficientnet",
                                              .architecture = "EfficientNetForImageClassification",
                                              .fields = efficientnet::Fields,
                                              .describe = DescribeImages,
                                              .image_layers = efficientnet::Layers};

}  // namespace atl
