#include <catch2/catch.hpp>

#include "common/model/hugging_face.h"
#include "common/model/layout.h"

namespace atl {
namespace {

using Catch::Matchers::Contains;

const char kGpt2Small[] = R"({"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768,
    "n_layer": 12, "n_head": 12, "n_positions": 1024, "n_ctx": 1024, "resid_pdrop": 0.1,
    "summary_type": "cls_index", "activation_function": "gelu_new"})";

const char kLlama8B[] = R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 8192, "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0, "rope_scaling": null, "hidden_act": "silu",
    "tie_word_embeddings": false})";

ModelConfig Parsed(absl::string_view text) {
  const auto config = ParseModelConfig(text, "config.json");
  INFO(config.status().message());
  REQUIRE(config.ok());
  return *config;
}

std::string With(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

std::string WhyNot(const std::string& text) {
  const auto config = ParseModelConfig(text, "dir/config.json");
  REQUIRE_FALSE(config.ok());
  return std::string(config.status().message());
}

int64_t SumOfLayouts(const ModelConfig& config) {
  int64_t sum = 0;
  for (const LayerLayout& layout : MakeLayouts(config)) sum += layout.size;
  return sum;
}

TEST_CASE("published models have their published numbers of parameters") {
  REQUIRE(Parsed(kGpt2Small).ParameterCount() == 124439808);
  REQUIRE(Parsed(kGpt2Small).tied_head);
  REQUIRE(Parsed(kLlama8B).ParameterCount() == 8030261248);
  REQUIRE(SumOfLayouts(Parsed(kGpt2Small)) == 124439808);
  REQUIRE(SumOfLayouts(Parsed(kLlama8B)) == 8030261248);
}

TEST_CASE("layouts have no gaps, matrices first, and know what decays") {
  for (const char* text : {kGpt2Small, kLlama8B}) {
    for (const LayerLayout& layout : MakeLayouts(Parsed(text))) {
      int64_t end = 0;
      for (const ParamSpec& param : layout.params) {
        REQUIRE(param.offset == end);
        REQUIRE(param.decay == (param.shape.size() == 2));
        REQUIRE(param.decay == (param.end() <= layout.decay_size));
        end = param.end();
      }
      REQUIRE(end == layout.size);
    }
  }
}

TEST_CASE("FLOPs of a token are six per weight of a product, and attention") {
  const ModelConfig c = Parsed(kGpt2Small);
  const double products = 12 * 12.0 * 768 * 768 + 768.0 * 50257;
  REQUIRE(c.TrainFlopsPerToken(1024) == 6 * products + 6 * 12 * 768.0 * 1024);
}

TEST_CASE("what is written is read back, for both families") {
  for (const char* text : {kGpt2Small, kLlama8B}) {
    const ModelConfig config = Parsed(text);
    REQUIRE(Parsed(FormatModelConfig(config)) == config);
    REQUIRE_THAT(FormatModelConfig(config), Contains("\"torch_dtype\": \"float32\""));
  }
}

TEST_CASE("newer files keep rope_theta in rope_parameters") {
  REQUIRE(Parsed(With(kLlama8B, "\"rope_scaling\": null",
                      R"("rope_parameters": {"rope_type": "default", "rope_theta": 7000.0})"))
              .rope_theta == 7000.0);
}

TEST_CASE("a config that Atoll cannot honour is refused, naming file and field") {
  REQUIRE_THAT(WhyNot(With(kGpt2Small, "gelu_new", "relu")),
               Contains("dir/config.json: field \"activation_function\" is not \"gelu_new\""));
  REQUIRE_THAT(WhyNot(With(kLlama8B, "\"rope_scaling\": null",
                           R"("rope_scaling": {"rope_type": "longrope", "factor": 8.0})")),
               Contains("\"rope_scaling\" has rope_type \"longrope\"; Atoll implements"));
  REQUIRE_THAT(WhyNot(With(kLlama8B, "\"rope_scaling\": null", R"("rope_scaling": [])")),
               Contains("\"rope_scaling\" is not an object"));
  REQUIRE_THAT(WhyNot(With(kLlama8B, "\"rope_scaling\": null", R"("head_dim": 63)")),
               Contains("head_dim is 63; expected an even number"));
  REQUIRE_THAT(WhyNot(With(kLlama8B, "\"rope_scaling\": null", R"("num_experts": 8)")),
               Contains("\"num_experts\" is not known for llama models; Atoll reads"));
  REQUIRE_THAT(WhyNot(With(kLlama8B, "\"silu\"", "\"silu\", \"attention_bias\": true")),
               Contains("\"attention_bias\" is not false"));
  REQUIRE_THAT(
      WhyNot(With(kLlama8B, "\"llama\"", "\"mamba\"")),
      Contains(
          "\"model_type\" is \"mamba\"; Atoll trains bert, efficientnet, gemma2, gpt2, llama"));
  REQUIRE_THAT(WhyNot(With(kLlama8B, "\"hidden_size\": 4096,", "")),
               Contains("\"hidden_size\" is missing"));
}

TEST_CASE("numbers that make no model are refused") {
  REQUIRE_THAT(WhyNot(With(kLlama8B, "4096", "-4096")), Contains("\"hidden_size\" is -4096"));
  REQUIRE_THAT(WhyNot(With(kLlama8B, "4096", "4096.5")), Contains("\"hidden_size\" is 4096.5"));
  REQUIRE_THAT(WhyNot(With(kLlama8B, "4096", "\"4096\"")), Contains("\"hidden_size\" is"));
  REQUIRE_THAT(WhyNot(With(kLlama8B, "14336", "99999999999999999999")),
               Contains("\"intermediate_size\" is"));
  REQUIRE_THAT(WhyNot(With(kLlama8B, "_heads\": 8", "_heads\": 7")),
               Contains("dir/config.json: model kv_heads is 7; expected a divisor of heads 32"));
  REQUIRE_THAT(WhyNot(With(kLlama8B, "4096", "4095")), Contains("a divisor of d_model 4095"));
  REQUIRE_THAT(WhyNot(With(kLlama8B, "1e-05", "0")), Contains("norm_eps is 0"));
  REQUIRE_THAT(WhyNot(With(kLlama8B, "1e-05", "\"x\"")),
               Contains("\"rms_norm_eps\" is not a number"));
  REQUIRE_THAT(WhyNot("[]"), Contains("expected a JSON object"));
  REQUIRE_THAT(WhyNot("{"), Contains("not valid JSON"));
  REQUIRE_THAT(WhyNot(std::string(2 << 20, ' ')), Contains("larger than 1 MB"));
}

TEST_CASE("a job file's numbers make a model with the family's usual width") {
  ModelSpec spec;
  spec.hidden = 256;
  spec.layers = 8;
  spec.heads = 8;
  const auto llama = ModelConfigFromSpec(spec, 128);
  REQUIRE(llama.ok());
  REQUIRE(llama->ffn == 704);
  REQUIRE(llama->kv_heads == 8);
  REQUIRE(llama->max_positions == 128);
  spec.family = ModelFamily::kGpt2;
  REQUIRE(ModelConfigFromSpec(spec, 128)->ffn == 1024);
  spec.heads = 7;
  REQUIRE(ModelConfigFromSpec(spec, 128).status().message() ==
          "model heads is 7; expected a divisor of d_model 256");
}

}  // namespace
}  // namespace atl
