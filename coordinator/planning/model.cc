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

// Sets the parts of a block's operations that are attention and experts.
void SetShares(const ModelConfig& config, int64_t block, int64_t tokens, plan::Layer* layer) {
  if (layer->forward_flops <= 0) return;
  const auto share = [&](int64_t weights) {
    return std::clamp(
        2 * static_cast<double>(weights) * static_cast<double>(tokens) / layer->forward_flops, 0.0,
        1.0);
  };
  layer->head_share = 1 - share(FeedForwardWeights(config, block));
  if (!config.HasExperts(block)) return;
  layer->expert_share =
      share(config.experts.per_token * 3 * config.d_model * config.experts.hidden);
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
  model.experts = config.experts.count;
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
      SetShares(config, static_cast<int64_t>(l) - 1, sequence_length, &layer);
    }
    model.layers.push_back(std::move(layer));
  }
  return model;
}

namespace {

// Mixtures of experts by their config.json, and the longest sequence that they are trained with.
struct NamedMixture {
  const char* name;
  const char* config;
  int64_t sequence;
};
constexpr NamedMixture kMixtures[] = {
    {"mixtral-8x7b", R"({"model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096,
         "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32})",
     4096},
    {"mixtral-8x22b", R"({"model_type": "mixtral", "vocab_size": 32000, "hidden_size": 6144,
         "intermediate_size": 16384, "num_hidden_layers": 56, "num_attention_heads": 48})",
     4096},
    {"olmoe-1b-7b", R"({"model_type": "olmoe", "vocab_size": 50304, "hidden_size": 2048,
         "intermediate_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16})",
     4096},
    {"qwen3-30b-a3b", R"({"model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048,
         "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32,
         "head_dim": 128, "norm_topk_prob": true})",
     4096},
};

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
  for (const NamedMixture& mixture : kMixtures) {
    names.push_back(mixture.name);
    if (mixture.name != name) continue;
    spec.data.sequence_length = sequence == 0 ? mixture.sequence : sequence;
    spec.model.config_json = mixture.config;
    return spec;
  }
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
