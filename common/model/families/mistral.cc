// Mistral: LLaMA with a window of attention.

#include "common/model/family.h"

namespace atl {
namespace mistral {

void Read(ConfigFields& fields, ModelConfig* c) {
  ReadLlamaSizes(fields, {.kv_heads = 8, .max_positions = 131072}, c);
  c->tied_head = fields.Flag("tie_word_embeddings", false);
  c->window.tokens = fields.IntegerOrNull("sliding_window", kMaxPositions, 4096);
  fields.LayerTypes(*c);
  fields.Activation("hidden_act", {"silu", "swish"});
}

void Write(const ModelConfig& c, nlohmann::ordered_json* j) {
  WriteLlamaSizes(c, j);
  (*j)["hidden_act"] = "silu";
  (*j)["sliding_window"] = PositiveOrNull(c.window.tokens);
}

}  // namespace mistral

extern const Family kMistralFamily = {.id = ModelFamily::kMistral,
                                      .model_type = "mistral",
                                      .architecture = "MistralForCausalLM",
                                      .default_ffn_ratio = 3.5,
                                      .ffn_multiple = 32,
                                      .set_defaults = [](ModelConfig*) {},
                                      .read = mistral::Read,
                                      .write = mistral::Write,
                                      .describe = DescribeLlama};

}  // namespace atl
