// The families of models, one file each in families/, and how they are found. A new family is one
// file, one value of ModelFamily and one line in family.cc.

#ifndef ATOLL_COMMON_MODEL_FAMILY_H_
#define ATOLL_COMMON_MODEL_FAMILY_H_

#include <span>
#include <string>
#include <vector>

#include "common/model/config_fields.h"

namespace atl {

struct ImageLayer;

struct Family {
  ModelFamily id;
  const char* model_type;    // in config.json
  const char* architecture;  // transformers' class
  double default_ffn_ratio;  // a job file's feed_forward 0 is this times hidden,
  int64_t ffn_multiple;      // rounded up to a multiple of this
  // Sets the numbers that a job file leaves open.
  void (*set_defaults)(ModelConfig* config);
  void (*read)(ConfigFields& fields, ModelConfig* config);
  void (*write)(const ModelConfig& config, nlohmann::ordered_json* json);
  Architecture (*describe)(const ModelConfig& config);
  // Lists the layers of a model of images; null: the family is a transformer.
  std::vector<ImageLayer> (*image_layers)(const ModelConfig& config) = nullptr;
};

// Families are defined in families/*.cc; family.cc lists them.
const Family& GetFamily(ModelFamily id);
// Null: there is none.
const Family* FindFamily(absl::string_view model_type);
std::span<const Family* const> AllFamilies();

// ---- What the families that came after LLaMA share with it ----

// Defaults of transformers' class of a family for fields that a config.json lacks.
struct LlamaDefaults {
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = 0;  // 0: hidden_size / heads
  int64_t max_positions = 2048;
  double norm_eps = 1e-6;
};

// transformers' names of one formula.
inline const std::vector<std::string> kGeluTanh = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast",
                                                   "gelu_accurate"};

// hidden_size and so on, up to rms_norm_eps.
void ReadLlamaSizes(ConfigFields& fields, const LlamaDefaults& defaults, ModelConfig* config);
void WriteLlamaSizes(const ModelConfig& config, nlohmann::ordered_json* json);
// One id, several, or null.
nlohmann::ordered_json TokenIdsJson(const std::vector<int64_t>& ids);
// null, which stands for a feature that is off, unless `value` is above 0.
template <typename Number>
nlohmann::ordered_json PositiveOrNull(Number value) {
  if (value > 0) return value;
  return nullptr;
}
// rope_theta and rope_scaling.
void WriteRope(const ModelConfig& config, nlohmann::ordered_json* json);
Architecture DescribeLlama(const ModelConfig& config);
// Qwen's window: of the blocks from max_window_layers on, where use_sliding_window is true.
void ReadUpperWindow(ConfigFields& fields, ModelConfig* config);
void WriteUpperWindow(const ModelConfig& config, nlohmann::ordered_json* json);

// ---- What mixtures of experts share ----

struct ExpertsDefaults {
  const char* count_field = "";
  int64_t count = 0;      // 0: files must say it
  int64_t per_token = 0;  // likewise
  double auxiliary_loss = 0.001;
};

// How many experts there are and are chosen, and the loss that balances them.
void ReadExperts(ConfigFields& fields, const ExpertsDefaults& defaults, ModelConfig* config);
void WriteExperts(const ModelConfig& config, const char* count_field, nlohmann::ordered_json* json);
// mlp.gate and mlp.experts.*, as most families call them.
void NameExperts(ParamNames* names);

// ---- What models of images share ----

void ReadImageSizes(ConfigFields& fields, ModelConfig* config);
void WriteImageSizes(const ModelConfig& config, nlohmann::ordered_json* json);
Architecture DescribeImages(const ModelConfig& config);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_FAMILY_H_
