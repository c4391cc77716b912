// dots.llm1: Qwen 3 with DeepSeek's mixtures of experts. Scores are sigmoids, a bias that no
// gradient moves corrects the choice, and a shared expert sees all tokens.

#include <numeric>

#include "common/model/family.h"

namespace atl {
namespace dots1 {

constexpr char kCount[] = "n_routed_experts";

void Read(ConfigFields& fields, ModelConfig* c) {
  ReadLlamaSizes(fields, {.kv_heads = 32, .max_positions = 2048}, c);
  c->tied_head = fields.Flag("tie_word_embeddings", false);
  const int64_t window = fields.IntegerOrNull("sliding_window", kMaxPositions, 4096);
  const int64_t full_layers = fields.Count("max_window_layers", kMaxLayers, 62);
  if (window > 0 && full_layers < c->layers) c->window = {.tokens = window, .first = full_layers};
  fields.LayerTypes(*c);
  ReadExperts(fields, {.count_field = kCount, .auxiliary_loss = 0}, c);
  Experts& e = c->experts;
  e.hidden = fields.Integer("moe_intermediate_size", kMaxWidth, 1408);
  e.shared_hidden = e.hidden * fields.Count("n_shared_experts", kMaxExperts, 0);
  e.score = Experts::Score::kSigmoid;
  e.normalise = fields.Flag("norm_topk_prob", false);
  e.scale = fields.Number("routed_scaling_factor", 1);
  e.correction = true;
  e.dense_blocks.resize(fields.Count("first_k_dense_replace", kMaxLayers, 0));
  std::iota(e.dense_blocks.begin(), e.dense_blocks.end(), int64_t{0});
  fields.Activation("hidden_act", {"silu", "swish"});
  fields.MustBe("attention_bias", false);
  fields.MustBe("n_group", 1);
  fields.MustBe("topk_group", 1);
  fields.MustBe("moe_layer_freq", 1);
  // Which transformers ignores here.
  fields.Has("use_sliding_window");
}

void Write(const ModelConfig& c, nlohmann::ordered_json* json) {
  auto& j = *json;
  WriteLlamaSizes(c, json);
  WriteExperts(c, kCount, json);
  const Experts& e = c.experts;
  j["moe_intermediate_size"] = e.hidden;
  j["n_shared_experts"] = e.shared_hidden / e.hidden;
  j["norm_topk_prob"] = e.normalise;
  j["routed_scaling_factor"] = e.scale;
  j["first_k_dense_replace"] = e.dense_blocks.size();
  j["n_group"] = 1;
  j["topk_group"] = 1;
  j["hidden_act"] = "silu";
  j["attention_bias"] = false;
  j["sliding_window"] = PositiveOrNull(c.window.tokens);
  j["max_window_layers"] = c.window.tokens > 0 ? c.window.first : c.layers;
}

Architecture Describe(const ModelConfig& c) {
  Architecture a = DescribeLlama(c);
  a.qk_norm = QkNorm::kEachHead;
  a.names.query_norm = "self_attn.q_norm";
  a.names.key_norm = "self_attn.k_norm";
  NameExperts(&a.names);
  a.names.correction = "mlp.gate.e_score_correction_bias";
  a.names.shared_gate = "mlp.shared_experts.gate_proj";
  a.names.shared_up = "mlp.shared_experts.up_proj";
  a.names.shared_down = "mlp.shared_experts.down_proj";
  return a;
}

void SetDefaults(ModelConfig* c) {
  c->norm_eps = 1e-6;
  c->experts = {.count = 128,
                .per_token = 6,
                .hidden = c->ffn,
                .shared_hidden = 2 * c->ffn,
                .score = Experts::Score::kSigmoid,
                .normalise = true,
                .scale = 2.5,
                .correction = true};
}

}  // namespace dots1

extern const Family kDots1Family = {.id = ModelFamily::kDots1,
                                    .model_type = "dots1",
                                    .architecture = "Dots1ForCausalLM",
                                    .default_ffn_ratio = 1408.0 / 4096,
                                    .ffn_multiple = 32,
                                    .set_defaults = dots1::SetDefaults,
                                    .read = dots1::Read,
                                    .write = dots1::Write,
                                    .describe = dots1::Describe};

}  // namespace atl
