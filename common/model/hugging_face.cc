#include "common/model/hugging_face.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/model/family.h"
#include "common/model/image_model.h"

namespace atl {
namespace {

// Finds the family of files of 2019 and 2020, which have no model_type, by transformers' class
// ("GPT2LMHeadModel"). Null: it is of no family.
const Family* FamilyOfClass(const nlohmann::json& object) {
  const auto classes = object.find("architectures");
  if (classes == object.end() || !classes->is_array() || classes->size() != 1) return nullptr;
  for (const Family* family : AllFamilies()) {
    absl::string_view stem = family->architecture;
    for (const char* end : {"ForCausalLM", "ForMaskedLM", "LMHeadModel"}) {
      absl::ConsumeSuffix(&stem, end);
    }
    for (const char* end : {"ForCausalLM", "ForMaskedLM", "ForPreTraining", "LMHeadModel",
                            "DoubleHeadsModel", "Model"}) {
      if ((*classes)[0] == nlohmann::json(absl::StrCat(stem, end))) return family;
    }
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view text, absl::string_view file,
                                             std::string* warning) {
  constexpr size_t kMaxBytes = 1 << 20;
  if (text.size() > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": larger than 1 MB; not a config.json"));
  }
  ATOLL_ASSIGN_OR_RETURN(const nlohmann::json object, ParseJsonObject(text, file, 8));
  ConfigFields fields(object, file);
  const std::string type = fields.Text("model_type", "");
  const Family* const family = type.empty() ? FamilyOfClass(object) : FindFamily(type);
  if (family == nullptr && type.empty()) {
    fields.Fail("model_type",
                "is missing, and \"architectures\" names no class of a family that Atoll trains");
  }
  if (family == nullptr) {
    std::set<absl::string_view> names;
    for (const Family* known : AllFamilies()) names.insert(known->model_type);
    fields.Fail("model_type",
                absl::StrCat("is \"", type, "\"; Atoll trains ", absl::StrJoin(names, ", ")));
    return fields.status();
  }
  ModelConfig config;
  config.family = family->id;
  config.special_tokens.bos = fields.TokenIds("bos_token_id");
  config.special_tokens.eos = fields.TokenIds("eos_token_id");
  config.special_tokens.pad = fields.TokenIds("pad_token_id");
  config.initializer_range = fields.Number("initializer_range", config.initializer_range);
  if (family->image_layers == nullptr) {
    config.vocab = fields.Integer("vocab_size", kMaxVocab);
    config.tied_head = fields.Flag("tie_word_embeddings", family->tied_head);
  }
  FieldPass pass(fields, &config);
  family->fields(pass);
  fields.CheckUnread(family->model_type);
  ATOLL_RETURN_IF_ERROR(fields.status());
  if (config.is_images()) {
    const std::vector<ImageLayer> layers = ImageLayers(config);
    config.layers = std::ssize(layers) - 2;
    for (const ImageLayer& layer : layers) {
      config.d_model = std::max(config.d_model, layer.out().elements());
    }
  }
  if (warning != nullptr) *warning = fields.Warning();
  ATOLL_RETURN_IF_ERROR(Annotate(config.Validate(), file));
  return config;
}

std::string FormatModelConfig(const ModelConfig& config, absl::string_view dtype) {
  const Family& family = GetFamily(config.family);
  nlohmann::ordered_json json;
  if (!config.is_images()) json["architectures"] = {family.architecture};
  json["model_type"] = family.model_type;
  if (!config.is_images()) json["vocab_size"] = config.vocab;
  ModelConfig copy = config;
  FieldPass pass(&json, &copy);
  family.fields(pass);
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
