// `atoll predict` as a person types it: masks of a text and images, from folders of small models.

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/model/config.h"
#include "common/model/hugging_face.h"
#include "common/tokenizer/tokenizer.h"
#include "kernels/testing/reference/reference.h"
#include "tests/cli/command.h"
#include "worker/data/testing/image_encoders.h"
#include "worker/model/runner.h"
#include "worker/model/weights.h"

namespace atl {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kTokenizer = "tests/tokenizer/small/word_piece/tokenizer.json";
constexpr int kSide = 12;

struct Answer {
  int code = -1;
  Json json;
  std::string errors;
};

Answer Predict(std::vector<std::string> arguments, const std::string& folder) {
  arguments.insert(arguments.begin(), {"cli/atoll", "--json", "predict"});
  Command command(arguments, folder);
  const int code = command.Wait();
  return {code, Json::parse(command.rest(), nullptr, false), command.errors()};
}

// A model with weights from a seed in a folder, and what the reference backend makes of it.
class SavedModel {
 public:
  SavedModel(const std::string& folder, const ModelConfig& config, int64_t seq_len)
      : backend_(NewReferenceBackend()), model_(*Model::Create(config)) {
    runner_ = *ModelRunner::Create(*backend_, model_, {.seq_len = seq_len, .train = false});
    std::vector<LayerLayout> layouts;
    std::vector<std::vector<float>> values;
    for (const auto& layer : model_.layers()) {
      layouts.push_back(layer->layout());
      values.emplace_back(layouts.back().size);
      InitLayer(layouts.back(), config.layers, 1, values.back());
      // The likeliest stand apart so.
      for (float& value : values.back()) value *= value == 1 ? 1 : 3;
      backend_->CopyToDevice(runner_->stream(),
                             runner_->params(static_cast<int>(values.size()) - 1),
                             values.back().data());
    }
    REQUIRE(WriteModelFolder(folder, config, layouts,
                             [&](int l) -> absl::StatusOr<std::span<const float>> {
                               return values[static_cast<size_t>(l)];
                             })
                .ok());
  }

  std::vector<double> Probabilities(const std::vector<int32_t>& inputs, int64_t position,
                                    int64_t length) {
    const int64_t vocab = model_.config().vocab;
    std::vector<float> logits(static_cast<size_t>(length * vocab));
    REQUIRE(runner_->Logits(inputs, logits).ok());
    std::vector<double> row(logits.begin() + position * vocab,
                            logits.begin() + (position + 1) * vocab);
    double sum = 0;
    for (double& x : row) sum += x = std::exp(x);
    for (double& x : row) x /= sum;
    return row;
  }

 private:
  std::unique_ptr<Backend> backend_;
  const Model model_;
  std::unique_ptr<ModelRunner> runner_;
};

// That these are the `count` largest probabilities, largest first.
void CheckCandidates(const Json& candidates, size_t count, const std::vector<double>& expected) {
  REQUIRE(candidates.size() == count);
  std::vector<double> sorted = expected;
  std::sort(sorted.rbegin(), sorted.rend());
  for (size_t i = 0; i < count; ++i) {
    const auto probability = candidates[i]["probability"].get<double>();
    CHECK(probability == Approx(sorted[i]).epsilon(1e-4));
    CHECK(probability == Approx(expected.at(candidates[i]["id"].get<size_t>())).epsilon(1e-4));
  }
}

ModelConfig Bert(int64_t vocab, int64_t mask) {
  ModelConfig config;
  config.family = ModelFamily::kBert;
  config.vocab = vocab;
  config.d_model = 16;
  config.layers = 2;
  config.heads = config.kv_heads = 2;
  config.ffn = 32;
  config.max_positions = 12;
  config.token_types = 2;
  config.mask_token = mask;
  config.tied_head = true;
  REQUIRE(config.Validate().ok());
  return config;
}

TEST_CASE("predict_gives_the_likeliest_tokens_of_each_mask") {
  const std::string folder = FreshFolder(), model_folder = folder + "/model";
  const auto tokenizer = OpenTokenizer(kTokenizer);
  REQUIRE(tokenizer.ok());
  const int32_t mask = (*tokenizer)->TokenId("[MASK]").value();
  SavedModel model(model_folder, Bert((*tokenizer)->vocabulary(), mask), 12);
  fs::copy(kTokenizer, model_folder + "/tokenizer.json");
  const std::string prompt = "the [MASK] of [MASK].";
  std::vector<int32_t> ids;
  REQUIRE(Encoder(**tokenizer).EncodeFramed(prompt, &ids).ok());
  const Answer answer = Predict({model_folder, "--prompt", prompt, "--top-k", "3"}, folder);
  INFO(answer.errors);
  REQUIRE(answer.code == 0);
  const Json& masks = answer.json["masks"];
  REQUIRE(masks.size() == 2);
  for (const Json& one : masks) {
    const auto position = one["position"].get<int64_t>();
    REQUIRE(ids.at(position) == mask);
    CheckCandidates(one["candidates"], 3, model.Probabilities(ids, position, std::ssize(ids)));
    for (const Json& candidate : one["candidates"]) {
      CHECK((*tokenizer)->TokenId(candidate["text"].get<std::string>()) == candidate["id"]);
    }
  }
  CHECK(masks[0]["position"] < masks[1]["position"]);
}

TEST_CASE("predict_without_a_tokenizer_reads_bytes_where_the_vocabulary_is_bytes_and_the_mask") {
  const std::string folder = FreshFolder();
  SavedModel model(folder + "/model", Bert(257, 256), 12);
  const Answer answer = Predict({folder + "/model", "--prompt", "a[MASK]c"}, folder);
  INFO(answer.errors);
  REQUIRE(answer.code == 0);
  REQUIRE(answer.json["masks"].size() == 1);
  CHECK(answer.json["masks"][0]["position"] == 1);
  CheckCandidates(answer.json["masks"][0]["candidates"], 5,
                  model.Probabilities({'a', 256, 'c'}, 1, 3));
}

TEST_CASE("predict_refuses_a_text_without_a_mask_or_too_long_and_images_for_a_text_model") {
  const std::string folder = FreshFolder(), model_folder = folder + "/model";
  SavedModel model(model_folder, Bert(257, 256), 12);
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{model_folder, "--prompt", "abc"},
        {model_folder, "--prompt", "abcdefghijklm[MASK]"},
        {model_folder, "x.png"},
        {folder + "/nowhere", "--prompt", "[MASK]"}}) {
    const Answer answer = Predict(arguments, folder);
    CHECK(answer.code == 1);
    CHECK_FALSE(answer.errors.empty());
  }
  CHECK(Predict({model_folder, "--prompt", "[MASK]", "--top-k", "0"}, folder).code == 2);
}

