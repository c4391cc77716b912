#include "cli/inspect_job.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "worker/model/weights.h"

namespace atl::cli {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

constexpr char kConfig[] =
    R"({"model_type": "gpt2", "vocab_size": 256, "n_embd": 8, "n_head": 2, "n_layer": 1,)"
    R"( "n_positions": 16, "tie_word_embeddings": true})";

// A job with data and the weights of a tiny model.
class Fixture {
 public:
  Fixture() {
    std::string name = (fs::temp_directory_path() / "atoll_inspect_test_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
    Write("base/config.json", kConfig);
    Write("text.txt", std::string(400, 'a'));
    const auto config = ReadModelConfig(at("base"));
    INFO(config.status().message());
    REQUIRE(config.ok());
    std::vector<LayerLayout> layouts = MakeLayouts(*config);
    std::vector<float> values;
    REQUIRE(WriteModelFolder(at("base"), *config, layouts,
                             [&](int layer) -> absl::StatusOr<std::span<const float>> {
                               values.assign(static_cast<size_t>(layouts[layer].size), 0.5f);
                               return std::span<const float>(values);
                             })
                .ok());
    spec.model.initial_weights_path = at("base");
    spec.data.path = at("text.txt");
    spec.data.sequence_length = 8;
  }
  ~Fixture() { fs::remove_all(path_); }

  std::string at(const std::string& name) const { return (path_ / name).string(); }
  void Write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(at(name)).parent_path());
    std::ofstream(at(name)) << text;
  }
  Inspection Inspect() const {
    const auto found = InspectJob(spec);
    INFO(found.status().message());
    REQUIRE(found.ok());
    return *found;
  }
  std::string Found() const { return Inspect().text; }
  std::string Refusal() const {
    const auto found = InspectJob(spec);
    REQUIRE_FALSE(found.ok());
    return std::string(found.status().message());
  }

  JobSpec spec;

 private:
  fs::path path_;
};

TEST_CASE("weights_and_data_that_are_here_are_described") {
  Fixture fixture;
  CHECK_THAT(fixture.Found(), StartsWith("weights: 16 tensors of ") && Contains("\ndata: 1 file "));
  CHECK(ValidText(fixture.Inspect()) == "valid");
}

TEST_CASE("weights_that_do_not_fit_the_config_are_refused") {
  Fixture fixture;
  std::string wider = kConfig;
  wider.replace(wider.find("\"n_layer\": 1"), 12, "\"n_layer\": 2");
  fixture.Write("base/config.json", wider);
  CHECK_THAT(fixture.Refusal(),
             StartsWith("model.initial_weights_path: ") && Contains("are missing: "));
}

TEST_CASE("folder_without_safetensors_is_refused_with_the_conversion_of_pickles") {
  Fixture fixture;
  fs::remove(fixture.at("base/model.safetensors"));
  CHECK_THAT(fixture.Refusal(), Contains("model.safetensors"));
  fixture.Write("base/pytorch_model.bin", "x");
  CHECK_THAT(fixture.Refusal(), Contains("pytorch_model.bin") && Contains("architectures[0]"));
}

TEST_CASE("weights_and_data_of_another_machine_are_named_as_not_looked_at") {
  Fixture fixture;
  fixture.Write("config.json", kConfig);
  fixture.spec.model.config_path = fixture.at("config.json");
  fixture.spec.model.initial_weights_path = fixture.at("elsewhere");
  CHECK_THAT(fixture.Found(), StartsWith("weights: not looked at: "));
  fixture.spec.data.validation_path = fixture.at("far.txt");
  CHECK(ValidText(fixture.Inspect()) ==
        "valid; not looked at: " + fixture.at("elsewhere") + ", " + fixture.at("far.txt"));
}

TEST_CASE("unknown_field_of_a_config_is_refused_by_name") {
  Fixture fixture;
  std::string odd = kConfig;
  odd.replace(odd.find("\"n_layer\""), 0, "\"n_experts\": 8, ");
  fixture.Write("base/config.json", odd);
  CHECK_THAT(fixture.Refusal(), Contains("n_experts"));
}

