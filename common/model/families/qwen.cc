// Qwen 2 and 2.5 (LLaMA with biases of queries, keys and values) and Qwen 3 (with norms of each
// head's queries and keys instead).

#include "common/model/family.h"

namespace atl {

void ReadUpperWindow(ConfigFields& fields, ModelConfig* c) {
  const int64_t window = fields.IntegerOrNull("sliding_window", kMaxPositions, 4096);
  const bool windowed = fields.Flag("use_sliding_window", false);
  const int64_t full_layers = fields.Count("max_window_layers", kMaxLayers, 28);
  if (windowed && window > 0) c->window = {.tokens = window, .first = full_layers};
  fields.LayerTypes(*c);
}

void WriteUpperWindow(const ModelConfig& c, nlohmann::ordered_json* json) {
  auto& j = *json;
  j["use_sliding_window"] = c.window.tokens > 0;
  j["sliding_window"] = PositiveOrNull(c.window.tokens);
  if (c.window.tokens > 0) j["max_window_layers"] = c.window.first;
}

namespace qwen {

void Read(ConfigFields& fields, int64_t head_dim, ModelConfig* c) {
  ReadLlamaSizes(fields, {.kv_heads = 32, .head_dim = head_dim, .max_positions = 32768}, c);
  c->tied_head = fields.Flag("tie_word_embeddings", false);
  ReadUpperWindow(fields, c);
  fields.Activation("hidden_act", {"silu", "swish"});
  fields.MustBe("use_mrope", false);
}

void Write(const ModelConfig& c, nlohmann::ordered_json* json) {
  auto& j = *json;
  WriteLlamaSizes(c, json);
  j["hidden_act"] = "silu";
  WriteUpperWindow(c, json);
}

void SetDefaults(ModelConfig* c) { c->norm_eps = 1e-6; }

}  // namespace qwen

extern const Family kQwen2Family = {.id = ModelFamily::kQwen2,
                                    .model_type = "qwen2",
                                    .architecture = "Qwen2ForCausalLM",
                                    .default_ffn_ratio = 8.0 / 3,
                                    .ffn_multiple = 32,
                                    .set_defaults = qwen::SetDefaults,
                                    .read =
                                        [](ConfigFields& fields, ModelConfig* c) {
                                          qwen::Read(fields, 0, c);
                                          // Which transformers' class does not read: it has these
                                          // biases in any case.
                                          fields.Has("attention_bias");
                                          fields.Has("qkv_bias");
                                        },
                                    .write = qwen::Write,
                                    .describe =
                                        [](const ModelConfig& c) {
                                          Architecture a = DescribeLlama(c);
                                          a.qkv_bias = true;
                                          return a;
                                        }};

extern const Family kQwen3Family = {.id = ModelFamily::kQwen3,
                                    .model_type = "qwen3",
                                    .architecture = "Qwen3ForCausalLM",
                                    .default_ffn_ratio = 3,
                                    .ffn_multiple = 32,
                                    .set_defaults = qwen::SetDefaults,
                                    .read =
                                        [](ConfigFields& fields, ModelConfig* c) {
                                          qwen::Read(fields, 128, c);
                                          fields.MustBe("attention_bias", false);
                                        },
                                    .write =
                                        [](const ModelConfig& c, nlohmann::ordered_json* j) {
                                          qwen::Write(c, j);
                                          (*j)["attention_bias"] = false;
                                        },
                                    .describe =
                                        [](const ModelConfig& c) {
                                          Architecture a = DescribeLlama(c);
                                          a.qk_norm = QkNorm::kEachHead;
                                          a.names.query_norm = "self_attn.q_norm";
                                          a.names.key_norm = "self_attn.k_norm";
                                          return a;
                                        }};

}  // namespace atl
