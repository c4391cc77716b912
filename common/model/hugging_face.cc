#include "common/model/hugging_face.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "common/model/family.h"
#include "common/model/image_model.h"

namespace atl {

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view text, absl::string_view file) {
  constexpr size_t kMaxBytes = 1 << 20;
  if (text.size() > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": larger than 1 MB; not a config.json"));
  }
  ATOLL_ASSIGN_OR_RETURN(const nlohmann::json object, ParseJsonObject(text, file, 8));
  ConfigFields fields(object, file);
  const std::string type = fields.Text("model_type", "");
  const Family* const family = FindFamily(type);
  if (family == nullptr) {
    fields.Fail("model_type",
                absl::StrCat("is \"", type, "\"; Atoll trains ",
                             absl::StrJoin(AllFamilies(), ", ", [](auto* out, const Family* f) {
                               absl::StrAppend(out, f->model_type);
                             })));
    return fields.status();
  }
  ModelConfig config;
  config.family = family->id;
  config.special_tokens.bos = fields.TokenIds("bos_token_id");
  config.special_tokens.eos = fields.TokenIds("eos_token_id");
  config.special_tokens.pad = fields.TokenIds("pad_token_id");
  config.initializer_range = fields.Number("initializer_range", config.initializer_range);
  family->read(fields, &config);
  fields.RefuseUnknown(family->model_type);
  ATOLL_RETURN_IF_ERROR(fields.status());
  if (config.is_images()) {
    const std::vector<ImageLayer> layers = ImageLayers(config);
    config.layers = std::ssize(layers) - 2;
    for (const ImageLayer& layer : layers) {
      config.d_model = std::max(config.d_model, layer.out().elements());
    }
  }
  ATOLL_RETURN_IF_ERROR(Annotate(config.Validate(), file));
  return config;
}

std::string FormatModelConfig(const ModelConfig& config, absl::string_view dtype) {
  const Family& family = GetFamily(config.family);
  nlohmann::ordered_json json;
  if (!config.is_images()) json["architectures"] = {family.architecture};
  json["model_type"] = family.model_type;
  if (!config.is_images()) json["vocab_size"] = config.vocab;
  family.write(config, &json);
  json["initializer_range"] = config.initializer_range;
  json["torch_dtype"] = dtype;
  if (config.is_images()) return json.dump(2) + "\n";
  json["tie_word_embeddings"] = config.tied_head;
  json["bos_token_id"] = TokenIdsJson(config.special_tokens.bos);
  json["eos_token_id"] = TokenIdsJson(config.special_tokens.eos);
  // Without the field transformers' classes have ids of their own, which may lie beyond vocab_size.
  json["pad_token_id"] = TokenIdsJson(config.special_tokens.pad);
  json["use_cache"] = true;
  return json.dump(2) + "\n";
}

}  // namespace atl
