// The families of models, in families/, and how they are found. A new family is a value of
// ModelFamily and an entry of the table of a file there.

#ifndef ATOLL_COMMON_MODEL_FAMILY_H_
#define ATOLL_COMMON_MODEL_FAMILY_H_

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/model/config_fields.h"

namespace atl {

struct ImageLayer;

// Goes through the fields of a config.json and the numbers that they stand for: reads the numbers,
// or writes the fields. A family lists its fields once, for both.
class FieldPass {
 public:
  FieldPass(ConfigFields& in, ModelConfig* config) : in_(&in), config_(*config) {}
  FieldPass(nlohmann::ordered_json* out, ModelConfig* config) : out_(out), config_(*config) {}

  bool reads() const { return in_ != nullptr; }
  ConfigFields& in() { return *in_; }              // REQUIRES: reads()
  nlohmann::ordered_json& out() { return *out_; }  // REQUIRES: !reads()
  ModelConfig& config() { return config_; }

  // `absent`: of a file without the field; none: that is an error.
  void Integer(const char* name, int64_t* number, int64_t max,
               std::optional<int64_t> absent = std::nullopt) {
    if (!reads()) return Written(name, *number);
    *number = absent ? in().Integer(name, max, *absent) : in().Integer(name, max);
  }
  void Number(const char* name, double* number, double absent) {
    if (!reads()) return Written(name, *number);
    *number = in().Number(name, absent);
  }
  void Flag(const char* name, bool* flag, bool absent) {
    if (!reads()) return Written(name, *flag);
    *flag = in().Flag(name, absent);
  }
  // 0 and null stand for each other: the feature is off.
  void IntegerOrNull(const char* name, int64_t* number, int64_t max, int64_t absent) {
    if (reads())
      *number = in().IntegerOrNull(name, max, absent);
    else if (*number > 0)
      Written(name, *number);
    else
      Written(name, nullptr);
  }
  void NumberOrNull(const char* name, double* number, double absent) {
    if (reads())
      *number = in().NumberOrNull(name, absent);
    else if (*number > 0)
      Written(name, *number);
    else
      Written(name, nullptr);
  }
  // The only value that is read, which is written.
  void Fixed(const char* name, const nlohmann::json& value) {
    if (reads())
      in().MustBe(name, value);
    else
      Written(name, value);
  }
  // The same of a field that is not written.
  void Only(const char* name, const nlohmann::json& value) {
    if (reads()) in().MustBe(name, value);
  }
  // Names of one function, of which `written` is written.
  void Activation(const char* name, const char* written, std::vector<std::string> names) {
    if (reads())
      in().Activation(name, std::move(names));
    else
      Written(name, written);
  }
  void Silu() { Activation("hidden_act", "silu", {"silu", "swish"}); }
  // A field that changes nothing here.
  void Written(const char* name, const nlohmann::json& value) {
    if (!reads()) out()[name] = value;
  }
  void Ignored(const char* name) {
    if (reads()) in().Has(name);
  }

 private:
  ConfigFields* const in_ = nullptr;
  nlohmann::ordered_json* const out_ = nullptr;
  ModelConfig& config_;
};

struct Family {
  ModelFamily id;
  const char* model_type;    // in config.json
  const char* architecture;  // transformers' class
  // The fields, but for vocab_size, tie_word_embeddings and those that all families have.
  void (*fields)(FieldPass& pass);
  Architecture (*describe)(const ModelConfig& config);
  bool tied_head = false;  // where config.json does not say
  // Numbers that a job file leaves open: feed_forward 0 is default_ffn_ratio times hidden, rounded
  // up to a multiple of ffn_multiple.
  double default_ffn_ratio = 8.0 / 3;
  int64_t ffn_multiple = 32;
  double norm_eps = 1e-5;
  void (*set_defaults)(ModelConfig* config) = nullptr;  // sets what else there is
  // Lists the layers of a model of images; null: the family is a transformer.
  std::vector<ImageLayer> (*image_layers)(const ModelConfig& config) = nullptr;
};

// Tables of families/*.cc.
extern const std::span<const Family> kOlderFamilies, kLlamaFamilies, kMixtureFamilies;
extern const Family kResNetFamily, kEfficientNetFamily;

const Family& GetFamily(ModelFamily id);
// Null: there is none.
const Family* FindFamily(absl::string_view model_type);
const std::vector<const Family*>& AllFamilies();

// ---- What the families that came after LLaMA share with it ----

// Defaults of transformers' class of a family for fields that a config.json lacks.
struct LlamaDefaults {
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = 0;  // 0: hidden_size / heads
  int64_t max_positions = 2048;
  double norm_eps = 1e-6;
};

// hidden_size and so on, up to rms_norm_eps, and rotary positions.
void LlamaSizes(FieldPass& pass, const LlamaDefaults& absent);
// sliding_window, of all blocks; 0: none.
void WindowField(FieldPass& pass, int64_t absent);
// Qwen's window: of the blocks from max_window_layers on, where use_sliding_window is true.
void UpperWindow(FieldPass& pass);
Architecture DescribeLlama(const ModelConfig& config);
// Adds norms of queries and keys, of which each has its weight in a file.
void AddQkNorm(QkNorm norm, Architecture* a);

// One id, several, or null.
nlohmann::ordered_json TokenIdsJson(const std::vector<int64_t>& ids);

// ---- What models of images share ----

void ImageSizes(FieldPass& pass);
Architecture DescribeImages(const ModelConfig& config);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_FAMILY_H_
