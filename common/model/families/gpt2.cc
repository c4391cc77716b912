// GPT-2: LayerNorm, learned positions, GELU, biases everywhere.

#include "common/model/family.h"

namespace atl {
namespace gpt2 {

void Read(ConfigFields& fields, ModelConfig* c) {
  c->vocab = fields.Integer("vocab_size", kMaxVocab);
  c->d_model = fields.Integer("n_embd", kMaxWidth);
  c->layers = fields.Integer("n_layer", kMaxLayers);
  c->heads = fields.Integer("n_head", kMaxWidth);
  c->kv_heads = c->heads;
  c->ffn = fields.Integer("n_inner", kMaxWidth, 4 * c->d_model);
  c->max_positions = fields.Integer("n_positions", kMaxPositions);
  c->norm_eps = fields.Number("layer_norm_epsilon", 1e-5);
  c->tied_head = fields.Flag("tie_word_embeddings", true);
  fields.Activation("activation_function", kGeluTanh);
  fields.MustBe("scale_attn_weights", true);
  fields.MustBe("scale_attn_by_inverse_layer_idx", false);
  fields.MustBe("add_cross_attention", false);
}

void Write(const ModelConfig& c, nlohmann::ordered_json* json) {
  auto& j = *json;
  j["n_embd"] = c.d_model;
  j["n_layer"] = c.layers;
  j["n_head"] = c.heads;
  j["n_inner"] = c.ffn;
  j["n_positions"] = c.max_positions;
  j["n_ctx"] = c.max_positions;
  j["layer_norm_epsilon"] = c.norm_eps;
  j["activation_function"] = "gelu_new";
  j["attn_pdrop"] = 0.0;
  j["embd_pdrop"] = 0.0;
  j["resid_pdrop"] = 0.0;
  j["scale_attn_weights"] = true;
}

Architecture Describe(const ModelConfig&) {
  Architecture a;
  a.norm = NormKind::kLayerNorm;
  a.positions = Positions::kLearned;
  a.feed_forward = FeedForward::kPlain;
  a.nonlinearity = Nonlinearity::kGeluTanh;
  a.qkv_bias = a.out_bias = a.feed_forward_bias = true;
  a.matrices_transposed = true;
  a.names = {.block_prefix = "transformer.h.",
             .embedding = "transformer.wte",
             .positions = "transformer.wpe",
             .final_norm = "transformer.ln_f",
             .head = "lm_head",
             .qkv = "attn.c_attn",
             .out = "attn.c_proj",
             .up = "mlp.c_fc",
             .down = "mlp.c_proj",
             .attention_norm = "ln_1",
             .feed_forward_norm = "ln_2"};
  return a;
}

}  // namespace gpt2

extern const Family kGpt2Family = {.id = ModelFamily::kGpt2,
                                   .model_type = "gpt2",
                                   .architecture = "GPT2LMHeadModel",
                                   .default_ffn_ratio = 4,
                                   .ffn_multiple = 1,
                                   .set_defaults = [](ModelConfig*) {},
                                   .read = gpt2::Read,
                                   .write = gpt2::Write,
                                   .describe = gpt2::Describe};

}  // namespace atl
