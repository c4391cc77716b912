#include <catch2/catch.hpp>
#include <map>

#include "common/model/hugging_face.h"
#include "common/model/job_model.h"
#include "common/model/json.h"
#include "common/model/layout.h"
#include "common/model/same_model.h"
#include "common/model/testing/model_sizes.h"

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
  REQUIRE(testing::ParameterCount(Parsed(kGpt2Small)) == 124439808);
  REQUIRE(Parsed(kGpt2Small).tied_head);
  REQUIRE(testing::ParameterCount(Parsed(kLlama8B)) == 8030261248);
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
  REQUIRE(testing::TrainFlopsPerToken(c, 1024) == 6 * products + 6 * 12 * 768.0 * 1024);
}

TEST_CASE("what is written is read back, for both families") {
  for (const char* text : {kGpt2Small, kLlama8B}) {
    const ModelConfig config = Parsed(text);
    REQUIRE(Parsed(FormatModelConfig(config)) == config);
    REQUIRE_THAT(FormatModelConfig(config), Contains("\"torch_dtype\": \"float32\""));
  }
}

// Returns the config of a family with LLaMA's fields; `more` begins with a comma or is empty.
std::string Decoder(const std::string& type, int heads, const std::string& more) {
  return absl::StrCat(R"({"model_type": ")", type, R"(", "vocab_size": 64, "hidden_size": )",
                      8 * heads, R"(, "intermediate_size": 32, "num_hidden_layers": 4,
      "num_attention_heads": )",
                      heads, more, "}");
}

TEST_CASE("absent_fields_have_the_defaults_of_transformers_classes") {
  const ModelConfig mistral = Parsed(Decoder("mistral", 16, ""));
  CHECK(mistral.kv_heads == 8);
  CHECK(mistral.window.tokens == 4096);
  CHECK(mistral.max_positions == 131072);
  const ModelConfig gemma = Parsed(Decoder("gemma2", 8, ""));
  CHECK(gemma.kv_heads == 4);
  CHECK(gemma.head_dim() == 256);
  CHECK(gemma.window.tokens == 4096);
  CHECK(gemma.attention_softcap == 50);
  CHECK(gemma.logit_softcap == 30);
  const ModelConfig qwen2 = Parsed(Decoder("qwen2", 32, R"(, "use_sliding_window": true)"));
  CHECK(qwen2.kv_heads == 32);
  CHECK(qwen2.head_dim() == 8);
  CHECK(qwen2.window == AttentionWindow{.tokens = 4096, .first = 28});
  CHECK(Parsed(Decoder("qwen2", 32, "")).window.tokens == 0);
  CHECK(Parsed(Decoder("qwen3", 32, "")).head_dim() == 128);
  CHECK(Parsed(Decoder("olmo2", 4, "")).norm_eps == 1e-5);
  CHECK(Parsed(Decoder("phi3", 4, "")).norm_eps == 1e-5);
  CHECK(Parsed(Decoder("llama", 4, "")).norm_eps == 1e-6);
  CHECK(Parsed(Decoder("llama", 4, "")).kv_heads == 4);
}

