#include "worker/model/config.h"

#include <cmath>
#include <vector>

#include "worker/model/json.h"

namespace atl {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxPositions = int64_t{1} << 24;

absl::Status Bad(absl::string_view field, auto value, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("model ", field, " is ", value, "; expected ", expected));
}

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return Bad(field, value, absl::StrCat("1 to ", max));
}

// Reads fields of one config.json; the first error stays.
class Fields {
 public:
  Fields(const nlohmann::json& object, absl::string_view file) : object_(object), file_(file) {}

  bool Has(const char* name) const { return object_.contains(name) && !object_[name].is_null(); }

  int64_t Integer(const char* name, int64_t max) {
    if (!Has(name)) return Fail(name, "is missing");
    auto value = JsonInteger(object_[name], 1, max);
    if (!value.ok()) return Fail(name, value.status().message());
    return *value;
  }
  int64_t Integer(const char* name, int64_t max, int64_t otherwise) {
    return Has(name) ? Integer(name, max) : otherwise;
  }

  double Number(const char* name, double otherwise) {
    if (!Has(name)) return otherwise;
    if (!object_[name].is_number()) return Fail(name, "is not a number");
    return object_[name].get<double>();
  }

  bool Flag(const char* name, bool otherwise) {
    if (!Has(name)) return otherwise;
    if (!object_[name].is_boolean()) return Fail(name, "is not true or false") != 0;
    return object_[name].get<bool>();
  }

  // Refuses every value but `implemented`.
  void MustBe(const char* name, const nlohmann::json& implemented) {
    if (Has(name) && object_[name] != implemented) {
      Fail(name, absl::StrCat("is not ", implemented.dump(), ", the only value Atoll implements"));
    }
  }

  int Fail(const char* name, absl::string_view problem) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat(file_, ": field \"", name, "\" ", problem));
    }
    return 0;
  }

  const absl::Status& status() const { return status_; }

 private:
  const nlohmann::json& object_;
  absl::string_view file_;
  absl::Status status_;
};

ModelConfig ReadGpt2(Fields& fields) {
  ModelConfig c;
  c.family = ModelFamily::kGpt2;
  c.vocab = fields.Integer("vocab_size", kMaxVocab);
  c.d_model = fields.Integer("n_embd", kMaxWidth);
  c.layers = fields.Integer("n_layer", kMaxLayers);
  c.heads = fields.Integer("n_head", kMaxWidth);
  c.kv_heads = c.heads;
  c.ffn = fields.Integer("n_inner", kMaxWidth, 4 * c.d_model);
  c.max_positions = fields.Integer("n_positions", kMaxPositions);
  c.norm_eps = fields.Number("layer_norm_epsilon", 1e-5);
  c.tied_head = fields.Flag("tie_word_embeddings", true);
  fields.MustBe("activation_function", "gelu_new");
  fields.MustBe("scale_attn_weights", true);
  fields.MustBe("scale_attn_by_inverse_layer_idx", false);
  fields.MustBe("add_cross_attention", false);
  return c;
}

void CheckRope(Fields& fields, const nlohmann::json& object, ModelConfig& c) {
  // Older files have rope_theta and rope_scaling, newer ones both in rope_parameters.
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    if (!fields.Has(name)) continue;
    const auto& rope = object[name];
    if (!rope.is_object()) {
      fields.Fail(name, "is not an object");
      return;
    }
    const auto type = rope.value("rope_type", rope.value("type", nlohmann::json("default")));
    if (type != "default") {
      fields.Fail(name, "has a rope_type other than \"default\", the only one Atoll implements");
    }
    if (rope.contains("rope_theta")) {
      if (!rope["rope_theta"].is_number()) {
        fields.Fail(name, "has a rope_theta that is not a number");
        return;
      }
      c.rope_theta = rope["rope_theta"].get<double>();
    }
  }
}

