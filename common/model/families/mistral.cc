// Mistral: LLaMA with a window of attention.

#include "common/model/family.h"

namespace atl {
namespace {

void Read(ConfigFields& fields, ModelConfig* c) {
  ReadLlamaSizes(fields, c);
  c->tied_head = fields.Flag("tie_word_embeddings", false);
  c->window.tokens = fields.Integer("sliding_window", kMaxPositions, 0);
  fields.LayerTypes(*c);
  fields.MustBe("hidden_act", "silu");
}

void Write(const ModelConfig& c, nlohmann::ordered_json* j) {
  WriteLlamaSizes(c, j);
  (*j)["hidden_act"] = "silu";
  if (c.window.tokens > 0) {
    (*j)["sliding_window"] = c.window.tokens;
  } else {
    (*j)["sliding_window"] = nullptr;
  }
}

}  // namespace

const Family kMistralFamily = {.id = ModelFamily::kMistral,
                               .model_type = "mistral",
                               .architecture = "MistralForCausalLM",
                               .usual_ffn = 3.5,
                               .ffn_multiple = 32,
                               .set_defaults = [](ModelConfig*) {},
                               .read = Read,
                               .write = Write,
                               .describe = DescribeLlama};

}  // namespace atl
