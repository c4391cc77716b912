// LLaMA 1 to 3, SmolLM2 and what else is of their shape: RMSNorm, rotary positions, SwiGLU.

#include "common/model/family.h"

namespace atl {

namespace {

int64_t ReadKvHeads(ConfigFields& fields, int64_t absent, int64_t heads) {
  constexpr char kField[] = "num_key_value_heads";
  if (absent == 0 || fields.IsNull(kField)) absent = heads;
  if (!fields.Has(kField) && heads > 0 && (absent > heads || heads % absent != 0)) {
    fields.Fail(kField,
                absl::StrCat("is missing, and transformers' default of ", absent,
                             " does not divide num_attention_heads ", heads, "; give the field"));
  }
  return fields.Integer(kField, kMaxWidth, absent);
}

}  // namespace

void ReadLlamaSizes(ConfigFields& fields, const LlamaDefaults& defaults, ModelConfig* c) {
  c->vocab = fields.Integer("vocab_size", kMaxVocab);
  c->d_model = fields.Integer("hidden_size", kMaxWidth);
  c->layers = fields.Integer("num_hidden_layers", kMaxLayers);
  c->heads = fields.Integer("num_attention_heads", kMaxWidth);
  c->kv_heads = ReadKvHeads(fields, defaults.kv_heads, c->heads);
  const int64_t head_dim = fields.IntegerOrNull("head_dim", kMaxWidth, defaults.head_dim);
  if (defaults.head_dim > 0 && fields.IsNull("head_dim")) {
    fields.Fail("head_dim", "is null; expected a number");
  }
  // Only where it says something: so one model has one config.
  if (c->heads > 0 && head_dim * c->heads != c->d_model) c->head_channels = head_dim;
  c->ffn = fields.Integer("intermediate_size", kMaxWidth);
  c->max_positions =
      fields.Integer("max_position_embeddings", kMaxPositions, defaults.max_positions);
  c->norm_eps = fields.Number("rms_norm_eps", defaults.norm_eps);
  fields.Rope(c);
}

void WriteRope(const ModelConfig& c, nlohmann::ordered_json* json) {
  auto& j = *json;
  j["rope_theta"] = c.rope_theta;
  nlohmann::ordered_json scaling;
  const RopeScaling& s = c.rope_scaling;
  switch (s.kind) {
    case RopeScaling::Kind::kNone:
      break;
    case RopeScaling::Kind::kLinear:
      scaling = {{"rope_type", "linear"}, {"factor", s.factor}};
      if (s.original_positions > 0) {
        scaling["original_max_position_embeddings"] = s.original_positions;
      }
      break;
    case RopeScaling::Kind::kDynamic:
      scaling = {{"rope_type", "dynamic"},
                 {"factor", s.factor},
                 {"original_max_position_embeddings", s.original_positions}};
      break;
    case RopeScaling::Kind::kLlama3:
      scaling = {{"rope_type", "llama3"},
                 {"factor", s.factor},
                 {"low_freq_factor", s.low_frequency_factor},
                 {"high_freq_factor", s.high_frequency_factor},
                 {"original_max_position_embeddings", s.original_positions}};
      break;
    case RopeScaling::Kind::kYarn:
      scaling = {{"rope_type", "yarn"},
                 {"factor", s.factor},
                 {"beta_fast", s.beta_fast},
                 {"beta_slow", s.beta_slow},
                 {"original_max_position_embeddings", s.original_positions}};
      if (s.attention_factor > 0) scaling["attention_factor"] = s.attention_factor;
      break;
  }
  j["rope_scaling"] = std::move(scaling);
}

void WriteLlamaSizes(const ModelConfig& c, nlohmann::ordered_json* json) {
  auto& j = *json;
  j["hidden_size"] = c.d_model;
  j["intermediate_size"] = c.ffn;
  j["num_hidden_layers"] = c.layers;
  j["num_attention_heads"] = c.heads;
  j["num_key_value_heads"] = c.kv_heads;
  j["head_dim"] = c.head_dim();
  j["max_position_embeddings"] = c.max_positions;
  j["rms_norm_eps"] = c.norm_eps;
  WriteRope(c, json);
  j["attention_dropout"] = 0.0;
}

Architecture DescribeLlama(const ModelConfig&) {
  Architecture a;
  a.names = {.block_prefix = "model.layers.",
             .embedding = "model.embed_tokens",
             .final_norm = "model.norm",
             .head = "lm_head",
             .query = "self_attn.q_proj",
             .key = "self_attn.k_proj",
             .value = "self_attn.v_proj",
             .out = "self_attn.o_proj",
             .gate = "mlp.gate_proj",
             .up = "mlp.up_proj",
             .down = "mlp.down_proj",
             .attention_norm = "input_layernorm",
             .feed_forward_norm = "post_attention_layernorm"};
  return a;
}

namespace llama {

void Read(ConfigFields& fields, ModelConfig* c) {
  ReadLlamaSizes(fields, {}, c);
  c->tied_head = fields.Flag("tie_word_embeddings", false);
  fields.Activation("hidden_act", {"silu", "swish"});
  fields.MustBe("attention_bias", false);
  fields.MustBe("mlp_bias", false);
}

void Write(const ModelConfig& c, nlohmann::ordered_json* j) {
  WriteLlamaSizes(c, j);
  (*j)["hidden_act"] = "silu";
  (*j)["attention_bias"] = false;
  (*j)["mlp_bias"] = false;
}

}  // namespace llama

extern const Family kLlamaFamily = {.id = ModelFamily::kLlama,
                                    .model_type = "llama",
                                    .architecture = "LlamaForCausalLM",
                                    .default_ffn_ratio = 8.0 / 3,
                                    .ffn_multiple = 32,
                                    .set_defaults = [](ModelConfig*) {},
                                    .read = llama::Read,
                                    .write = llama::Write,
                                    .describe = DescribeLlama};

}  // namespace atl
