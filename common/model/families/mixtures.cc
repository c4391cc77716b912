// LLaMA's shape with a mixture of experts as its feed-forward:
//   Mixtral     Mistral's
//   OLMoE       with norms of all queries and keys
//   Qwen 2 MoE  with an expert that sees all tokens, weighted by a gate of its own
//   Qwen 3 MoE  Qwen 3's
//   dots.llm1   Qwen 3's with DeepSeek's mixtures: scores are sigmoids, a bias that no gradient
//               moves corrects the choice, and a shared expert sees all tokens

#include <algorithm>
#include <numeric>

#include "common/model/family.h"

namespace atl {
namespace mixtures {

// Holds the values of fields that a file lacks; none: it must not.
struct ExpertsDefaults {
  std::optional<int64_t> count, per_token;
  double auxiliary_loss = 0.001;
};

// Reads or writes how many experts there are and are chosen, and the loss that balances them.
void ExpertFields(FieldPass& f, const char* count_field, const ExpertsDefaults& absent) {
  Experts& e = f.config().experts;
  f.Integer(count_field, &e.count, kMaxExperts, absent.count);
  f.Integer("num_experts_per_tok", &e.per_token, kMaxExperts, absent.per_token);
  f.Number("router_aux_loss_coef", &e.auxiliary_loss, absent.auxiliary_loss);
  f.Flag("output_router_logits", &e.adds_auxiliary_loss, false);
  if (f.reads() || e.z_loss > 0) f.Number("router_z_loss_coef", &e.z_loss, 0);
}

// mlp.gate and mlp.experts.*, as most families call them.
void NameExperts(ParamNames* names) {
  names->router = "mlp.gate";
  names->expert_prefix = "mlp.experts.";
  names->expert_gate = "gate_proj";
  names->expert_up = "up_proj";
  names->expert_down = "down_proj";
}

void NameShared(const std::string& prefix, ParamNames* names) {
  names->shared_gate = prefix + ".gate_proj";
  names->shared_up = prefix + ".up_proj";
  names->shared_down = prefix + ".down_proj";
}

void Mixtral(FieldPass& f) {
  Experts& e = f.config().experts;
  if (f.reads()) f.config().rope_theta = 1e6;
  LlamaSizes(f, {.kv_heads = 8, .max_positions = 131072, .norm_eps = 1e-5});
  ExpertFields(f, "num_local_experts", {8, 2});
  e.hidden = f.config().ffn;
  e.normalise = true;
  f.Silu();
  WindowField(f, 0);
  f.Fixed("router_jitter_noise", 0.0);
}

Architecture DescribeMixtral(const ModelConfig& c) {
  Architecture a = DescribeLlama(c);
  a.names.router = "block_sparse_moe.gate";
  a.names.expert_prefix = "block_sparse_moe.experts.";
  a.names.expert_gate = "w1";
  a.names.expert_up = "w3";
  a.names.expert_down = "w2";
  return a;
}

void Olmoe(FieldPass& f) {
  Experts& e = f.config().experts;
  LlamaSizes(f, {.max_positions = 4096, .norm_eps = 1e-5});
  ExpertFields(f, "num_experts", {64, 8, 0.01});
  e.hidden = f.config().ffn;
  f.Flag("norm_topk_prob", &e.normalise, false);
  f.Silu();
  f.Fixed("attention_bias", false);
}

Architecture DescribeOlmoe(const ModelConfig& c) {
  Architecture a = DescribeLlama(c);
  AddQkNorm(QkNorm::kAllHeads, &a);
  NameExperts(&a.names);
  return a;
}

void QwenExperts(FieldPass& f, const ExpertsDefaults& absent, int64_t hidden) {
  Experts& e = f.config().experts;
  ExpertFields(f, "num_experts", absent);
  f.Integer("moe_intermediate_size", &e.hidden, kMaxWidth, hidden);
  f.Flag("norm_topk_prob", &e.normalise, false);
  f.Silu();
  f.Written("decoder_sparse_step", 1);
  f.Written("mlp_only_layers", e.dense_blocks);
  if (!f.reads()) return;
  // Block i has experts where `step` divides i + 1, but for those that are listed.
  const int64_t step = f.in().Integer("decoder_sparse_step", kMaxLayers, 1);
  e.dense_blocks = f.in().Indices("mlp_only_layers", f.config().layers);
  for (int64_t i = 0; i < f.config().layers && step > 1; ++i) {
    if ((i + 1) % step != 0) e.dense_blocks.push_back(i);
  }
  std::sort(e.dense_blocks.begin(), e.dense_blocks.end());
  e.dense_blocks.erase(std::unique(e.dense_blocks.begin(), e.dense_blocks.end()),
                       e.dense_blocks.end());
}

void Qwen2(FieldPass& f) {
  Experts& e = f.config().experts;
  LlamaSizes(f, {.kv_heads = 16, .max_positions = 32768});
  QwenExperts(f, {60, 4}, 1408);
  f.Integer("shared_expert_intermediate_size", &e.shared_hidden, kMaxWidth, 5632);
  e.shared_gate = true;
  UpperWindow(f);
  f.Only("qkv_bias", true);
}

Architecture DescribeQwen2(const ModelConfig& c) {
  Architecture a = DescribeLlama(c);
  a.qkv_bias = true;
  NameExperts(&a.names);
  NameShared("mlp.shared_expert", &a.names);
  a.names.shared_weight = "mlp.shared_expert_gate";
  return a;
}

void Qwen3(FieldPass& f) {
  LlamaSizes(f, {.kv_heads = 4, .max_positions = 32768});
  QwenExperts(f, {128, 8}, 768);
  f.Fixed("attention_bias", false);
  // Off in published files; transformers' versions differ in which blocks the window is of.
  f.Fixed("use_sliding_window", false);
  f.Ignored("sliding_window");
  f.Ignored("max_window_layers");
}

Architecture DescribeQwen3(const ModelConfig& c) {
  Architecture a = DescribeLlama(c);
  AddQkNorm(QkNorm::kEachHead, &a);
  NameExperts(&a.names);
  return a;
}

void Dots1(FieldPass& f) {
  ModelConfig& c = f.config();
  Experts& e = c.experts;
  LlamaSizes(f, {.kv_heads = 32, .max_positions = 2048});
  ExpertFields(f, "n_routed_experts", {.auxiliary_loss = 0});
  f.Integer("moe_intermediate_size", &e.hidden, kMaxWidth, 1408);
  f.Flag("norm_topk_prob", &e.normalise, false);
  f.Number("routed_scaling_factor", &e.scale, 1);
  f.Silu();
  f.Fixed("attention_bias", false);
  f.Fixed("n_group", 1);
  f.Fixed("topk_group", 1);
  f.Only("moe_layer_freq", 1);
  f.Ignored("use_sliding_window");  // which transformers ignores here
  int64_t window = c.window.tokens;
  f.IntegerOrNull("sliding_window", &window, kMaxPositions, 4096);
  if (!f.reads()) {
    f.out()["n_shared_experts"] = e.shared_hidden / e.hidden;
    f.out()["first_k_dense_replace"] = e.dense_blocks.size();
    f.out()["max_window_layers"] = window > 0 ? c.window.first : c.layers;
    return;
  }
  const int64_t full_layers = f.in().Count("max_window_layers", kMaxLayers, 62);
  if (window > 0 && full_layers < c.layers) c.window = {.tokens = window, .first = full_layers};
  f.in().LayerTypes(c);
  e.shared_hidden = e.hidden * f.in().Count("n_shared_experts", kMaxExperts, 0);
  e.score = Experts::Score::kSigmoid;
  e.correction = true;
  e.dense_blocks.resize(f.in().Count("first_k_dense_replace", kMaxLayers, 0));
  std::iota(e.dense_blocks.begin(), e.dense_blocks.end(), int64_t{0});
}

Architecture DescribeDots1(const ModelConfig& c) {
  Architecture a = DescribeQwen3(c);
  a.names.correction = "mlp.gate.e_score_correction_bias";
  NameShared("mlp.shared_experts", &a.names);
  return a;
}

constexpr Family kTable[] = {
    {.id = ModelFamily::kMixtral,
     .model_type = "mixtral",
     .architecture = "MixtralForCausalLM",
     .fields = Mixtral,
     .describe = DescribeMixtral,
     .default_ffn_ratio = 3.5,
     .set_defaults =
         [](ModelConfig* c) {
           c->rope_theta = 1e6;
           c->experts = {.count = 8, .per_token = 2, .hidden = c->ffn, .normalise = true};
         }},
    {.id = ModelFamily::kOlmoe,
     .model_type = "olmoe",
     .architecture = "OlmoeForCausalLM",
     .fields = Olmoe,
     .describe = DescribeOlmoe,
     .default_ffn_ratio = 0.5,
     .set_defaults =
         [](ModelConfig* c) { c->experts = {.count = 64, .per_token = 8, .hidden = c->ffn}; }},
    {.id = ModelFamily::kQwen2Moe,
     .model_type = "qwen2_moe",
     .architecture = "Qwen2MoeForCausalLM",
     .fields = Qwen2,
     .describe = DescribeQwen2,
     .default_ffn_ratio = 1408.0 / 2048,
     .norm_eps = 1e-6,
     .set_defaults =
         [](ModelConfig* c) {
           c->experts = {.count = 60,
                         .per_token = 4,
                         .hidden = c->ffn,
                         .shared_hidden = 4 * c->ffn,
                         .shared_gate = true};
         }},
    {.id = ModelFamily::kQwen3Moe,
     .model_type = "qwen3_moe",
     .architecture = "Qwen3MoeForCausalLM",
     .fields = Qwen3,
     .describe = DescribeQwen3,
     .default_ffn_ratio = 768.0 / 2048,
     .norm_eps = 1e-6,
     .set_defaults =
         [](ModelConfig* c) {
           c->experts = {.count = 128, .per_token = 8, .hidden = c->ffn, .normalise = true};
         }},
    {.id = ModelFamily::kDots1,
     .model_type = "dots1",
     .architecture = "Dots1ForCausalLM",
     .fields = Dots1,
     .describe = DescribeDots1,
     .default_ffn_ratio = 1408.0 / 4096,
     .norm_eps = 1e-6,
     .set_defaults =
         [](ModelConfig* c) {
           c->experts = {.count = 128,
                         .per_token = 6,
                         .hidden = c->ffn,
                         .shared_hidden = 2 * c->ffn,
                         .score = Experts::Score::kSigmoid,
                         .normalise = true,
                         .scale = 2.5,
                         .correction = true};
         }},
};

}  // namespace mixtures

constinit const std::span<const Family> kMixtureFamilies = mixtures::kTable;

}  // namespace atl
