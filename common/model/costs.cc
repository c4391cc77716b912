#include "common/model/costs.h"

#include "common/model/adapters/frozen_place.h"
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

// Counts the weights of a block's matrices that one token is multiplied with.
double BlockWeights(const ModelConfig& c, int64_t block) {
  const auto attention =
      static_cast<double>(2 * c.d_model * (c.query_channels() + c.key_channels()));
  return attention + static_cast<double>(FeedForwardWeights(c, block));
}

double BlockFlops(const ModelConfig& c, int64_t block, int64_t seq_len,
                  int64_t adapter_parameters) {
  const double weights = BlockWeights(c, block) + static_cast<double>(adapter_parameters);
  return 2 * weights * static_cast<double>(seq_len) +
         4 * static_cast<double>(c.query_channels()) *
             VisiblePairs(c, c.architecture(), block, seq_len);
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
               const ElementBytes& element, LayerCosts* costs) {
  costs->frozen_bytes = PlaceFrozen(layout, element.compute).bytes;
  costs->coded_bytes = PlaceFrozen(layout, 0).bytes;
  if (layer == c.layers + 1) costs->frozen_flops = costs->forward_flops;
  if (layer == 0 || layer == c.layers + 1) return;
  costs->frozen_flops = 2 * BlockWeights(c, layer - 1) * static_cast<double>(seq_len);
}

}  // namespace

int64_t FeedForwardWeights(const ModelConfig& c, int64_t block) {
  if (!c.HasExperts(block)) return (c.architecture().gated() ? 3 : 2) * c.d_model * c.ffn;
  const Experts& e = c.experts;
  const int64_t hidden = e.per_token * e.hidden + e.shared_hidden;
  return c.d_model * (3 * hidden + e.count + (e.shared_gate ? 1 : 0));
}

int64_t IdleParameters(const ModelConfig& c, int64_t layer) {
  if (layer == 0 || layer == c.layers + 1 || !c.HasExperts(layer - 1)) return 0;
  return (c.experts.count - c.experts.per_token) * 3 * c.d_model * c.experts.hidden;
}

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
    if (c.adapter.present()) AddFrozen(c, layout, l, seq_len, element, &costs);
    costs.output_bytes = seq_len * (head ? c.vocab : c.d_model) * element.compute;
    if (l == 0) {
      const EmbeddingStash stash = MakeEmbeddingStash(c, one, element);
      costs.forward_stash_bytes = stash.forward_bytes;
      costs.backward_stash_bytes = stash.backward_bytes;
    } else if (head) {
      const HeadStash stash = MakeHeadStash(c, one, element);
      costs.forward_stash_bytes = stash.forward_bytes;
      costs.backward_stash_bytes = stash.backward_bytes;
      const int64_t table = c.tied_head ? c.vocab * c.d_model : 0;
      if (c.adapter.present()) {
        costs.frozen_bytes += table * element.compute;
      } else {
        costs.read_parameters += table;
      }
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