TEST_CASE("null_fields_switch_off_what_absent_ones_leave_on") {
  const ModelConfig gemma = Parsed(Decoder("gemma2", 8, R"(, "attn_logit_softcapping": null,
      "final_logit_softcapping": null, "sliding_window": null)"));
  CHECK(gemma.attention_softcap == 0);
  CHECK(gemma.logit_softcap == 0);
  CHECK(gemma.window.tokens == 0);
  CHECK(Parsed(FormatModelConfig(gemma)) == gemma);
  const ModelConfig mistral =
      Parsed(Decoder("mistral", 4, R"(, "sliding_window": null, "num_key_value_heads": null)"));
  CHECK(mistral.window.tokens == 0);
  CHECK(mistral.kv_heads == 4);
}

TEST_CASE("default_that_does_not_fit_the_model_is_refused_by_the_name_of_its_field") {
  CHECK_THAT(WhyNot(Decoder("mistral", 4, "")),
             Contains("\"num_key_value_heads\" is missing, and transformers' default of 8 does not "
                      "divide num_attention_heads 4"));
  CHECK_THAT(WhyNot(Decoder("qwen3", 32, R"(, "head_dim": null)")),
             Contains("\"head_dim\" is null"));
}

TEST_CASE("max_window_layers_is_a_whole_number_from_0_on") {
  for (const char* value : {"1e300", "2.7", "-1", "\"3\""}) {
    CHECK_THAT(WhyNot(Decoder("qwen2", 32, absl::StrCat(R"(, "max_window_layers": )", value))),
               Contains("\"max_window_layers\" is ") && Contains("whole number from 0"));
  }
  CHECK(Parsed(Decoder("qwen2", 32, R"(, "max_window_layers": 0, "use_sliding_window": true)"))
            .window.first == 0);
}

TEST_CASE("fields_of_generation_of_poolers_and_of_how_a_file_was_made_are_skipped") {
  const ModelConfig plain = Parsed(Decoder("llama", 4, ""));
  CHECK(Parsed(Decoder("llama", 4, R"(, "pretraining_tp": 2, "max_sequence_length": 2048,
      "temperature": 0.6, "top_p": 0.9, "top_k": 5, "max_length": 4096, "min_length": 1,
      "repetition_penalty": 1.1, "do_sample": true, "num_beams": 4, "_num_labels": 2,
      "partial_rotary_factor": 1.0)")) == plain);
  CHECK(Parsed(Decoder("gemma2", 8, R"(, "sliding_window_size": 17)")) ==
        Parsed(Decoder("gemma2", 8, "")));
  CHECK(Parsed(Decoder("bert", 4, R"(, "max_position_embeddings": 32, "mask_token_id": 5,
      "directionality": "bidi", "pooler_fc_size": 768, "pooler_type": "first_token_transform")"))
            .mask_token == 5);
}

TEST_CASE("values_of_fields_that_change_nothing_are_read") {
  const ModelConfig plain = Parsed(Decoder("llama", 4, ""));
  for (
      const char* fields :
      {R"(, "n_special": 0, "predict_special_tokens": true, "pruned_heads": {})",
       R"(, "num_experts": 0, "clip_qkv": null, "use_qk_norm": false, "embedding_multiplier": 1.0)",
       R"(, "is_causal": true, "sliding_window": null, "rotary_pct": 1, "hidden_act": "swish")",
       R"(, "_attn_implementation_autoset": true, "unsloth_fixed": true, "eos_token_ids": 0)"}) {
    std::string warning;
    const auto config = ParseModelConfig(Decoder("llama", 4, fields), "config.json", &warning);
    INFO(fields);
    REQUIRE(config.ok());
    CHECK(*config == plain);
    CHECK(warning.empty());
  }
}

TEST_CASE("values_that_change_the_model_are_refused_by_the_name_of_their_field") {
  for (const auto& [name, value] :
       std::map<std::string, std::string>{{"num_local_experts", "8"},
                                          {"pruned_heads", R"({"1": [0]})"},
                                          {"is_encoder_decoder", "true"},
                                          {"embedding_multiplier", "12.0"},
                                          {"logits_scaling", "8.0"},
                                          {"rotary_pct", "0.25"},
                                          {"is_causal", "false"},
                                          {"clip_qkv", "8.0"},
                                          {"use_qk_norm", "true"},
                                          {"sliding_window", "4096"},
                                          {"afn", R"("gelu")"},
                                          {"quantization", R"({"bits": 4})"},
                                          {"moe_intermediate_size", "64"},
                                          {"position_embedding_type", R"("relative_key")"}}) {
    CHECK_THAT(WhyNot(Decoder("llama", 4, absl::StrCat(", \"", name, "\": ", value))),
               Contains(absl::StrCat("field \"", name, "\" is ")));
  }
}

TEST_CASE("fields_that_nothing_is_known_of_are_listed_with_their_values") {
  std::string warning;
  REQUIRE(ParseModelConfig(Decoder("llama", 4, R"(, "recipe": "r7", "made": {"by": [1]})"),
                           "dir/config.json", &warning)
              .ok());
  CHECK_THAT(warning, Contains("dir/config.json") && Contains("recipe = \"r7\"") &&
                          Contains(R"(made = {"by":[1]})"));
}

TEST_CASE("model_type_that_is_missing_is_that_of_the_class") {
  const std::string without =
      With(kGpt2Small, R"("model_type": "gpt2")", R"("architectures": ["GPT2LMHeadModel"])");
  CHECK(Parsed(without) == Parsed(kGpt2Small));
  CHECK_THAT(WhyNot(With(without, "GPT2LMHeadModel", "GPT2X")),
             Contains("\"model_type\" is missing"));
}

TEST_CASE("scaled_rotary_positions_extend_the_longest_sequence") {
  const auto longest = [](const std::string& scaling) {
    const ModelConfig config = Parsed(
        Decoder("llama", 4, R"(, "max_position_embeddings": 256, "rope_scaling": )" + scaling));
    CHECK(Parsed(FormatModelConfig(config)) == config);
    return config.LongestSequence();
  };
  CHECK(longest("null") == 256);
  CHECK(longest(R"({"type": "linear", "factor": 4.0})") == 1024);
  CHECK(longest(R"({"type": "linear", "factor": 4.0, "original_max_position_embeddings": 64})") ==
        256);
  CHECK(longest(R"({"type": "dynamic", "factor": 2.0})") == 512);
  CHECK(longest(R"({"type": "yarn", "factor": 4.0, "finetuned": true,
      "original_max_position_embeddings": 128})") == 512);
  CHECK(longest(R"({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64})") ==
        256);
  CHECK_THAT(WhyNot(Decoder("llama", 4, R"(, "rope_scaling": {"type": "dynamic", "factor": 2,
      "alpha": 1000.0})")),
             Contains("\"rope_scaling.alpha\" is not known"));
}

TEST_CASE("rotary_positions_that_are_not_implemented_are_refused_by_name") {
  const auto rope = [](const char* more) { return WhyNot(Decoder("llama", 4, more)); };
  CHECK_THAT(rope(R"(, "rope_interleaved": true)"), Contains("\"rope_interleaved\" is not false"));
  CHECK_THAT(rope(R"(, "partial_rotary_factor": 0.5)"),
             Contains("\"partial_rotary_factor\" is not 1.0"));
  CHECK_THAT(rope(R"(, "rope_parameters": {"partial_rotary_factor": 0.5})"),
             Contains("\"rope_parameters.partial_rotary_factor\" is not 1.0"));
  CHECK_THAT(rope(R"(, "rope_scaling": {"rope_type": "llama3"})"),
             Contains("\"rope_scaling.factor\" is missing"));
  CHECK_THAT(rope(R"(, "rope_scaling": {"rope_type": "llama3", "factor": 8})"),
             Contains("\"rope_scaling.low_freq_factor\" is missing"));
}

TEST_CASE("fields_of_rotary_positions_that_disagree_are_refused") {
  const std::string linear = R"(, "rope_scaling": {"type": "linear", "factor": 2.0})";
  const std::string newer = R"(, "rope_parameters": {"rope_type": "linear", "factor": 2.0,
      "rope_theta": 500.0})";
  const ModelConfig both = Parsed(Decoder("llama", 4, linear + newer));
  CHECK(both.rope_theta == 500);
  CHECK(both.rope_scaling.factor == 2);
  CHECK_THAT(WhyNot(Decoder("llama", 4, linear + With(newer, "2.0", "4.0"))),
             Contains("\"rope_parameters\" says something else than rope_scaling"));
  CHECK_THAT(WhyNot(Decoder("llama", 4, newer + R"(, "rope_theta": 10000.0)")),
             Contains("\"rope_parameters\" has rope_theta 500, and another field has 10000"));
  CHECK(Parsed(Decoder("llama", 4, R"(, "rope_parameters": {"rope_type": "default",
      "original_max_position_embeddings": 2048, "partial_rotary_factor": 1.0})"))
            .rope_scaling == RopeScaling{});
}

TEST_CASE("special_tokens_of_a_config_are_written_back_and_null_where_there_were_none") {
  const ModelConfig config = Parsed(
      Decoder("llama", 4, R"(, "bos_token_id": 1, "eos_token_id": [2, 7], "pad_token_id": -1)"));
  const auto written = nlohmann::json::parse(FormatModelConfig(config));
  CHECK(written["bos_token_id"] == 1);
  CHECK(written["eos_token_id"] == nlohmann::json({2, 7}));
  CHECK(written["pad_token_id"] == -1);
  CHECK(Parsed(FormatModelConfig(config)) == config);
  const auto without = nlohmann::json::parse(FormatModelConfig(Parsed(Decoder("phi3", 4, ""))));
  for (const char* name : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    REQUIRE(without.contains(name));
    CHECK(without[name].is_null());
  }
  CHECK_THAT(WhyNot(Decoder("llama", 4, R"(, "eos_token_id": "</s>")")),
             Contains("\"eos_token_id\" is \"</s>\"; expected a whole number"));
}

TEST_CASE("models_are_the_same_where_training_is_whatever_the_text_says_beside_it") {
  const auto spec = [](const std::string& json) {
    ModelSpec spec;
    spec.config_json = json;
    return spec;
  };
  const ModelSpec plain = spec(Decoder("llama", 4, ""));
  CHECK(IsSameModel(plain, plain));
  CHECK(IsSameModel(plain, spec(Decoder("llama", 4, R"(, "bos_token_id": 1, "pad_token_id": null,
      "initializer_range": 0.01, "torch_dtype": "float32")"))));
  CHECK_FALSE(IsSameModel(plain, spec(Decoder("llama", 4, R"(, "rope_theta": 500.0)"))));
  CHECK_FALSE(IsSameModel(plain, spec("{}")));
  ModelSpec other = plain;
  other.layers = 3;
  CHECK_FALSE(IsSameModel(plain, other));
  const std::string bert = R"(, "max_position_embeddings": 32, "mask_token_id": 3)";
  CHECK_FALSE(IsSameModel(spec(Decoder("bert", 4, bert)),
                          spec(Decoder("bert", 4, bert + R"(, "pad_token_id": 0)"))));
}

TEST_CASE("initializer_range_is_written_back_and_bounded") {
  const ModelConfig config = Parsed(Decoder("llama", 4, R"(, "initializer_range": 0.5)"));
  CHECK(config.initializer_range == 0.5);
  CHECK(Parsed(FormatModelConfig(config)) == config);
  CHECK(MakeLayouts(config)[1].initializer_range == 0.5);
  for (const char* value : {"0", "1.5", "-0.02"}) {
    CHECK_THAT(WhyNot(Decoder("llama", 4, absl::StrCat(R"(, "initializer_range": )", value))),
               Contains("initializer_range is ") && Contains("more than 0, at most 1"));
  }
}

TEST_CASE("berts_special_tokens_are_googles_unless_the_config_has_a_mask") {
  const auto bert = [](const std::string& more) {
    return Parsed(With(Decoder("bert", 4, R"(, "max_position_embeddings": 32)" + more),
                       "\"vocab_size\": 64", "\"vocab_size\": 128"));
  };
  const ModelConfig googles = bert("");
  CHECK(googles.mask_token == 103);
  CHECK(googles.special_tokens == SpecialTokens{.pad = {0}, .cls = {101}, .sep = {102}});
  CHECK(Parsed(FormatModelConfig(googles)) == googles);
  const ModelConfig own = bert(R"(, "mask_token_id": 0, "sep_token_id": 9)");
  CHECK(own.mask_token == 0);
  CHECK(own.special_tokens == SpecialTokens{.sep = {9}});
  CHECK(Parsed(FormatModelConfig(own)) == own);
}

TEST_CASE("documents_are_padded_for_encoders_with_tokens_for_it_alone") {
  const auto refusal = [](const std::string& json, DataFormat format = DataFormat::kText) {
    JobSpec spec;
    spec.model.config_json = json;
    spec.data.format = format;
    spec.data.sequence_length = 8;
    spec.data.pad_documents = format == DataFormat::kText;
    const absl::Status status = ModelConfigOfJob(spec).status();
    CHECK((status.ok() || absl::IsInvalidArgument(status)));
    return std::string(status.message());
  };
  const auto bert = [](const std::string& rest) {
    return Decoder("bert", 4, R"(, "max_position_embeddings": 8, "mask_token_id": 3)" + rest);
  };
  const std::string framed = R"(, "cls_token_id": 4, "sep_token_id": 5, "pad_token_id": 0)";
  CHECK(refusal(bert(framed)) == "");
  CHECK_THAT(refusal(bert(R"(, "sep_token_id": 5, "pad_token_id": 0)")),
             Contains("data.pad_documents = true: cls_token_id of the model is missing"));
  CHECK_THAT(refusal(bert(R"(, "cls_token_id": 4, "sep_token_id": 5)")), Contains("pad_token_id"));
  CHECK_THAT(refusal(bert(R"(, "cls_token_id": 4, "sep_token_id": 5, "pad_token_id": 5)")),
             Contains("pad_token_id of the model is 5"));
  CHECK_THAT(refusal(bert(R"(, "cls_token_id": 4, "sep_token_id": 500, "pad_token_id": 0)")),
             Contains("sep_token_id of the model is 500"));
  CHECK_THAT(refusal(Decoder("llama", 4, "")),
             Contains("data.pad_documents = true: the model is of family llama"));
  CHECK_THAT(refusal(bert(framed), DataFormat::kChat), Contains("data.format = \"chat\""));
}

TEST_CASE("documents_are_packed_by_default_for_models_of_next_tokens_alone") {
  JobSpec spec;
  spec.data.format = DataFormat::kJsonl;
  spec.data.sequence_length = 8;
  spec.model.config_json = Decoder("llama", 4, "");
  CHECK(DefaultDocuments(spec) == Documents::kMask);
  spec.data.documents = Documents::kMask;
  CHECK(ModelConfigOfJob(spec).ok());
  spec.model.config_json =
      Decoder("bert", 4, R"(, "max_position_embeddings": 8, "mask_token_id": 3)");
  CHECK(DefaultDocuments(spec) == Documents::kText);
  CHECK_THAT(std::string(ModelConfigOfJob(spec).status().message()),
             Contains("data.documents = \"mask\": the model is of family bert"));
  spec.data.format = DataFormat::kText;
  CHECK(DefaultDocuments(spec) == Documents::kText);
}

TEST_CASE("a_correcting_bias_moves_where_routers_have_one_and_train") {
  JobSpec spec;
  spec.data.sequence_length = 8;
  spec.inner.expert_bias_rate = 0.001;
  spec.model.config_json = Decoder("mixtral", 4, R"(, "num_key_value_heads": 4)");
  CHECK_THAT(std::string(ModelConfigOfJob(spec).status().message()),
             Contains("inner.expert_bias_rate = 0.001: the model is of family mixtral"));
  spec.model.config_json = Decoder(
      "dots1", 4, R"(, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2)");
  CHECK(ModelConfigOfJob(spec).status().message() == "");
  spec.adapter = {.kind = AdapterKind::kLora, .targets = {"q_proj"}};
  CHECK_THAT(std::string(ModelConfigOfJob(spec).status().message()), Contains("are frozen"));
}

TEST_CASE("dpo_is_of_pairs_and_nothing_else_is") {
  JobSpec spec;
  spec.data.format = DataFormat::kChat;
  spec.data.sequence_length = 8;
  spec.model.config_json = Decoder("llama", 4, "");
  spec.objective.kind = ObjectiveKind::kDpo;
  CHECK(DefaultDocuments(spec) == Documents::kPairs);
  spec.data.documents = Documents::kPairs;
  CHECK(ModelConfigOfJob(spec).ok());
  spec.data.documents = Documents::kMask;
  CHECK_THAT(std::string(ModelConfigOfJob(spec).status().message()),
             Contains("data.documents = \"mask\": objective.kind"));
  spec.objective.kind = ObjectiveKind::kModel;
  spec.data.documents = Documents::kPairs;
  CHECK_THAT(std::string(ModelConfigOfJob(spec).status().message()),
             Contains("data.documents = \"pairs\": objective.kind"));
}

TEST_CASE("newer files keep rope_theta in rope_parameters") {
  const std::string newer =
      With(kLlama8B, "\"rope_theta\": 500000.0, \"rope_scaling\": null",
           R"("rope_parameters": {"rope_type": "default", "rope_theta": 7000.0})");
  REQUIRE(Parsed(newer).rope_theta == 7000.0);
}

TEST_CASE("a config that Atoll cannot honour is refused, naming file and field") {
  REQUIRE_THAT(WhyNot(With(kGpt2Small, "gelu_new", "relu")),
               Contains("dir/config.json: field \"activation_function\" is \"relu\"; Atoll"));
  REQUIRE_THAT(WhyNot(With(kLlama8B, "\"rope_scaling\": null",
                           R"("rope_scaling": {"rope_type": "longrope", "factor": 8.0})")),
               Contains("\"rope_scaling\" has rope_type \"longrope\"; Atoll implements"));
  REQUIRE_THAT(WhyNot(With(kLlama8B, "\"rope_scaling\": null", R"("rope_scaling": [])")),
               Contains("\"rope_scaling\" is not an object"));
  REQUIRE_THAT(WhyNot(With(kLlama8B, "\"rope_scaling\": null", R"("head_dim": 63)")),
               Contains("head_dim is 63; expected an even number"));
  REQUIRE_THAT(WhyNot(With(kLlama8B, "\"rope_scaling\": null", R"("num_experts": 8)")),
               Contains("\"num_experts\" is 8, which changes a model"));
  REQUIRE_THAT(WhyNot(With(kLlama8B, "\"silu\"", "\"silu\", \"attention_bias\": true")),
               Contains("\"attention_bias\" is not false"));
  REQUIRE_THAT(WhyNot(With(kLlama8B, "\"llama\"", "\"mamba\"")),
               Contains("\"model_type\" is \"mamba\"; Atoll trains bert, dots1, efficientnet, "
                        "gemma2, gpt2, llama"));
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
