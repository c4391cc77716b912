// BERT: an encoder trained on masked tokens. Norms of sums, learned positions and segments, GELU.

#include "common/model/family.h"

namespace atl {
namespace bert {

void Read(ConfigFields& fields, ModelConfig* c) {
  c->vocab = fields.Integer("vocab_size", kMaxVocab);
  c->d_model = fields.Integer("hidden_size", kMaxWidth);
  c->layers = fields.Integer("num_hidden_layers", kMaxLayers);
  c->heads = fields.Integer("num_attention_heads", kMaxWidth);
  c->kv_heads = c->heads;
  c->ffn = fields.Integer("intermediate_size", kMaxWidth);
  c->max_positions = fields.Integer("max_position_embeddings", kMaxPositions);
  c->token_types = fields.Integer("type_vocab_size", 1 << 10, 2);
  c->norm_eps = fields.Number("layer_norm_eps", 1e-12);
  c->tied_head = fields.Flag("tie_word_embeddings", true);
  // Without it, the ids are those of Google's vocabularies.
  const bool googles = !fields.Has("mask_token_id");
  const auto ids = [&](int64_t id) { return googles ? std::vector{id} : std::vector<int64_t>(); };
  c->mask_token = fields.Count("mask_token_id", kMaxVocab, 103);
  c->special_tokens.pad = fields.TokenIds("pad_token_id", ids(0));
  c->special_tokens.cls = fields.TokenIds("cls_token_id", ids(101));
  c->special_tokens.sep = fields.TokenIds("sep_token_id", ids(102));
  fields.Activation("hidden_act", {"gelu", "gelu_python"});
  fields.MustBe("position_embedding_type", "absolute");
  fields.MustBe("add_cross_attention", false);
  fields.MustBe("is_decoder", false);
  if (!c->tied_head)
    fields.Fail("tie_word_embeddings", "is not true, the only value Atoll implements");
}

void Write(const ModelConfig& c, nlohmann::ordered_json* json) {
  auto& j = *json;
  j["hidden_size"] = c.d_model;
  j["num_hidden_layers"] = c.layers;
  j["num_attention_heads"] = c.heads;
  j["intermediate_size"] = c.ffn;
  j["max_position_embeddings"] = c.max_positions;
  j["type_vocab_size"] = c.token_types;
  j["layer_norm_eps"] = c.norm_eps;
  j["mask_token_id"] = c.mask_token;
  j["cls_token_id"] = TokenIdsJson(c.special_tokens.cls);
  j["sep_token_id"] = TokenIdsJson(c.special_tokens.sep);
  j["hidden_act"] = "gelu";
  j["hidden_dropout_prob"] = 0.0;
  j["attention_probs_dropout_prob"] = 0.0;
}

Architecture Describe(const ModelConfig&) {
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

}  // namespace bert

extern const Family kBertFamily = {.id = ModelFamily::kBert,
                                   .model_type = "bert",
                                   .architecture = "BertForMaskedLM",
                                   .default_ffn_ratio = 4,
                                   .ffn_multiple = 1,
                                   .set_defaults =
                                       [](ModelConfig* c) {
                                         c->norm_eps = 1e-12;
                                         c->token_types = 2;
                                         c->mask_token = c->vocab - 1;
                                         c->tied_head = true;
                                       },
                                   .read = bert::Read,
                                   .write = bert::Write,
                                   .describe = bert::Describe};

}  // namespace atl
