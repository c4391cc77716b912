// Gemma 2: norms before and after, gated GELU, capped scores and logits, a scaled embedding, and a
// window in every second block.

#include <cmath>

#include "common/model/family.h"

namespace atl {
namespace gemma2 {

void Read(ConfigFields& fields, ModelConfig* c) {
  ReadLlamaSizes(fields, {.kv_heads = 4, .head_dim = 256, .max_positions = 8192}, c);
  c->tied_head = fields.Flag("tie_word_embeddings", true);
  c->window = {.tokens = fields.IntegerOrNull("sliding_window", kMaxPositions, 4096), .period = 2};
  fields.Has("sliding_window_size");  // an older name, which transformers ignores
  fields.LayerTypes(*c);
  c->attention_scalar = fields.Number("query_pre_attn_scalar", 256);
  c->attention_softcap = fields.NumberOrNull("attn_logit_softcapping", 50);
  c->logit_softcap = fields.NumberOrNull("final_logit_softcapping", 30);
  fields.Activation("hidden_activation", kGeluTanh);
  fields.Has("hidden_act");  // which transformers ignores here
  fields.MustBe("attention_bias", false);
  fields.MustBe("use_bidirectional_attention", false);
}

void Write(const ModelConfig& c, nlohmann::ordered_json* json) {
  auto& j = *json;
  WriteLlamaSizes(c, json);
  j["hidden_activation"] = "gelu_pytorch_tanh";
  j["attention_bias"] = false;
  j["sliding_window"] = PositiveOrNull(c.window.tokens);
  j["query_pre_attn_scalar"] = c.attention_scalar;
  j["attn_logit_softcapping"] = PositiveOrNull(c.attention_softcap);
  j["final_logit_softcapping"] = PositiveOrNull(c.logit_softcap);
}

Architecture Describe(const ModelConfig& c) {
  Architecture a = DescribeLlama(c);
  a.norm_position = NormPosition::kAround;
  a.norms_from_zero = true;
  a.nonlinearity = Nonlinearity::kGeluTanh;
  a.embedding_scale = std::sqrt(static_cast<double>(c.d_model));
  a.names.after_attention_norm = "post_attention_layernorm";
  a.names.feed_forward_norm = "pre_feedforward_layernorm";
  a.names.after_feed_forward_norm = "post_feedforward_layernorm";
  return a;
}

void SetDefaults(ModelConfig* c) {
  c->norm_eps = 1e-6;
  c->window = {.tokens = 4096, .period = 2};
  c->attention_scalar = static_cast<double>(c->heads > 0 ? c->head_dim() : 0);
  c->attention_softcap = 50;
  c->logit_softcap = 30;
}

}  // namespace gemma2

extern const Family kGemma2Family = {.id = ModelFamily::kGemma2,
                                     .model_type = "gemma2",
                                     .architecture = "Gemma2ForCausalLM",
                                     .default_ffn_ratio = 4,
                                     .ffn_multiple = 1,
                                     .set_defaults = gemma2::SetDefaults,
                                     .read = gemma2::Read,
                                     .write = gemma2::Write,
                                     .describe = gemma2::Describe};

}  // namespace atl