ModelConfig ReadLlama(Fields& fields, const nlohmann::json& object) {
  ModelConfig c;
  c.family = ModelFamily::kLlama;
  c.vocab = fields.Integer("vocab_size", kMaxVocab);
  c.d_model = fields.Integer("hidden_size", kMaxWidth);
  c.layers = fields.Integer("num_hidden_layers", kMaxLayers);
  c.heads = fields.Integer("num_attention_heads", kMaxWidth);
  c.kv_heads = fields.Integer("num_key_value_heads", kMaxWidth, c.heads);
  c.ffn = fields.Integer("intermediate_size", kMaxWidth);
  c.max_positions = fields.Integer("max_position_embeddings", kMaxPositions, 2048);
  c.norm_eps = fields.Number("rms_norm_eps", 1e-6);
  c.rope_theta = fields.Number("rope_theta", 10000.0);
  c.tied_head = fields.Flag("tie_word_embeddings", false);
  CheckRope(fields, object, c);
  if (c.heads > 0) fields.MustBe("head_dim", c.d_model / c.heads);
  fields.MustBe("hidden_act", "silu");
  fields.MustBe("attention_bias", false);
  fields.MustBe("mlp_bias", false);
  return c;
}

}  // namespace

absl::Status ModelConfig::Validate() const {
  ATOLL_RETURN_IF_ERROR(CheckRange("vocab", vocab, kMaxVocab));
  ATOLL_RETURN_IF_ERROR(CheckRange("d_model", d_model, kMaxWidth));
  ATOLL_RETURN_IF_ERROR(CheckRange("layers", layers, kMaxLayers));
  ATOLL_RETURN_IF_ERROR(CheckRange("heads", heads, d_model));
  ATOLL_RETURN_IF_ERROR(CheckRange("kv_heads", kv_heads, heads));
  ATOLL_RETURN_IF_ERROR(CheckRange("ffn", ffn, kMaxWidth));
  ATOLL_RETURN_IF_ERROR(CheckRange("max_positions", max_positions, kMaxPositions));
  if (d_model % heads != 0) {
    return Bad("heads", heads, absl::StrCat("a divisor of d_model ", d_model));
  }
  if (heads % kv_heads != 0) {
    return Bad("kv_heads", kv_heads, absl::StrCat("a divisor of heads ", heads));
  }
  if (family == ModelFamily::kGpt2 && kv_heads != heads) {
    return Bad("kv_heads", kv_heads, absl::StrCat(heads, ": GPT-2 has no grouped queries"));
  }
  if (family == ModelFamily::kLlama && head_dim() % 2 != 0) {
    return Bad("head_dim", head_dim(), "an even number, for rotary positions");
  }
  if (!(norm_eps > 0 && norm_eps < 1)) return Bad("norm_eps", norm_eps, "more than 0, less than 1");
  if (!(rope_theta >= 1 && std::isfinite(rope_theta))) {
    return Bad("rope_theta", rope_theta, "at least 1");
  }
  return absl::OkStatus();
}

int64_t ModelConfig::ParameterCount() const {
  const int64_t kv_dim = kv_heads * head_dim();
  const int64_t attention = d_model * (2 * d_model + 2 * kv_dim);
  int64_t block = attention, outside = vocab * d_model * (tied_head ? 1 : 2);
  if (family == ModelFamily::kGpt2) {
    block += 2 * d_model * ffn + (3 * d_model + d_model + ffn + d_model) + 4 * d_model;
    outside += max_positions * d_model + 2 * d_model;
  } else {
    block += 3 * d_model * ffn + 2 * d_model;
    outside += d_model;
  }
  return layers * block + outside;
}

double ModelConfig::TrainFlopsPerToken(int64_t seq_len) const {
  const double d = static_cast<double>(d_model), kv = static_cast<double>(kv_heads * head_dim());
  const double matrices = family == ModelFamily::kGpt2 ? 2 : 3;
  const double block = d * (2 * d + 2 * kv) + matrices * d * static_cast<double>(ffn);
  const double weights = static_cast<double>(layers) * block + d * static_cast<double>(vocab);
  // Two products of d_model per visible position, on average half of seq_len, 2 operations each.
  const double attention = static_cast<double>(layers) * 2 * d * static_cast<double>(seq_len);
  return 3 * (2 * weights + attention);
}

