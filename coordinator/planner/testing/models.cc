#include "coordinator/planner/testing/models.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace atl::plan {
namespace {

// Convolutional models: blocks on a shrinking image.
class ConvNet {
 public:
  ConvNet(std::string name, int64_t image) : side_(image) { model_.name = std::move(name); }

  void Begin(std::string name) { model_.layers.push_back({std::move(name), 0, 0, 0, 0}); }

  void Conv(int64_t k, int64_t in, int64_t out, int64_t stride, int64_t groups = 1) {
    const int64_t before = side_ * side_ * in;
    side_ = (side_ + stride - 1) / stride;
    Layer& layer = model_.layers.back();
    const int64_t weights = k * k * in * out / groups;
    layer.parameters += weights + 2 * out;  // and the batch norm's scale and shift
    layer.forward_flops += 2.0 * static_cast<double>(weights * side_ * side_);
    layer.out_bytes = 2 * side_ * side_ * out;
    layer.stash_bytes += 2 * before + layer.out_bytes;
  }

  // A branch parallel to the main path: does not change the image that follows.
  void Shortcut(int64_t in, int64_t out, int64_t image, int64_t stride) {
    const int64_t side = side_;
    const int64_t sent = model_.layers.back().out_bytes;
    side_ = image;
    Conv(1, in, out, stride);
    side_ = side;
    model_.layers.back().out_bytes = sent;
  }

  void SqueezeExcite(int64_t channels, int64_t squeezed) {
    Layer& layer = model_.layers.back();
    layer.parameters += 2 * channels * squeezed + channels + squeezed;
    layer.forward_flops += 4.0 * static_cast<double>(channels * squeezed);
  }

  void Classifier(int64_t in, int64_t classes) {
    Begin("classifier");
    Layer& layer = model_.layers.back();
    layer.parameters = in * classes + classes;
    layer.forward_flops = 2.0 * static_cast<double>(in * classes);
    layer.stash_bytes = 2 * in;
    layer.out_bytes = 2 * classes;
  }

  int64_t side() const { return side_; }
  Model Take() { return std::move(model_); }

 private:
  Model model_;
  int64_t side_;
};

Model ResNet(absl::string_view name, const std::vector<int>& blocks, int64_t image) {
  ConvNet net(std::string(name), image);
  net.Begin("stem");
  net.Conv(7, 3, 64, 2);
  net.Conv(1, 0, 64, 2);  // max pooling: halves the image
  int64_t in = 64;
  for (size_t stage = 0; stage < blocks.size(); ++stage) {
    const int64_t width = int64_t{64} << stage;
    for (int b = 0; b < blocks[stage]; ++b) {
      const int64_t stride = b == 0 && stage > 0 ? 2 : 1;
      net.Begin(absl::StrCat("block", stage + 1, ".", b + 1));
      const int64_t image = net.side();
      net.Conv(1, in, width, 1);
      net.Conv(3, width, width, stride);
      net.Conv(1, width, 4 * width, 1);
      if (b == 0) net.Shortcut(in, 4 * width, image, stride);
      in = 4 * width;
    }
  }
  net.Classifier(in, 1000);
  return net.Take();
}

Model EfficientNetB0(int64_t image) {
  ConvNet net("efficientnet-b0", image);
  net.Begin("stem");
  net.Conv(3, 3, 32, 2);
  struct Stage {
    int64_t expand, channels, repeats, stride, kernel;
  };
  constexpr Stage kStages[] = {{1, 16, 1, 1, 3}, {6, 24, 2, 2, 3},  {6, 40, 2, 2, 5},
                               {6, 80, 3, 2, 3}, {6, 112, 3, 1, 5}, {6, 192, 4, 2, 5},
                               {6, 320, 1, 1, 3}};
  int64_t in = 32;
  int index = 0;
  for (const Stage& stage : kStages) {
    for (int64_t r = 0; r < stage.repeats; ++r) {
      net.Begin(absl::StrCat("mbconv", ++index));
      const int64_t wide = in * stage.expand;
      if (stage.expand > 1) net.Conv(1, in, wide, 1);
      net.Conv(stage.kernel, wide, wide, r == 0 ? stage.stride : 1, wide);
      net.SqueezeExcite(wide, std::max<int64_t>(1, in / 4));
      net.Conv(1, wide, stage.channels, 1);
      in = stage.channels;
    }
  }
  net.Begin("top");
  net.Conv(1, in, 1280, 1);
  net.Classifier(1280, 1000);
  return net.Take();
}

}  // namespace

Model MakeTransformer(const TransformerShape& shape) {
  const int64_t h = shape.hidden;
  const int64_t s = shape.sequence;
  const int64_t kv_heads = shape.kv_heads == 0 ? shape.heads : shape.kv_heads;
  const int64_t ffn = shape.ffn == 0 ? 4 * h : shape.ffn;
  const int64_t kv = h * kv_heads / shape.heads;
  const int64_t matrices = 2 * h * h + 2 * h * kv + (shape.gated ? 3 : 2) * h * ffn;
  const int64_t vectors = shape.gated ? 2 * h : 2 * h + 2 * kv + ffn + h + 4 * h;
  Model model;
  model.name = shape.name;
  const int64_t embedding = shape.vocabulary * h;
  const int64_t positions = shape.positions ? s * h : 0;
  const double tokens = static_cast<double>(s);
  model.layers.push_back({"embedding", embedding + positions, 0, 0, 2 * s * h});
  for (int64_t i = 0; i < shape.layers; ++i) {
    Layer layer;
    layer.name = absl::StrCat("layer", i);
    layer.parameters = matrices + vectors;
    layer.forward_flops =
        tokens * (2.0 * static_cast<double>(matrices) + 4.0 * tokens * static_cast<double>(h));
    layer.stash_bytes = 34 * s * h;
    layer.out_bytes = 2 * s * h;
    model.layers.push_back(layer);
  }
  model.tied_head = shape.tied_head;
  // A tied head costs its own memory on the last stage all the same, but is counted once.
  model.layers.push_back({"head", (shape.tied_head ? 0 : embedding) + h * (shape.gated ? 1 : 2),
                          2.0 * tokens * static_cast<double>(embedding),
                          2 * s * h + 4 * s * shape.vocabulary, 0});
  return model;
}

absl::StatusOr<Model> FindModel(absl::string_view name, int64_t sequence) {
  for (TransformerShape shape : TransformerShapes()) {
    if (shape.name != name) continue;
    if (sequence != 0) shape.sequence = sequence;
    return MakeTransformer(shape);
  }
  const int64_t image = sequence == 0 ? 224 : sequence;
  if (name == "resnet50") return ResNet(name, {3, 4, 6, 3}, image);
  if (name == "resnet101") return ResNet(name, {3, 4, 23, 3}, image);
  if (name == "efficientnet-b0") return EfficientNetB0(image);
  return absl::NotFoundError(absl::StrCat("there is no model ", std::string(name)));
}

}  // namespace atl::plan
