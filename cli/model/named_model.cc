#include "cli/model/named_model.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/planner/cluster/catalogue.h"

namespace atl::cli {
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

}  // namespace atl::cli
