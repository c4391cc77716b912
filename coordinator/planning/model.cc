#include "coordinator/planning/model.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/model/costs.h"
#include "common/model/stage_memory.h"
#include "coordinator/planner/cluster/catalogue.h"

namespace atl {
namespace {

// Returns the part of a block's operations that is attention.
double AttentionShare(const ModelConfig& config, const plan::Layer& block, int64_t tokens) {
  const auto matrices =
      static_cast<double>((config.architecture().gated() ? 3 : 2) * config.d_model * config.ffn);
  if (block.forward_flops <= 0) return 0;
  return std::clamp(1 - 2 * matrices * static_cast<double>(tokens) / block.forward_flops, 0.0, 1.0);
}

}  // namespace

plan::Model PlannerModel(const std::string& name, const ModelConfig& config,
                         int64_t sequence_length, const ElementBytes& element) {
  const std::vector<LayerCosts> costs = CostsByLayer(config, sequence_length, element);
  const std::vector<LayerFootprint> footprints =
      ComputeLayerFootprints(config, WholePart(config), {1, sequence_length}, element);
  plan::Model model;
  model.name = name;
  model.tied_head = config.tied_head;
  model.head_groups = config.is_images() ? 0 : config.kv_heads;
  for (size_t l = 0; l < costs.size(); ++l) {
    const LayerFootprint& takes = footprints[l];
    const bool head = l + 1 == costs.size();
    plan::Layer layer;
    layer.name = costs[l].name;
    // On a device of its own a tied head holds a copy of the table.
    layer.parameters = costs[l].read_parameters;
    layer.frozen_bytes = costs[l].frozen_parameters * element.compute;
    layer.forward_flops = costs[l].forward_flops;
    layer.frozen_flops = costs[l].frozen_flops;
    layer.loss = head;
    layer.out_bytes = takes.output_bytes;
    // The gradient of what the layer hands on, which takes its place before a head in one stage.
    layer.backward_bytes = takes.backward_stash_bytes + takes.output_bytes;
    layer.stash_bytes =
        takes.input_bytes + takes.forward_stash_bytes + takes.slice_bytes + layer.backward_bytes;
    if (l > 0 && !head) layer.again_bytes = takes.forward_stash_bytes;
    if (l > 0 && !head && !config.is_images()) {
      layer.head_share = AttentionShare(config, layer, sequence_length);
    }
    model.layers.push_back(std::move(layer));
  }
  return model;
}

namespace {

// resnet50 and resnet101 by their depths, and EfficientNet-B0; nothing: others.
std::optional<std::string> FindImageConfig(const std::string& name, int64_t side) {
  const std::string size = absl::StrCat("\"image_size\": ", side);
  if (name == "efficientnet-b0") {
    return absl::StrCat("{\"model_type\": \"efficientnet\", ", size, "}");
  }
  for (const auto& [resnet, depths] :
       {std::pair("resnet50", "[3, 4, 6, 3]"), std::pair("resnet101", "[3, 4, 23, 3]")}) {
    if (name != resnet) continue;
    return absl::StrCat("{\"model_type\": \"resnet\", \"depths\": ", depths, ", ", size, "}");
  }
  return std::nullopt;
}

constexpr int64_t kImageSide = 224;

}  // namespace

absl::StatusOr<JobSpec> NamedModelJob(const std::string& name, int64_t sequence) {
  JobSpec spec;
  spec.name = name;
  const int64_t side = sequence == 0 ? kImageSide : sequence;
  if (const auto config = FindImageConfig(name, side); config) {
    spec.model.config_json = *config;
    spec.data.format = DataFormat::kImageFolder;
    spec.data.image_size = side;
    spec.data.sequence_length = 1;
    return spec;
  }
  std::vector<std::string> names;
  for (const plan::TransformerShape& shape : plan::TransformerShapes()) {
    names.push_back(shape.name);
    if (shape.name != name) continue;
    spec.data.sequence_length = sequence == 0 ? shape.sequence : sequence;
    ModelSpec& model = spec.model;
    model.family = shape.gated                  ? ModelFamily::kLlama
                   : name.rfind("bert", 0) == 0 ? ModelFamily::kBert
                                                : ModelFamily::kGpt2;
    model.vocabulary = shape.vocabulary;
    model.hidden = shape.hidden;
    model.layers = shape.layers;
    model.heads = shape.heads;
    model.key_value_heads = shape.kv_heads;
    model.feed_forward = shape.ffn == 0 ? 4 * shape.hidden : shape.ffn;
    model.tied_head = shape.tied_head;
    return spec;
  }
  return absl::NotFoundError(
      absl::StrCat("model \"", absl::CHexEscape(name), "\" is not in the catalogue (",
                   absl::StrJoin(names, ", "),
                   ", resnet50, resnet101, efficientnet-b0); give a config.json of the model"));
}

}  // namespace atl
