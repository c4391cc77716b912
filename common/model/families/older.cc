// Families of before LLaMA, with LayerNorm, learned positions, GELU and biases: GPT-2; and BERT, an
// encoder trained on masked tokens, with norms of sums and segments.

#include "common/model/family.h"

namespace atl {
namespace older {

void Bert(FieldPass& f) {
  ModelConfig& c = f.config();
  f.Integer("hidden_size", &c.d_model, kMaxWidth);
  f.Integer("num_hidden_layers", &c.layers, kMaxLayers);
  f.Integer("num_attention_heads", &c.heads, kMaxWidth);
  f.Integer("intermediate_size", &c.ffn, kMaxWidth);
  f.Integer("max_position_embeddings", &c.max_positions, kMaxPositions);
  f.Integer("type_vocab_size", &c.token_types, 1 << 10, 2);
  f.Number("layer_norm_eps", &c.norm_eps, 1e-12);
  f.Activation("hidden_act", "gelu", {"gelu", "gelu_python"});
  f.Written("hidden_dropout_prob", 0.0);
  f.Written("attention_probs_dropout_prob", 0.0);
  SpecialTokens& tokens = c.special_tokens;
  if (!f.reads()) {
    f.out()["mask_token_id"] = c.mask_token;
    f.out()["cls_token_id"] = TokenIdsJson(tokens.cls);
    f.out()["sep_token_id"] = TokenIdsJson(tokens.sep);
    return;
  }
  ConfigFields& in = f.in();
  c.kv_heads = c.heads;
  // Without it, the ids are those of Google's vocabularies.
  const bool googles = !in.Has("mask_token_id");
  const auto ids = [&](int64_t id) { return googles ? std::vector{id} : std::vector<int64_t>(); };
  c.mask_token = in.Count("mask_token_id", kMaxVocab, 103);
  tokens.pad = in.TokenIds("pad_token_id", ids(0));
  tokens.cls = in.TokenIds("cls_token_id", ids(101));
  tokens.sep = in.TokenIds("sep_token_id", ids(102));
  f.Only("position_embedding_type", "absolute");
  f.Only("add_cross_attention", false);
  f.Only("is_decoder", false);
  f.Only("tie_word_embeddings", true);
}

Architecture DescribeBert(const ModelConfig&) {
  Architecture a;
  a.norm = NormKind::kLayerNorm;
  a.norm_position = NormPosition::kSum;
  a.positions = Positions::kLearned;
  a.feed_forward = FeedForward::kPlain;
  a.nonlinearity = Nonlinearity::kGeluErf;
  a.qkv_bias = a.out_bias = a.feed_forward_bias = true;
  a.causal = false;
  a.embedding_norm = true;
  a.objective = Objective::kMaskedToken;
  a.names = {.block_prefix = "bert.encoder.layer.",
             .embedding = "bert.embeddings.word_embeddings",
             .positions = "bert.embeddings.position_embeddings",
             .token_types = "bert.embeddings.token_type_embeddings",
             .embedding_norm = "bert.embeddings.LayerNorm",
             .transform = "cls.predictions.transform.dense",
             .transform_norm = "cls.predictions.transform.LayerNorm",
             .head_bias = "cls.predictions.bias",
             .query = "attention.self.query",
             .key = "attention.self.key",
             .value = "attention.self.value",
             .out = "attention.output.dense",
             .up = "intermediate.dense",
             .down = "output.dense",
             .after_attention_norm = "attention.output.LayerNorm",
             .after_feed_forward_norm = "output.LayerNorm"};
  return a;
}

void SetBertDefaults(ModelConfig* c) {
  c->token_types = 2;
  c->mask_token = c->vocab - 1;
  c->tied_head = true;
}

void Gpt2(FieldPass& f) {
  ModelConfig& c = f.config();
  f.Integer("n_embd", &c.d_model, kMaxWidth);
  f.Integer("n_layer", &c.layers, kMaxLayers);
  f.Integer("n_head", &c.heads, kMaxWidth);
  f.Integer("n_inner", &c.ffn, kMaxWidth, 4 * c.d_model);
  f.Integer("n_positions", &c.max_positions, kMaxPositions);
  f.Number("layer_norm_epsilon", &c.norm_eps, 1e-5);
  f.Activation("activation_function", "gelu_new",
               {"gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate"});
  f.Fixed("scale_attn_weights", true);
  f.Only("scale_attn_by_inverse_layer_idx", false);
  f.Only("add_cross_attention", false);
  f.Written("n_ctx", c.max_positions);
  for (const char* name : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) f.Written(name, 0.0);
  c.kv_heads = c.heads;
}

Architecture DescribeGpt2(const ModelConfig&) {
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

constexpr Family kTable[] = {
    {.id = ModelFamily::kBert,
     .model_type = "bert",
     .architecture = "BertForMaskedLM",
     .fields = Bert,
     .describe = DescribeBert,
     .tied_head = true,
     .default_ffn_ratio = 4,
     .ffn_multiple = 1,
     .norm_eps = 1e-12,
     .set_defaults = SetBertDefaults},
    {.id = ModelFamily::kGpt2,
     .model_type = "gpt2",
     .architecture = "GPT2LMHeadModel",
     .fields = Gpt2,
     .describe = DescribeGpt2,
     .tied_head = true,
     .default_ffn_ratio = 4,
     .ffn_multiple = 1},
};

}  // namespace older

constinit const std::span<const Family> kOlderFamilies = older::kTable;

}  // namespace atl
