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

}  // namespace atl::cli
