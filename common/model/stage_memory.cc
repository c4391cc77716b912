#include "common/model/stage_memory.h"

#include <algorithm>

#include "common/model/adapters/frozen_place.h"
#include "common/model/image_model.h"

namespace atl {
namespace {

constexpr int64_t kTokenBytes = 4;

void AddImageStash(const ModelConfig& config, int64_t images, const ElementBytes& element,
                   std::vector<LayerFootprint>& all) {
  const std::vector<ImageLayer> layers = ImageLayers(config);
  const ImageStash head = MakeImageStash(layers.back(), images, element);
  all.back().slice_bytes = head.forward_bytes + head.backward_bytes;
  for (size_t l = 0; l + 1 < all.size(); ++l) {
    const ImageStash stash = MakeImageStash(layers[l], images, element);
    all[l].forward_stash_bytes = stash.forward_bytes;
    all[l].backward_stash_bytes = stash.backward_bytes;
  }
}

void AddTransformerStash(const ModelConfig& config, const TensorPart& part, const BatchShape& shape,
                         const ElementBytes& element, std::vector<LayerFootprint>& all) {
  const EmbeddingStash embedding = MakeEmbeddingStash(config, shape, element);
  all.front().forward_stash_bytes = embedding.forward_bytes;
  all.front().backward_stash_bytes = embedding.backward_bytes;
  for (size_t l = 1; l + 1 < all.size(); ++l) {
    const auto block = static_cast<int64_t>(l) - 1;
    all[l].forward_stash_bytes = MakeBlockForwardStash(config, block, part, shape, element).bytes;
    all[l].backward_stash_bytes = MakeBlockBackwardStash(config, block, part, shape, element).bytes;
  }
  const HeadStash head = MakeHeadStash(config, {1, LossRows(config, shape)}, element);
  all.back().slice_bytes = head.forward_bytes + head.backward_bytes;
}

// Gradients of what the stage's layers hand on. Where W follows its B at once, three of one size
// take turns. What is handed to the head has its gradient in its place.
int64_t GradientBytes(const std::vector<LayerFootprint>& model, const StageSpan& stage,
                      bool has_head, bool fused) {
  int64_t bytes = 0;
  const int end = stage.first_layer + stage.layers;
  for (int l = stage.first_layer; l < end; ++l) {
    const bool in_place = has_head && l + 2 >= end;
    const bool reuses = fused && l + 3 < end && !(has_head && l + 4 == end) &&
                        model[l].output_bytes == model[l + 2].output_bytes;
    if (!in_place && !reuses) bytes += model[l].output_bytes;
  }
  return bytes;
}

}  // namespace

std::vector<LayerFootprint> ComputeLayerFootprints(const ModelConfig& config,
                                                   const TensorPart& part, const BatchShape& shape,
                                                   const ElementBytes& element) {
  const std::vector<LayerLayout> layouts = MakeLayouts(config, part);
  const int64_t copy = element.compute == element.state ? 0 : element.compute;
  std::vector<LayerFootprint> all(layouts.size());
  for (size_t l = 0; l < all.size(); ++l) {
    const bool head = l + 1 == all.size();
    all[l].elements = layouts[l].size;
    all[l].parameter_bytes = layouts[l].size * (2 * element.state + copy) +
                             PlaceFrozen(layouts[l], element.compute).bytes;
    all[l].input_bytes = l > 0 ? all[l - 1].output_bytes
                               : shape.rows * config.InputNumbers(shape.seq_len) * kTokenBytes;
    if (head) continue;
    all[l].output_bytes =
        shape.tokens() * config.OutputColumns(static_cast<int64_t>(l)) * element.compute;
  }
  if (config.is_images()) {
    AddImageStash(config, shape.rows, element, all);
  } else {
    AddTransformerStash(config, part, shape, element, all);
  }
  const int64_t rows = LossRows(config, shape);
  all.back().slice_bytes +=
      rows * part.vocab.size() * element.compute + all.back().input_bytes / shape.tokens() * rows;
  return all;
}

int64_t ActivationBytes(const std::vector<LayerFootprint>& model, const StageSpan& stage,
                        const StageSlots& slots) {
  const int layers = static_cast<int>(model.size()), end = stage.first_layer + stage.layers;
  const bool has_head = end == layers;
  int64_t forward = model[stage.first_layer].input_bytes, backward = 0;
  int64_t most_backward = 0, most_recomputed = 0, recomputed_output = 0;
  for (int l = stage.first_layer; l < end; ++l) {
    const LayerFootprint& layer = model[l];
    const bool recomputed = stage.recomputed.count(l) > 0 && l > 0 && l + 1 < layers;
    if (l + 1 < end) forward += layer.output_bytes;
    if (!recomputed) forward += layer.forward_stash_bytes;
    backward += layer.backward_stash_bytes + (recomputed ? layer.forward_stash_bytes : 0);
    most_backward = std::max(most_backward, layer.backward_stash_bytes);
    if (!recomputed) continue;
    most_recomputed = std::max(most_recomputed, layer.forward_stash_bytes);
    if (layer.output_bytes != layer.input_bytes) {
      recomputed_output = std::max(recomputed_output, layer.output_bytes);
    }
  }
  const int64_t gradients = GradientBytes(model, stage, has_head, slots.fused);
  const int64_t each = slots.fused ? most_backward + gradients : backward + gradients;
  const int64_t slice = has_head ? model[end - 1].slice_bytes : 0;
  return slice + slots.forward * forward + (slots.fused ? 1 : slots.backward) * each +
         most_recomputed + recomputed_output;
}

int64_t TiedTableElements(const ModelConfig& config, const TensorPart& part) {
  return config.tied_head ? part.vocab.size() * config.d_model : 0;
}

}  // namespace atl
