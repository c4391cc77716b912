// Phi-3: LLaMA whose files have one matrix for queries, keys and values, and one for gate and up.

#include "common/model/family.h"

namespace atl {
namespace phi3 {

void Read(ConfigFields& fields, ModelConfig* c) {
  ReadLlamaSizes(fields, {.max_positions = 4096, .norm_eps = 1e-5}, c);
  c->tied_head = fields.Flag("tie_word_embeddings", false);
  c->window.tokens = fields.IntegerOrNull("sliding_window", kMaxPositions, 0);
  fields.Activation("hidden_act", {"silu", "swish"});
  fields.MustBe("attention_bias", false);
  fields.MustBe("lm_head_bias", false);
  fields.MustBe("mlp_bias", false);
  // Fields of attention kernels of the model's own code, and of its former scaling: off.
  fields.MustBe("full_attn_mod", 1);
  fields.MustBe("interpolate_factor", 1);
  // A field of the "longrope" scaling, which is refused; transformers writes it without, too.
  fields.Has("original_max_position_embeddings");
}

void Write(const ModelConfig& c, nlohmann::ordered_json* json) {
  auto& j = *json;
  WriteLlamaSizes(c, json);
  j["hidden_act"] = "silu";
  j["original_max_position_embeddings"] = c.max_positions;
  j["sliding_window"] = PositiveOrNull(c.window.tokens);
}

Architecture Describe(const ModelConfig& c) {
  Architecture a = DescribeLlama(c);
  a.names.qkv = "self_attn.qkv_proj";
  a.names.query = a.names.key = a.names.value = "";
  a.names.gate_up = "mlp.gate_up_proj";
  a.names.gate = a.names.up = "";
  return a;
}

}  // namespace phi3

extern const Family kPhi3Family = {.id = ModelFamily::kPhi3,
                                   .model_type = "phi3",
                                   .architecture = "Phi3ForCausalLM",
                                   .default_ffn_ratio = 8.0 / 3,
                                   .ffn_multiple = 32,
                                   .set_defaults = [](ModelConfig*) {},
                                   .read = phi3::Read,
                                   .write = phi3::Write,
                                   .describe = phi3::Describe};

}  // namespace atl
