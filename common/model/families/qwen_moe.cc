// Mixtures of Qwen: 2 (with an expert that sees all tokens, weighted by a gate of its own) and 3.

#include <algorithm>

#include "common/model/family.h"

namespace atl {
namespace qwen_moe {

void Read(ConfigFields& fields, const ExpertsDefaults& defaults, ModelConfig* c) {
  c->tied_head = fields.Flag("tie_word_embeddings", false);
  ReadExperts(fields, defaults, c);
  Experts& e = c->experts;
  e.normalise = fields.Flag("norm_topk_prob", false);
  // Block i has experts where `step` divides i + 1, but for those that are listed.
  const int64_t step = fields.Integer("decoder_sparse_step", kMaxLayers, 1);
  e.dense_blocks = fields.Indices("mlp_only_layers", c->layers);
  for (int64_t i = 0; i < c->layers && step > 1; ++i) {
    if ((i + 1) % step != 0) e.dense_blocks.push_back(i);
  }
  std::sort(e.dense_blocks.begin(), e.dense_blocks.end());
  e.dense_blocks.erase(std::unique(e.dense_blocks.begin(), e.dense_blocks.end()),
                       e.dense_blocks.end());
  fields.Activation("hidden_act", {"silu", "swish"});
}

void Write(const ModelConfig& c, nlohmann::ordered_json* json) {
  auto& j = *json;
  WriteExperts(c, "num_experts", json);
  j["moe_intermediate_size"] = c.experts.hidden;
  j["norm_topk_prob"] = c.experts.normalise;
  j["decoder_sparse_step"] = 1;
  j["mlp_only_layers"] = c.experts.dense_blocks;
  j["hidden_act"] = "silu";
}

void ReadQwen2(ConfigFields& fields, ModelConfig* c) {
  ReadLlamaSizes(fields, {.kv_heads = 16, .max_positions = 32768}, c);
  Read(fields, {"num_experts", 60, 4}, c);
  c->experts.hidden = fields.Integer("moe_intermediate_size", kMaxWidth, 1408);
  c->experts.shared_hidden = fields.Integer("shared_expert_intermediate_size", kMaxWidth, 5632);
  c->experts.shared_gate = true;
  ReadUpperWindow(fields, c);
  fields.MustBe("qkv_bias", true);
}

void WriteQwen2(const ModelConfig& c, nlohmann::ordered_json* j) {
  WriteLlamaSizes(c, j);
  Write(c, j);
  (*j)["shared_expert_intermediate_size"] = c.experts.shared_hidden;
  WriteUpperWindow(c, j);
}

Architecture DescribeQwen2(const ModelConfig& c) {
  Architecture a = DescribeLlama(c);
  a.qkv_bias = true;
  NameExperts(&a.names);
  a.names.shared_gate = "mlp.shared_expert.gate_proj";
  a.names.shared_up = "mlp.shared_expert.up_proj";
  a.names.shared_down = "mlp.shared_expert.down_proj";
  a.names.shared_weight = "mlp.shared_expert_gate";
  return a;
}

void ReadQwen3(ConfigFields& fields, ModelConfig* c) {
  ReadLlamaSizes(fields, {.kv_heads = 4, .max_positions = 32768}, c);
  Read(fields, {"num_experts", 128, 8}, c);
  c->experts.hidden = fields.Integer("moe_intermediate_size", kMaxWidth, 768);
  fields.MustBe("attention_bias", false);
  // Off in published files; transformers' versions differ in which blocks the window is of.
  fields.MustBe("use_sliding_window", false);
  fields.Has("sliding_window");
  fields.Has("max_window_layers");
}

void WriteQwen3(const ModelConfig& c, nlohmann::ordered_json* j) {
  WriteLlamaSizes(c, j);
  Write(c, j);
  (*j)["attention_bias"] = false;
  (*j)["use_sliding_window"] = false;
}

Architecture DescribeQwen3(const ModelConfig& c) {
  Architecture a = DescribeLlama(c);
  a.qk_norm = QkNorm::kEachHead;
  a.names.query_norm = "self_attn.q_norm";
  a.names.key_norm = "self_attn.k_norm";
  NameExperts(&a.names);
  return a;
}

}  // namespace qwen_moe

extern const Family kQwen2MoeFamily = {.id = ModelFamily::kQwen2Moe,
                                       .model_type = "qwen2_moe",
                                       .architecture = "Qwen2MoeForCausalLM",
                                       .default_ffn_ratio = 1408.0 / 2048,
                                       .ffn_multiple = 32,
                                       .set_defaults =
                                           [](ModelConfig* c) {
                                             c->norm_eps = 1e-6;
                                             c->experts = {.count = 60,
                                                           .per_token = 4,
                                                           .hidden = c->ffn,
                                                           .shared_hidden = 4 * c->ffn,
                                                           .shared_gate = true};
                                           },
                                       .read = qwen_moe::ReadQwen2,
                                       .write = qwen_moe::WriteQwen2,
                                       .describe = qwen_moe::DescribeQwen2};

extern const Family kQwen3MoeFamily = {
    .id = ModelFamily::kQwen3Moe,
    .model_type = "qwen3_moe",
    .architecture = "Qwen3MoeForCausalLM",
    .default_ffn_ratio = 768.0 / 2048,
    .ffn_multiple = 32,
    .set_defaults =
        [](ModelConfig* c) {
          c->norm_eps = 1e-6;
          c->experts = {.count = 128, .per_token = 8, .hidden = c->ffn, .normalise = true};
        },
    .read = qwen_moe::ReadQwen3,
    .write = qwen_moe::WriteQwen3,
    .describe = qwen_moe::DescribeQwen3};

}  // namespace atl
