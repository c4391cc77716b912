#include "coordinator/planning/model.h"

#include <algorithm>

#include "common/model/costs.h"
#include "common/model/stage_memory.h"

namespace atl {

plan::Model PlannerModel(const std::string& name, const ModelConfig& config,
                         int64_t sequence_length, const ElementBytes& element) {
  const std::vector<LayerCosts> costs = CostsByLayer(config, sequence_length, element);
  const std::vector<LayerFootprint> footprints =
      ComputeLayerFootprints(config, WholePart(config), {1, sequence_length}, element);
  plan::Model model;
  model.name = name;
  model.tied_head = config.tied_head;
  for (size_t l = 0; l < costs.size(); ++l) {
    const LayerFootprint& takes = footprints[l];
    const bool head = l + 1 == costs.size();
    plan::Layer layer;
    layer.name = costs[l].name;
    // On a device of its own a tied head holds a copy of the table.
    layer.parameters = costs[l].read_parameters;
    layer.forward_flops = costs[l].forward_flops;
    layer.out_bytes = head ? 0 : takes.output_bytes;
    // The gradient of what the layer hands on; that of logits replaces them.
    layer.backward_bytes = takes.backward_stash_bytes + (head ? 0 : takes.output_bytes);
    layer.stash_bytes = takes.input_bytes + takes.forward_stash_bytes +
                        (head ? takes.output_bytes : 0) + layer.backward_bytes;
    if (l > 0 && !head) layer.again_bytes = takes.forward_stash_bytes;
    model.layers.push_back(std::move(layer));
  }
  return model;
}

}  // namespace atl
