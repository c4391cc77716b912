// LLaMA 1 to 3, SmolLM2 and what else is of their shape: RMSNorm, rotary positions, SwiGLU. And
// those that differ from it by little:
//   Mistral         a window of attention
//   Phi-3           one matrix for queries, keys and values in files, and one for gate and up
//   Qwen 2 and 2.5  biases of queries, keys and values
//   Qwen 3          norms of each head's queries and keys
//   OLMo 2          norms after attention and feed-forward, and of all queries and keys
//   Gemma 2         norms before and after, gated GELU, capped scores and logits, a scaled
//                   embedding, and a window in every second block

#include <cmath>

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

void LlamaSizes(FieldPass& f, const LlamaDefaults& absent) {
  ModelConfig& c = f.config();
  f.Integer("hidden_size", &c.d_model, kMaxWidth);
  f.Integer("intermediate_size", &c.ffn, kMaxWidth);
  f.Integer("num_hidden_layers", &c.layers, kMaxLayers);
  f.Integer("num_attention_heads", &c.heads, kMaxWidth);
  f.Integer("max_position_embeddings", &c.max_positions, kMaxPositions, absent.max_positions);
  f.Number("rms_norm_eps", &c.norm_eps, absent.norm_eps);
  f.Written("attention_dropout", 0.0);
  if (!f.reads()) {
    f.out()["num_key_value_heads"] = c.kv_heads;
    f.out()["head_dim"] = c.head_dim();
    return WriteRope(c, &f.out());
  }
  c.kv_heads = ReadKvHeads(f.in(), absent.kv_heads, c.heads);
  const int64_t head_dim = f.in().IntegerOrNull("head_dim", kMaxWidth, absent.head_dim);
  if (absent.head_dim > 0 && f.in().IsNull("head_dim")) {
    f.in().Fail("head_dim", "is null; expected a number");
  }
  // Only where it says something: so one model has one config.
  if (c.heads > 0 && head_dim * c.heads != c.d_model) c.head_channels = head_dim;
  f.in().Rope(&c);
}

void WindowField(FieldPass& f, int64_t absent) {
  f.IntegerOrNull("sliding_window", &f.config().window.tokens, kMaxPositions, absent);
  if (f.reads()) f.in().LayerTypes(f.config());
}

