// LLaMA 1 to 3, SmolLM2 and what else is of their shape: RMSNorm, rotary positions, SwiGLU.

#include "common/model/family.h"

namespace atl {

void ReadLlamaSizes(ConfigFields& fields, ModelConfig* c) {
  c->vocab = fields.Integer("vocab_size", kMaxVocab);
  c->d_model = fields.Integer("hidden_size", kMaxWidth);
  c->layers = fields.Integer("num_hidden_layers", kMaxLayers);
  c->heads = fields.Integer("num_attention_heads", kMaxWidth);
  c->kv_heads = fields.Integer("num_key_value_heads", kMaxWidth, c->heads);
  const int64_t head_dim = fields.Has("head_dim") ? fields.Integer("head_dim", kMaxWidth) : 0;
  // Only where it says something: so one model has one config.
  if (c->heads > 0 && head_dim * c->heads != c->d_model) c->head_channels = head_dim;
  c->ffn = fields.Integer("intermediate_size", kMaxWidth);
  c->max_positions = fields.Integer("max_position_embeddings", kMaxPositions, 2048);
  c->norm_eps = fields.Number("rms_norm_eps", 1e-6);
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

namespace {

void Read(ConfigFields& fields, ModelConfig* c) {
  ReadLlamaSizes(fields, c);
  c->tied_head = fields.Flag("tie_word_embeddings", false);
  fields.MustBe("hidden_act", "silu");
  fields.MustBe("attention_bias", false);
  fields.MustBe("mlp_bias", false);
  fields.MustBe("pretraining_tp", 1);
}

void Write(const ModelConfig& c, nlohmann::ordered_json* j) {
  WriteLlamaSizes(c, j);
  (*j)["hidden_act"] = "silu";
  (*j)["attention_bias"] = false;
  (*j)["mlp_bias"] = false;
}

}  // namespace

const Family kLlamaFamily = {.id = ModelFamily::kLlama,
                             .model_type = "llama",
                             .architecture = "LlamaForCausalLM",
                             .usual_ffn = 8.0 / 3,
                             .ffn_multiple = 32,
                             .set_defaults = [](ModelConfig*) {},
                             .read = Read,
                             .write = Write,
                             .describe = DescribeLlama};

}  // namespace atl
