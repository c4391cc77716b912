// Mixtral: Mistral whose feed-forward is a mixture of experts; and what all mixtures share.

#include <algorithm>

#include "common/model/family.h"

namespace atl {

void ReadExperts(ConfigFields& fields, const ExpertsDefaults& defaults, ModelConfig* c) {
  Experts& e = c->experts;
  const auto read = [&](const char* name, int64_t otherwise) {
    return otherwise > 0 ? fields.Integer(name, kMaxExperts, otherwise)
                         : fields.Integer(name, kMaxExperts);
  };
  e.count = read(defaults.count_field, defaults.count);
  e.per_token = read("num_experts_per_tok", defaults.per_token);
  e.auxiliary_loss = fields.Number("router_aux_loss_coef", defaults.auxiliary_loss);
  e.adds_auxiliary_loss = fields.Flag("output_router_logits", false);
  e.z_loss = fields.Number("router_z_loss_coef", 0);
}

void WriteExperts(const ModelConfig& c, const char* count_field, nlohmann::ordered_json* json) {
  auto& j = *json;
  j[count_field] = c.experts.count;
  j["num_experts_per_tok"] = c.experts.per_token;
  j["router_aux_loss_coef"] = c.experts.auxiliary_loss;
  j["output_router_logits"] = c.experts.adds_auxiliary_loss;
  if (c.experts.z_loss > 0) j["router_z_loss_coef"] = c.experts.z_loss;
}

void NameExperts(ParamNames* names) {
  names->router = "mlp.gate";
  names->expert_prefix = "mlp.experts.";
  names->expert_gate = "gate_proj";
  names->expert_up = "up_proj";
  names->expert_down = "down_proj";
}

namespace mixtral {

constexpr char kCount[] = "num_local_experts";

void Read(ConfigFields& fields, ModelConfig* c) {
  c->rope_theta = 1e6;
  ReadLlamaSizes(fields, {.kv_heads = 8, .max_positions = 131072, .norm_eps = 1e-5}, c);
  c->tied_head = fields.Flag("tie_word_embeddings", false);
  c->window.tokens = fields.IntegerOrNull("sliding_window", kMaxPositions, 0);
  ReadExperts(fields, {kCount, 8, 2}, c);
  c->experts.hidden = c->ffn;
  c->experts.normalise = true;
  fields.Activation("hidden_act", {"silu", "swish"});
  fields.MustBe("router_jitter_noise", 0.0);
}

void Write(const ModelConfig& c, nlohmann::ordered_json* j) {
  WriteLlamaSizes(c, j);
  WriteExperts(c, kCount, j);
  (*j)["hidden_act"] = "silu";
  (*j)["sliding_window"] = PositiveOrNull(c.window.tokens);
  (*j)["router_jitter_noise"] = 0.0;
}

Architecture Describe(const ModelConfig& c) {
  Architecture a = DescribeLlama(c);
  a.names.router = "block_sparse_moe.gate";
  a.names.expert_prefix = "block_sparse_moe.experts.";
  a.names.expert_gate = "w1";
  a.names.expert_up = "w3";
  a.names.expert_down = "w2";
  return a;
}

void SetDefaults(ModelConfig* c) {
  c->rope_theta = 1e6;
  c->experts = {.count = 8, .per_token = 2, .hidden = c->ffn, .normalise = true};
}

}  // namespace mixtral

extern const Family kMixtralFamily = {.id = ModelFamily::kMixtral,
                                      .model_type = "mixtral",
                                      .architecture = "MixtralForCausalLM",
                                      .default_ffn_ratio = 3.5,
                                      .ffn_multiple = 32,
                                      .set_defaults = mixtral::SetDefaults,
                                      .read = mixtral::Read,
                                      .write = mixtral::Write,
                                      .describe = mixtral::Describe};

}  // namespace atl