ModelConfig ResNet(int channels) {
  Json json = {{"model_type", "resnet"}, {"image_size", kSide},   {"num_channels", channels},
               {"num_labels", 5},        {"depths", {1, 1}},      {"hidden_sizes", {8, 16}},
               {"embedding_size", 8},    {"layer_type", "basic"}, {"small_stem", true}};
  const auto config = ParseModelConfig(json.dump(), "config.json");
  INFO(config.status().message());
  REQUIRE(config.ok());
  return *config;
}

std::vector<int32_t> TestPixels(int channels) {
  std::vector<int32_t> pixels;
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      for (int c = 0; c < channels; ++c) pixels.push_back(TestSample(x, y, c));
    }
  }
  return pixels;
}

TEST_CASE("predict_gives_the_likeliest_classes_of_each_image_by_name") {
  const int channels = GENERATE(1, 3);
  const std::string folder = FreshFolder(), model_folder = folder + "/model";
  SavedModel model(model_folder, ResNet(channels), 1);
  std::ofstream(folder + "/one.png") << EncodePng(kSide, kSide, channels);
  std::ofstream(folder + "/two.jpg") << EncodeJpeg(40, 30, 3);
  const std::vector<double> expected = model.Probabilities(TestPixels(channels), 0, 1);

  const Answer numbers = Predict({model_folder, folder + "/one.png", folder + "/two.jpg"}, folder);
  INFO(numbers.errors);
  REQUIRE(numbers.code == 0);
  REQUIRE(numbers.json["images"].size() == 2);
  const Json& best = numbers.json["images"][0]["candidates"];
  CheckCandidates(best, 5, expected);
  CHECK(best[0]["text"] == std::to_string(best[0]["id"].get<int>()));
  CHECK(numbers.json["images"][1]["path"] == folder + "/two.jpg");

  Json config = Json::parse(std::ifstream(model_folder + "/config.json"));
  config["id2label"] = {{"0", "ant"}, {"1", "bee"}, {"2", "cat"}, {"3", "dog"}, {"4", "elk"}};
  std::ofstream(model_folder + "/config.json") << config;
  const Answer names = Predict({model_folder, folder + "/one.png", "--top-k", "2"}, folder);
  REQUIRE(names.code == 0);
  const Json& named = names.json["images"][0]["candidates"];
  CheckCandidates(named, 2, expected);
  CHECK(named[0]["text"] == config["id2label"][std::to_string(named[0]["id"].get<int>())]);

  config["id2label"].erase("3");
  std::ofstream(model_folder + "/config.json") << config;
  const Answer refused = Predict({model_folder, folder + "/one.png"}, folder);
  CHECK(refused.code == 1);
  CHECK(refused.errors.find("id2label") != std::string::npos);
}

TEST_CASE("predict_names_an_image_that_it_cannot_read") {
  const std::string folder = FreshFolder(), model_folder = folder + "/model";
  SavedModel model(model_folder, ResNet(3), 1);
  std::ofstream(folder + "/bad.png") << "no image";
  for (const char* name : {"/bad.png", "/nowhere.png"}) {
    const Answer answer = Predict({model_folder, folder + name}, folder);
    CHECK(answer.code == 1);
    CHECK(answer.errors.find(name) != std::string::npos);
  }
  CHECK(Predict({model_folder}, folder).code == 1);
}

}  // namespace
}  // namespace atl
