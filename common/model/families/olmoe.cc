// OLMoE: LLaMA with norms of all queries and keys, whose feed-forward is a mixture of experts.

#include "common/model/family.h"

namespace atl {
namespace olmoe {

void Read(ConfigFields& fields, ModelConfig* c) {
  ReadLlamaSizes(fields, {.max_positions = 4096, .norm_eps = 1e-5}, c);
  c->tied_head = fields.Flag("tie_word_embeddings", false);
  ReadExperts(fields, {"num_experts", 64, 8, 0.01}, c);
  c->experts.hidden = c->ffn;
  c->experts.normalise = fields.Flag("norm_topk_prob", false);
  fields.Activation("hidden_act", {"silu", "swish"});
  fields.MustBe("attention_bias", false);
}

void Write(const ModelConfig& c, nlohmann::ordered_json* j) {
  WriteLlamaSizes(c, j);
  WriteExperts(c, "num_experts", j);
  (*j)["norm_topk_prob"] = c.experts.normalise;
  (*j)["hidden_act"] = "silu";
  (*j)["attention_bias"] = false;
}

Architecture Describe(const ModelConfig& c) {
  Architecture a = DescribeLlama(c);
  a.qk_norm = QkNorm::kAllHeads;
  a.names.query_norm = "self_attn.q_norm";
  a.names.key_norm = "self_attn.k_norm";
  NameExperts(&a.names);
  return a;
}

}  // namespace olmoe

extern const Family kOlmoeFamily = {
    .id = ModelFamily::kOlmoe,
    .model_type = "olmoe",
    .architecture = "OlmoeForCausalLM",
    .default_ffn_ratio = 0.5,
    .ffn_multiple = 32,
    .set_defaults =
        [](ModelConfig* c) { c->experts = {.count = 64, .per_token = 8, .hidden = c->ffn}; },
    .read = olmoe::Read,
    .write = olmoe::Write,
    .describe = olmoe::Describe};

}  // namespace atl