absl::StatusOr<ModelConfig> ModelConfigFromSpec(const ModelSpec& spec, int64_t sequence_length) {
  ModelConfig c;
  c.family = spec.family;
  c.vocab = spec.vocabulary;
  c.d_model = spec.hidden;
  c.layers = spec.layers;
  c.heads = spec.heads;
  c.kv_heads = spec.key_value_heads == 0 ? spec.heads : spec.key_value_heads;
  c.ffn = spec.feed_forward;
  if (c.ffn == 0 && c.family == ModelFamily::kGpt2) c.ffn = 4 * spec.hidden;
  if (c.ffn == 0) c.ffn = (spec.hidden * 8 / 3 + 31) / 32 * 32;
  c.max_positions = sequence_length;
  c.tied_head = spec.tied_head;
  ATOLL_RETURN_IF_ERROR(c.Validate());
  return c;
}

ModelSpec ToSpec(const ModelConfig& config) {
  ModelSpec spec;
  spec.family = config.family;
  spec.vocabulary = config.vocab;
  spec.hidden = config.d_model;
  spec.layers = config.layers;
  spec.heads = config.heads;
  spec.key_value_heads = config.kv_heads;
  spec.feed_forward = config.ffn;
  spec.tied_head = config.tied_head;
  return spec;
}

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view text, absl::string_view file) {
  constexpr size_t kMaxBytes = 1 << 20;
  if (text.size() > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": larger than 1 MB; not a config.json"));
  }
  ATOLL_ASSIGN_OR_RETURN(const nlohmann::json object, ParseJsonObject(text, file, 8));
  Fields fields(object, file);
  const auto type = object.find("model_type");
  ModelConfig config;
  if (type != object.end() && *type == "gpt2") {
    config = ReadGpt2(fields);
  } else if (type != object.end() && *type == "llama") {
    config = ReadLlama(fields, object);
  } else {
    fields.Fail("model_type", "must be \"gpt2\" or \"llama\"");
  }
  ATOLL_RETURN_IF_ERROR(fields.status());
  ATOLL_RETURN_IF_ERROR(Annotate(config.Validate(), file));
  return config;
}

std::string FormatModelConfig(const ModelConfig& c) {
  ordered_json j;
  if (c.family == ModelFamily::kGpt2) {
    j["architectures"] = {"GPT2LMHeadModel"};
    j["model_type"] = "gpt2";
    j["vocab_size"] = c.vocab;
    j["n_embd"] = c.d_model;
    j["n_layer"] = c.layers;
    j["n_head"] = c.heads;
    j["n_inner"] = c.ffn;
    j["n_positions"] = c.max_positions;
    j["n_ctx"] = c.max_positions;
    j["layer_norm_epsilon"] = c.norm_eps;
    j["activation_function"] = "gelu_new";
    j["attn_pdrop"] = 0.0;
    j["embd_pdrop"] = 0.0;
    j["resid_pdrop"] = 0.0;
    j["scale_attn_weights"] = true;
  } else {
    j["architectures"] = {"LlamaForCausalLM"};
    j["model_type"] = "llama";
    j["vocab_size"] = c.vocab;
    j["hidden_size"] = c.d_model;
    j["intermediate_size"] = c.ffn;
    j["num_hidden_layers"] = c.layers;
    j["num_attention_heads"] = c.heads;
    j["num_key_value_heads"] = c.kv_heads;
    j["head_dim"] = c.head_dim();
    j["max_position_embeddings"] = c.max_positions;
    j["rms_norm_eps"] = c.norm_eps;
    j["rope_theta"] = c.rope_theta;
    j["rope_scaling"] = nullptr;
    j["hidden_act"] = "silu";
    j["attention_bias"] = false;
    j["mlp_bias"] = false;
    j["attention_dropout"] = 0.0;
  }
  j["tie_word_embeddings"] = c.tied_head;
  j["initializer_range"] = 0.02;
  j["bos_token_id"] = nullptr;
  j["eos_token_id"] = nullptr;
  j["torch_dtype"] = "float32";
  j["use_cache"] = true;
  return j.dump(2) + "\n";
}

}  // namespace atl
