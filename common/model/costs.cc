#include "common/model/costs.h"

#include "common/model/image_model.h"
#include "common/model/layout.h"

namespace atl {
namespace {

// Pairs of a query and a key that it sees, in one sequence; half of a square for causal attention.
double VisiblePairs(const ModelConfig& c, const Architecture& a, int64_t block, int64_t seq_len) {
  const auto t = static_cast<double>(seq_len);
  if (!a.causal) return t * t;
  const auto window = static_cast<double>(c.WindowOfBlock(block, seq_len));
  return window > 0 ? window * t - window * window / 2 : t * t / 2;
}

double BlockFlops(const ModelConfig& c, int64_t block, int64_t seq_len,
                  int64_t adapter_parameters) {
  const Architecture a = c.architecture();
  const auto d = static_cast<double>(c.d_model), q = static_cast<double>(c.query_channels());
  const auto kv = static_cast<double>(c.key_channels()), f = static_cast<double>(c.ffn);
  const double weights =
      d * (2 * q + 2 * kv) + (a.gated() ? 3 : 2) * d * f + static_cast<double>(adapter_parameters);
  return 2 * weights * static_cast<double>(seq_len) + 4 * q * VisiblePairs(c, a, block, seq_len);
}

std::vector<LayerCosts> ImageCosts(const ModelConfig& c, const ElementBytes& element) {
  std::vector<LayerCosts> all;
  for (const ImageLayer& layer : ImageLayers(c)) {
    const ImageStash stash = MakeImageStash(layer, 1, element);
    LayerCosts costs;
    costs.name = layer.name;
    costs.parameters = costs.read_parameters = MakeImageLayout(layer).size;
    costs.forward_flops = ForwardFlops(layer);
    costs.output_bytes = layer.out().elements() * element.compute;
    costs.forward_stash_bytes = stash.forward_bytes;
    costs.backward_stash_bytes = stash.backward_bytes;
    all.push_back(std::move(costs));
  }
  return all;
}

double HeadFlops(const ModelConfig& c, int64_t seq_len) {
  const auto d = static_cast<double>(c.d_model);
  double weights = d * static_cast<double>(c.vocab);
  switch (c.architecture().objective) {
    case Objective::kNextToken:
      break;
    case Objective::kMaskedToken:
      weights += d * d;
      break;
    case Objective::kImageClass:
      break;
  }
  return 2 * weights * static_cast<double>(seq_len);
}

// Adds frozen weights; `forward_flops` of a block has the adapter's already.
void AddFrozen(const ModelConfig& c, const LayerLayout& layout, int64_t layer, int64_t seq_len,
               LayerCosts* costs) {
  costs->frozen_parameters = layout.frozen_size;
  if (layer == c.layers + 1) costs->frozen_flops = costs->forward_flops;
  if (layer == 0 || layer == c.layers + 1) return;
  for (const ParamSpec& param : layout.frozen) {
    if (!param.decay) continue;
    costs->frozen_flops += 2 * static_cast<double>(param.size) * static_cast<double>(seq_len);
  }
}

}  // namespace

double ForwardFlops(const ModelConfig& c, int64_t layer, int64_t seq_len,
                    int64_t adapter_parameters) {
  if (c.is_images()) {
    return static_cast<double>(seq_len) * ForwardFlops(ImageLayers(c)[static_cast<size_t>(layer)]);
  }
  if (layer == 0) return 0;  // a table look-up is none
  return layer <= c.layers ? BlockFlops(c, layer - 1, seq_len, adapter_parameters)
                           : HeadFlops(c, seq_len);
}

std::vector<LayerCosts> CostsByLayer(const ModelConfig& c, int64_t seq_len,
                                     const ElementBytes& element) {
  const BatchShape one{1, seq_len};
  if (c.is_images()) return ImageCosts(c, element);
  const TensorPart whole = WholePart(c);
  const std::vector<LayerLayout> layouts = MakeLayouts(c);
  std::vector<LayerCosts> all;
  for (int64_t l = 0; l < c.layers + 2; ++l) {
    const LayerLayout& layout = layouts[static_cast<size_t>(l)];
    const bool head = l == c.layers + 1;
    LayerCosts costs;
    costs.name = layout.name;
    costs.parameters = costs.read_parameters = layout.size;
    costs.forward_flops = ForwardFlops(c, l, seq_len, c.adapter.present() ? layout.size : 0);
    if (c.adapter.present()) AddFrozen(c, layout, l, seq_len, &costs);
    costs.output_bytes = seq_len * (head ? c.vocab : c.d_model) * element.compute;
    if (l == 0) {
      const EmbeddingStash stash = MakeEmbeddingStash(c, one, element);
      costs.forward_stash_bytes = stash.forward_bytes;
      costs.backward_stash_bytes = stash.backward_bytes;
    } else if (head) {
      const HeadStash stash = MakeHeadStash(c, one, element);
      costs.forward_stash_bytes = stash.forward_bytes;
      costs.backward_stash_bytes = stash.backward_bytes;
      int64_t& read = c.adapter.present() ? costs.frozen_parameters : costs.read_parameters;
      if (c.tied_head) read += c.vocab * c.d_model;
    } else {
      costs.forward_stash_bytes = MakeBlockForwardStash(c, l - 1, whole, one, element).bytes;
      costs.backward_stash_bytes = MakeBlockBackwardStash(c, l - 1, whole, one, element).bytes;
    }
    all.push_back(std::move(costs));
  }
  return all;
}

int64_t ConstantBytes(const ModelConfig& c, int64_t seq_len, const ElementBytes& element) {
  return c.architecture().rotary() ? seq_len * c.head_dim() * element.state : 0;
}

}  // namespace atl
