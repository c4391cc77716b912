// OLMo 2: LLaMA with norms after attention and feed-forward, and norms of all queries and keys.

#include "common/model/family.h"

namespace atl {
namespace olmo2 {

void Read(ConfigFields& fields, ModelConfig* c) {
  ReadLlamaSizes(fields, {.norm_eps = 1e-5}, c);
  c->tied_head = fields.Flag("tie_word_embeddings", false);
  fields.Activation("hidden_act", {"silu", "swish"});
  fields.MustBe("attention_bias", false);
}

void Write(const ModelConfig& c, nlohmann::ordered_json* j) {
  WriteLlamaSizes(c, j);
  (*j)["hidden_act"] = "silu";
  (*j)["attention_bias"] = false;
}

Architecture Describe(const ModelConfig& c) {
  Architecture a = DescribeLlama(c);
  a.norm_position = NormPosition::kAfter;
  a.qk_norm = QkNorm::kAllHeads;
  a.names.query_norm = "self_attn.q_norm";
  a.names.key_norm = "self_attn.k_norm";
  a.names.attention_norm = a.names.feed_forward_norm = "";
  a.names.after_attention_norm = "post_attention_layernorm";
  a.names.after_feed_forward_norm = "post_feedforward_layernorm";
  return a;
}

}  // namespace olmo2

extern const Family kOlmo2Family = {.id = ModelFamily::kOlmo2,
                                    .model_type = "olmo2",
                                    .architecture = "Olmo2ForCausalLM",
                                    .default_ffn_ratio = 8.0 / 3,
                                    .ffn_multiple = 32,
                                    .set_defaults = [](ModelConfig* c) { c->norm_eps = 1e-6; },
                                    .read = olmo2::Read,
                                    .write = olmo2::Write,
                                    .describe = olmo2::Describe};

}  // namespace atl
