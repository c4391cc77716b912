// Gemma 2: norms before and after, gated GELU, capped scores and logits, a scaled embedding, and a
// window in every second block.

#include <cmath>

#include "common/model/family.h"

namespace atl {
namespace {

void Read(ConfigFields& fields, ModelConfig* c) {
  ReadLlamaSizes(fields, c);
  if (!fields.Has("head_dim") && c->heads > 0 && c->heads * 256 != c->d_model) {
    c->head_channels = 256;
  }
  c->tied_head = fields.Flag("tie_word_embeddings", true);
  c->window = {.tokens = fields.Integer("sliding_window", kMaxPositions, 4096), .period = 2};
  fields.LayerTypes(*c);
  c->attention_scalar = fields.Number("query_pre_attn_scalar", 256);
  c->attention_softcap =
      fields.Has("attn_logit_softcapping") ? fields.Number("attn_logit_softcapping", 0) : 0;
  c->logit_softcap =
      fields.Has("final_logit_softcapping") ? fields.Number("final_logit_softcapping", 0) : 0;
  fields.MustBe("hidden_activation", "gelu_pytorch_tanh");
  fields.Has("hidden_act");  // which transformers ignores here
  fields.MustBe("attention_bias", false);
  fields.MustBe("use_bidirectional_attention", false);
}

void Write(const ModelConfig& c, nlohmann::ordered_json* json) {
  auto& j = *json;
  WriteLlamaSizes(c, json);
  j["hidden_activation"] = "gelu_pytorch_tanh";
  j["attention_bias"] = false;
  j["sliding_window"] = c.window.tokens;
  j["query_pre_attn_scalar"] = c.attention_scalar;
  const auto cap = [&](const char* name, double value) {
    if (value > 0) {
      j[name] = value;
    } else {
      j[name] = nullptr;
    }
  };
  cap("attn_logit_softcapping", c.attention_softcap);
  cap("final_logit_softcapping", c.logit_softcap);
}

Architecture Describe(const ModelConfig& c) {
  Architecture a = DescribeLlama(c);
  a.norm_place = NormPlace::kAround;
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

}  // namespace

const Family kGemma2Family = {.id = ModelFamily::kGemma2,
                              .model_type = "gemma2",
                              .architecture = "Gemma2ForCausalLM",
                              .usual_ffn = 4,
                              .ffn_multiple = 1,
                              .set_defaults = SetDefaults,
                              .read = Read,
                              .write = Write,
                              .describe = Describe};

}  // namespace atl
