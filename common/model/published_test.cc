// Published models: their config.json, as far as it describes the model, and their sizes.

#include <catch2/catch.hpp>
#include <map>

#include "common/model/family.h"
#include "common/model/hugging_face.h"

namespace atl {
namespace {

struct Published {
  const char* name;
  const char* config;
  int64_t parameters;
};

const Published kPublished[] = {
    {"Llama 3.2 1B", R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 2048,
      "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
      "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": true,
      "hidden_act": "silu", "mlp_bias": false, "attention_bias": false, "pretraining_tp": 1,
      "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
      "original_max_position_embeddings": 8192, "rope_type": "llama3"}})",
     1235814400},
    {"SmolLM2 135M", R"({"model_type": "llama", "vocab_size": 49152, "hidden_size": 576,
      "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
      "num_key_value_heads": 3, "max_position_embeddings": 8192, "rms_norm_eps": 1e-05,
      "rope_theta": 100000, "tie_word_embeddings": true, "hidden_act": "silu",
      "is_llama_config": true, "rope_interleaved": false, "rope_scaling": null})",
     134515008},
    {"Mistral 7B v0.1", R"({"model_type": "mistral", "vocab_size": 32000, "hidden_size": 4096,
      "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
      "num_key_value_heads": 8, "max_position_embeddings": 32768, "rms_norm_eps": 1e-05,
      "rope_theta": 10000.0, "sliding_window": 4096, "hidden_act": "silu",
      "tie_word_embeddings": false})",
     7241732096},
    {"Qwen2.5 0.5B", R"({"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896,
      "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
      "num_key_value_heads": 2, "max_position_embeddings": 32768, "max_window_layers": 24,
      "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
      "tie_word_embeddings": true, "use_mrope": false, "use_sliding_window": false,
      "hidden_act": "silu", "attention_dropout": 0.0})",
     494032768},
    {"Qwen3 0.6B", R"({"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024,
      "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
      "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960,
      "max_window_layers": 28, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
      "rope_scaling": null, "sliding_window": null, "tie_word_embeddings": true,
      "use_sliding_window": false, "attention_bias": false, "hidden_act": "silu"})",
     596049920},
    {"OLMo 2 7B", R"({"model_type": "olmo2", "vocab_size": 100352, "hidden_size": 4096,
      "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
      "num_key_value_heads": 32, "max_position_embeddings": 4096, "rms_norm_eps": 1e-06,
      "rope_theta": 500000, "rope_scaling": null, "attention_bias": false, "hidden_act": "silu",
      "tie_word_embeddings": false})",
     7298617344},
    {"Gemma 2 2B", R"({"model_type": "gemma2", "vocab_size": 256000, "hidden_size": 2304,
      "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
      "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192,
      "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096,
      "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0,
      "final_logit_softcapping": 30.0, "cache_implementation": "hybrid",
      "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"})",
     2614341888},
    {"Phi-3 mini 4k", R"({"model_type": "phi3", "vocab_size": 32064, "hidden_size": 3072,
      "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 32,
      "num_key_value_heads": 32, "max_position_embeddings": 4096,
      "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
      "rope_scaling": null, "sliding_window": 2047, "hidden_act": "silu", "embd_pdrop": 0.0,
      "tie_word_embeddings": false})",
     3821079552},
    // Without the pooler, which masked tokens do not train; with the bias of the head.
    {"BERT base", R"({"model_type": "bert", "vocab_size": 30522, "hidden_size": 768,
      "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
      "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
      "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
      "position_embedding_type": "absolute", "gradient_checkpointing": false})",
     109514298},
};

ModelConfig Parsed(absl::string_view text) {
  const auto config = ParseModelConfig(text, "config.json");
  INFO(config.status().message());
  REQUIRE(config.ok());
  return *config;
}

TEST_CASE("published models of every family have their published numbers of parameters") {
  for (const Published& published : kPublished) {
    INFO(published.name);
    CHECK(Parsed(published.config).ParameterCount() == published.parameters);
  }
}

TEST_CASE("what is written of a published model is read back") {
  for (const Published& published : kPublished) {
    INFO(published.name);
    const ModelConfig config = Parsed(published.config);
    CHECK(Parsed(FormatModelConfig(config)) == config);
    CHECK(ModelConfigFromSpec(ToSpec(config), 1).value() == config);
  }
}

TEST_CASE("a job file's numbers make a model of every family but those of images") {
  for (const Family* family : AllFamilies()) {
    INFO(family->model_type);
    ModelSpec spec;
    spec.family = family->id;
    spec.hidden = 64;
    spec.layers = 2;
    spec.heads = 4;
    const auto config = ModelConfigFromSpec(spec, 32);
    if (family->image_layers != nullptr) {
      CHECK(absl::IsInvalidArgument(config.status()));
      continue;
    }
    INFO(config.status().message());
    REQUIRE(config.ok());
    CHECK(Parsed(FormatModelConfig(*config)) == *config);
  }
}

}  // namespace
}  // namespace atl
