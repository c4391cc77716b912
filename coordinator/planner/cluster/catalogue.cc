#include "coordinator/planner/cluster/catalogue.h"

#include <algorithm>
#include <cctype>

#include "absl/strings/escaping.h"
#include "common/status.h"

namespace atl::plan {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

std::string Lower(absl::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

const std::vector<DeviceType>& Devices() {
  // TFLOP/s dense half precision, GB/s, GiB, GB/s per direction (NVLink or PCIe).
  static const auto* devices = new std::vector<DeviceType>{
      {"p100", 18.7e12, 732e9, 16 * kGiB, 16e9},
      {"v100", 125e12, 900e9, 32 * kGiB, 150e9},
      {"p4", 5.5e12, 192e9, 8 * kGiB, 16e9},
      {"a10", 125e12, 600e9, 24 * kGiB, 32e9},
      {"a100-40", 312e12, 1555e9, 40 * kGiB, 300e9},
      {"a100-80", 312e12, 2039e9, 80 * kGiB, 300e9},
      {"h100", 989e12, 3350e9, 80 * kGiB, 450e9},
      {"h800", 989e12, 3350e9, 80 * kGiB, 200e9},
      {"h200", 989e12, 4800e9, 141 * kGiB, 450e9},
      {"h20", 148e12, 4000e9, 96 * kGiB, 450e9},
      {"l20", 119.5e12, 864e9, 48 * kGiB, 32e9},
      {"rtx2080ti", 53.8e12, 616e9, 11 * kGiB, 16e9},
      {"rtx3080", 59.5e12, 760e9, 10 * kGiB, 32e9},
      {"rtx3090", 71.2e12, 936e9, 24 * kGiB, 32e9},
      {"rtx4090", 165.2e12, 1008e9, 24 * kGiB, 32e9},
      {"rtx4090d", 147e12, 1008e9, 24 * kGiB, 32e9},
  };
  return *devices;
}

const std::vector<TransformerShape>& Transformers() {
  static const auto* shapes = new std::vector<TransformerShape>{
      {"gpt2", 12, 768, 12, 0, 0, 50257, 1024},
      {"gpt2-medium", 24, 1024, 16, 0, 0, 50257, 1024},
      {"gpt2-large", 36, 1280, 20, 0, 0, 50257, 1024},
      {"gpt2-xl", 48, 1600, 25, 0, 0, 50257, 1024},
      {"gpt3-1.3b", 24, 2048, 16, 0, 0, 50257, 2048},
      {"gpt3-2.7b", 32, 2560, 32, 0, 0, 50257, 2048},
      {"gpt3-6.7b", 32, 4096, 32, 0, 0, 50257, 2048},
      {"gpt3-13b", 40, 5120, 40, 0, 0, 50257, 2048},
      {"gpt3-22b", 48, 6144, 64, 0, 0, 50257, 2048},
      {"gpt3-175b", 96, 12288, 96, 0, 0, 50257, 2048},
      {"llama-1b", 16, 2048, 32, 8, 8192, 128256, 4096, true, true, false},
      {"llama-7b", 32, 4096, 32, 0, 11008, 32000, 2048, true, false, false},
      {"llama-8b", 32, 4096, 32, 8, 14336, 128256, 4096, true, false, false},
      {"llama-13b", 40, 5120, 40, 0, 13824, 32000, 2048, true, false, false},
      {"llama-70b", 80, 8192, 64, 8, 28672, 32000, 4096, true, false, false},
      {"bert-small", 4, 512, 8, 0, 0, 30522, 512},
      {"bert-base", 12, 768, 12, 0, 0, 30522, 512},
      {"bert-large", 24, 1024, 16, 0, 0, 30522, 512},
  };
  return *shapes;
}

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

template <class T>
std::string Names(const std::vector<T>& names) {
  std::string list;
  for (const T& name : names) absl::StrAppend(&list, list.empty() ? "" : ", ", name);
  return list;
}

}  // namespace

std::vector<std::string> DeviceTypeNames() {
  std::vector<std::string> names;
  for (const DeviceType& type : Devices()) names.push_back(type.name);
  return names;
}

double DeviceType::AllReduceSeconds(int devices, double bytes) const {
  const auto described = ring_links.find(devices);
  const RingLink ring =
      described == ring_links.end() ? RingLink{0, link_bytes_per_s} : described->second;
  return 2.0 * (devices - 1) * ring.latency_s +
         2.0 * (devices - 1) / devices * bytes / ring.bytes_per_s;
}

absl::StatusOr<DeviceType> FindDeviceType(absl::string_view name) {
  const std::string lower = Lower(name);
  for (const DeviceType& type : Devices()) {
    if (type.name == lower) return type;
  }
  return absl::NotFoundError(absl::StrCat(
      "device type \"", absl::CHexEscape(name), "\" is not in the catalogue (",
      Names(DeviceTypeNames()), "); use one of these, or a profile with times of this type"));
}

int64_t Model::parameters() const {
  int64_t sum = 0;
  for (const Layer& layer : layers) sum += layer.parameters;
  return sum;
}

absl::StatusOr<Model> MakeTransformer(const TransformerShape& shape) {
  const int64_t h = shape.hidden;
  const int64_t s = shape.sequence;
  for (const auto& [what, value, most] :
       {std::tuple("layers", shape.layers, int64_t{10'000}),
        std::tuple("hidden", h, int64_t{1} << 20),
        std::tuple("heads", shape.heads, int64_t{1} << 16),
        std::tuple("vocabulary", shape.vocabulary, int64_t{1} << 24),
        std::tuple("sequence", s, int64_t{1} << 24)}) {
    if (value < 1 || value > most) {
      return absl::InvalidArgumentError(absl::StrCat("model \"", shape.name, "\": ", what, " = ",
                                                     value, " is not in 1 .. ", most));
    }
  }
  const int64_t kv_heads = shape.kv_heads == 0 ? shape.heads : shape.kv_heads;
  const int64_t ffn = shape.ffn == 0 ? 4 * h : shape.ffn;
  if (kv_heads < 0 || kv_heads > shape.heads || ffn < 1 || ffn > int64_t{1} << 22) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model \"", shape.name, "\": kv_heads = ", kv_heads, " or ffn = ", ffn, " is impossible"));
  }
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

std::vector<std::string> ModelNames() {
  std::vector<std::string> names;
  for (const TransformerShape& shape : Transformers()) names.push_back(shape.name);
  for (const char* name : {"resnet50", "resnet101", "efficientnet-b0"}) names.push_back(name);
  return names;
}

absl::StatusOr<Model> FindModel(absl::string_view name, int64_t sequence) {
  const std::string lower = Lower(name);
  for (TransformerShape shape : Transformers()) {
    if (shape.name != lower) continue;
    if (sequence != 0) shape.sequence = sequence;
    return MakeTransformer(shape);
  }
  const int64_t image = sequence == 0 ? 224 : sequence;
  if (image < 1 || image > 1 << 16) {
    return absl::InvalidArgumentError(
        absl::StrCat("model \"", name, "\": images ", image, " wide"));
  }
  if (lower == "resnet50") return ResNet(lower, {3, 4, 6, 3}, image);
  if (lower == "resnet101") return ResNet(lower, {3, 4, 23, 3}, image);
  if (lower == "efficientnet-b0") return EfficientNetB0(image);
  return absl::NotFoundError(absl::StrCat("model \"", absl::CHexEscape(name),
                                          "\" is not in the catalogue (", Names(ModelNames()),
                                          "); give a config.json of the model"));
}

}  // namespace atl::plan
