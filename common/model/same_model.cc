#include "common/model/same_model.h"

#include "common/model/hugging_face.h"

namespace atl {
namespace {

absl::StatusOr<ModelConfig> ReadTrained(const ModelSpec& spec) {
  ATOLL_ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(spec.config_json, "config_json"));
  config.initializer_range = ModelConfig().initializer_range;
  // BERT's are not masked.
  if (config.architecture().objective != Objective::kMaskedToken) config.special_tokens = {};
  return config;
}

}  // namespace

bool IsSameModel(const ModelSpec& a, const ModelSpec& b) {
  if (a == b) return true;
  ModelSpec rest = b;
  rest.config_json = a.config_json;
  if (!(a == rest)) return false;
  const absl::StatusOr<ModelConfig> ours = ReadTrained(a), theirs = ReadTrained(b);
  return ours.ok() && theirs.ok() && *ours == *theirs;
}

}  // namespace atl