TEST_CASE("images_of_another_size_than_the_models_are_refused_as_a_worker_does") {
  Fixture fixture;
  fixture.Write("cifar.bin", std::string(4 * 3073, '\1'));
  JobSpec& spec = fixture.spec;
  spec.model = {};
  spec.data = {};
  spec.data.format = DataFormat::kCifar10;
  spec.data.path = fixture.at("cifar.bin");
  spec.data.sequence_length = 1;
  spec.model.config_json = R"({"model_type": "resnet", "image_size": 32, "num_labels": 10})";
  CHECK_THAT(fixture.Found(), Contains("4 images of 32 x 32 with 3 channels"));
  spec.model.config_json = R"({"model_type": "resnet", "image_size": 28, "num_labels": 10})";
  CHECK_THAT(
      fixture.Refusal(),
      Contains("data.path: its images are 32 x 32 with 3 channels; the model's are 28 x 28"));
}

TEST_CASE("special_tokens_of_the_tokenizer_that_are_not_the_models_are_refused") {
  Fixture fixture;
  fixture.Write("tokenizer.json", R"({"version": "1.0", "normalizer": null, "pre_tokenizer": null,
      "post_processor": null, "decoder": null,
      "added_tokens": [{"id": 1, "content": "[MASK]", "single_word": false, "lstrip": false,
                        "rstrip": false, "normalized": false, "special": true},
                       {"id": 4, "content": "[SEP]", "special": true}],
      "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 1000,
                "vocab": {"[UNK]": 0, "[MASK]": 1, "a": 2, "##a": 3, "[SEP]": 4}}})");
  JobSpec& spec = fixture.spec;
  spec.data.tokenizer_path = fixture.at("tokenizer.json");
  const auto use = [&](int mask, int sep) {
    spec.model = {};
    spec.model.config_json = absl::StrCat(
        R"({"model_type": "bert", "vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 1,
            "num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 16,
            "cls_token_id": 9, "pad_token_id": 8, "mask_token_id": )",
        mask, R"(, "sep_token_id": )", sep, "}");
  };
  use(5, 6);
  CHECK_THAT(fixture.Refusal(),
             StartsWith("data.tokenizer_path ") &&
                 Contains("its [MASK] is token 1, and mask_token_id of the model is 5"));
  use(1, 6);
  CHECK_THAT(fixture.Found(), Contains("data: "));
  spec.data.pad_documents = true;
  spec.data.validation_path = spec.data.path;
  CHECK_THAT(fixture.Refusal(),
             Contains("its [SEP] is token 4, and sep_token_id of the model is 6"));
  use(1, 4);
  CHECK_THAT(fixture.Found(), Contains("1 document, 1 of them cut at 6 tokens"));
}

TEST_CASE("tokenizer_without_a_chat_template_is_a_warning") {
  Fixture fixture;
  fixture.Write("base/tokenizer.json", R"({"model": {"type": "WordLevel", "vocab": {"a": 0},
                                           "unk_token": "a"}})");
  fixture.Write("chat.jsonl", R"({"prompt": "a", "answer": "a"})");
  fixture.spec.data.format = DataFormat::kChat;
  fixture.spec.data.path = fixture.at("chat.jsonl");
  fixture.spec.data.tokenizer_path = fixture.at("base");
  fixture.spec.data.sequence_length = 1;
  fixture.spec.data.validation_fraction = 0;
  const std::vector<std::string> warnings = fixture.Inspect().warnings;
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], StartsWith(fixture.at("base") + ": has no chat_template"));
}

TEST_CASE("data_that_lack_a_sequence_are_refused") {
  Fixture fixture;
  fixture.Write("text.txt", "eight by");
  CHECK_THAT(fixture.Refusal(), Contains("8 tokens to train on, less than one sequence"));
}

}  // namespace
}  // namespace atl::cli