void UpperWindow(FieldPass& f) {
  AttentionWindow& window = f.config().window;
  int64_t tokens = window.tokens, first = window.first;
  bool used = tokens > 0;
  f.IntegerOrNull("sliding_window", &tokens, kMaxPositions, 4096);
  f.Flag("use_sliding_window", &used, false);
  if (used) f.Written("max_window_layers", first);
  if (!f.reads()) return;
  first = f.in().Count("max_window_layers", kMaxLayers, 28);
  if (used && tokens > 0) window = {.tokens = tokens, .first = first};
  f.in().LayerTypes(f.config());
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

void AddQkNorm(QkNorm norm, Architecture* a) {
  a->qk_norm = norm;
  a->names.query_norm = "self_attn.q_norm";
  a->names.key_norm = "self_attn.k_norm";
}

namespace llama {

void Llama(FieldPass& f) {
  LlamaSizes(f, {});
  f.Silu();
  f.Fixed("attention_bias", false);
  f.Fixed("mlp_bias", false);
}

void Mistral(FieldPass& f) {
  LlamaSizes(f, {.kv_heads = 8, .max_positions = 131072});
  f.Silu();
  WindowField(f, 4096);
}

void Phi3(FieldPass& f) {
  LlamaSizes(f, {.max_positions = 4096, .norm_eps = 1e-5});
  f.Silu();
  WindowField(f, 0);
  for (const char* name : {"attention_bias", "lm_head_bias", "mlp_bias"}) f.Only(name, false);
  // Fields of attention kernels of the model's own code, and of its former scaling: off.
  f.Only("full_attn_mod", 1);
  f.Only("interpolate_factor", 1);
  // A field of the "longrope" scaling, which is refused; transformers writes it without, too.
  f.Ignored("original_max_position_embeddings");
  f.Written("original_max_position_embeddings", f.config().max_positions);
}

Architecture DescribePhi3(const ModelConfig& c) {
  Architecture a = DescribeLlama(c);
  a.names.qkv = "self_attn.qkv_proj";
  a.names.query = a.names.key = a.names.value = "";
  a.names.gate_up = "mlp.gate_up_proj";
  a.names.gate = a.names.up = "";
  return a;
}

void Qwen(FieldPass& f, int64_t head_dim) {
  LlamaSizes(f, {.kv_heads = 32, .head_dim = head_dim, .max_positions = 32768});
  f.Silu();
  UpperWindow(f);
  f.Only("use_mrope", false);
}

void Qwen2(FieldPass& f) {
  Qwen(f, 0);
  // Which transformers' class does not read: it has these biases in any case.
  f.Ignored("attention_bias");
  f.Ignored("qkv_bias");
}

Architecture DescribeQwen2(const ModelConfig& c) {
  Architecture a = DescribeLlama(c);
  a.qkv_bias = true;
  return a;
}

void Qwen3(FieldPass& f) {
  Qwen(f, 128);
  f.Fixed("attention_bias", false);
}

Architecture DescribeQwen3(const ModelConfig& c) {
  Architecture a = DescribeLlama(c);
  AddQkNorm(QkNorm::kEachHead, &a);
  return a;
}

void Olmo2(FieldPass& f) {
  LlamaSizes(f, {.norm_eps = 1e-5});
  f.Silu();
  f.Fixed("attention_bias", false);
}

Architecture DescribeOlmo2(const ModelConfig& c) {
  Architecture a = DescribeLlama(c);
  AddQkNorm(QkNorm::kAllHeads, &a);
  a.norm_position = NormPosition::kAfter;
  a.names.attention_norm = a.names.feed_forward_norm = "";
  a.names.after_attention_norm = "post_attention_layernorm";
  a.names.after_feed_forward_norm = "post_feedforward_layernorm";
  return a;
}

void Gemma2(FieldPass& f) {
  ModelConfig& c = f.config();
  LlamaSizes(f, {.kv_heads = 4, .head_dim = 256, .max_positions = 8192});
  if (f.reads()) c.window.period = 2;
  WindowField(f, 4096);
  f.Ignored("sliding_window_size");  // an older name, which transformers ignores
  f.Number("query_pre_attn_scalar", &c.attention_scalar, 256);
  f.NumberOrNull("attn_logit_softcapping", &c.attention_softcap, 50);
  f.NumberOrNull("final_logit_softcapping", &c.logit_softcap, 30);
  f.Activation("hidden_activation", "gelu_pytorch_tanh",
               {"gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate"});
  f.Ignored("hidden_act");  // which transformers ignores here
  f.Fixed("attention_bias", false);
  f.Only("use_bidirectional_attention", false);
}

Architecture DescribeGemma2(const ModelConfig& c) {
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

void SetGemma2Defaults(ModelConfig* c) {
  c->window = {.tokens = 4096, .period = 2};
  c->attention_scalar = static_cast<double>(c->heads > 0 ? c->head_dim() : 0);
  c->attention_softcap = 50;
  c->logit_softcap = 30;
}

constexpr Family kTable[] = {
    {ModelFamily::kLlama, "llama", "LlamaForCausalLM", Llama, DescribeLlama},
    {.id = ModelFamily::kMistral,
     .model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .fields = Mistral,
     .describe = DescribeLlama,
     .default_ffn_ratio = 3.5},
    {ModelFamily::kPhi3, "phi3", "Phi3ForCausalLM", Phi3, DescribePhi3},
    {.id = ModelFamily::kQwen2,
     .model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .fields = Qwen2,
     .describe = DescribeQwen2,
     .norm_eps = 1e-6},
    {.id = ModelFamily::kQwen3,
     .model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .fields = Qwen3,
     .describe = DescribeQwen3,
     .default_ffn_ratio = 3,
     .norm_eps = 1e-6},
    {.id = ModelFamily::kOlmo2,
     .model_type = "olmo2",
     .architecture = "Olmo2ForCausalLM",
     .fields = Olmo2,
     .describe = DescribeOlmo2,
     .norm_eps = 1e-6},
    {.id = ModelFamily::kGemma2,
     .model_type = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .fields = Gemma2,
     .describe = DescribeGemma2,
     .tied_head = true,
     .default_ffn_ratio = 4,
     .ffn_multiple = 1,
     .norm_eps = 1e-6,
     .set_defaults = SetGemma2Defaults},
};

}  // namespace llama

constinit const std::span<const Family> kLlamaFamilies = llama::kTable;

}  // namespace atl
