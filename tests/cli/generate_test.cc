// `atoll tokenize` and `atoll generate` as a person types them: text to shards, a model trained on
// them here, and text from its folder.

#include "worker/model/generate.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/model/config.h"
#include "common/tokenizer/tokenizer.h"
#include "kernels/cpu/cpu.h"
#include "tests/cli/command.h"
#include "worker/data/dataset.h"
#include "worker/model/optimizer.h"
#include "worker/model/weights.h"

namespace atl {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kTokenizer = "tests/tokenizer/small/gpt2/tokenizer.json";
constexpr int64_t kContext = 48;

Json Run(std::vector<std::string> arguments, const std::string& folder) {
  arguments.insert(arguments.begin(), {"cli/atoll", "--json"});
  Command command(arguments, folder);
  const int code = command.Wait();
  INFO(command.errors());
  REQUIRE(code == 0);
  const Json answer = Json::parse(command.rest(), nullptr, false);
  REQUIRE(answer.is_object());
  return answer;
}

struct Trained {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
  std::unique_ptr<ModelRunner> runner;

  explicit Trained(const ModelConfig& config) : backend(NewCpuBackend(1)) {
    model = std::make_unique<Model>(*Model::Create(config));
    RunnerOptions options;
    options.micro_batch_rows = 4;
    options.seq_len = kContext;
    runner = *ModelRunner::Create(*backend, *model, options);
    for (int l = 0; l < Layers(); ++l) {
      InitLayer(model->layers()[static_cast<size_t>(l)]->layout(), config.layers, 1, Values(l));
    }
  }
  int Layers() const { return static_cast<int>(model->layers().size()); }
  std::span<float> Values(int l) const {  // the CPU backend's memory is the host's
    return {static_cast<float*>(runner->params(l).data),
            static_cast<size_t>(runner->params(l).size())};
  }
};

// A sentence that the model learns by heart.
constexpr const char* kText = "The first of the words is one, and the other words are two. ";

// A folder with a model that was trained on shards of kText, and its tokenizer.
std::unique_ptr<Trained> TrainFolder(const std::string& folder) {
  std::ofstream text(folder + "/t.txt");
  for (int i = 0; i < 300; ++i) text << kText;
  text.close();
  const Json made =
      Run({"tokenize", folder + "/t.txt", "--tokenizer", kTokenizer, "--to", folder + "/shards"},
          folder);
  REQUIRE(made["tokens"].get<int64_t>() > 2000);
  const auto tokenizer = OpenTokenizer(kTokenizer);
  ModelConfig config;
  config.family = ModelFamily::kLlama;
  config.vocab = (*tokenizer)->vocabulary();
  config.d_model = 32;
  config.layers = 2;
  config.heads = 2;
  config.kv_heads = 2;
  config.ffn = 64;
  config.max_positions = kContext;
  auto trained = std::make_unique<Trained>(config);
  DataSpec spec;
  spec.format = DataFormat::kShards;
  spec.path = folder + "/shards";
  spec.sequence_length = kContext;
  spec.validation_fraction = 0;
  const auto data = Dataset::Open(spec, config.vocab);
  REQUIRE(data.ok());
  const auto optimizer = Optimizer::Create(*trained->backend, trained->runner->stream(),
                                           trained->runner->layers(), {});
  REQUIRE(optimizer.ok());
  std::vector<int32_t> rows(4 * (kContext + 1));
  double loss = 0;
  for (int64_t step = 0; step < 200; ++step) {
    REQUIRE(data->ReadTrain(step * 4, rows).ok());
    loss = trained->runner->Train(rows, 4)->mean();
    REQUIRE((*optimizer)->Step(step + 1, 3e-3f).ok());
  }
  CHECK(loss < 0.2);
  std::vector<LayerLayout> layouts;
  for (const auto& layer : trained->model->layers()) layouts.push_back(layer->layout());
  REQUIRE(WriteModelFolder(
              folder + "/model", config, layouts,
              [&](int l) -> absl::StatusOr<std::span<const float>> { return trained->Values(l); })
              .ok());
  fs::copy(kTokenizer, folder + "/model/tokenizer.json");
  return trained;
}

TEST_CASE("generate_goes_on_as_the_model_without_a_cache_does_and_repeats_by_seed") {
  const std::string folder = FreshFolder();
  const auto trained = TrainFolder(folder);
  const std::string model = folder + "/model";
  // Longer than the context, so that the cache forgets meanwhile.
  const Json likeliest =
      Run({"generate", model, "--prompt", "The first of", "--temperature", "0", "--tokens", "30"},
          folder);
  const auto tokenizer = OpenTokenizer(model);
  std::vector<int32_t> prompt;
  REQUIRE(Encoder(**tokenizer).Encode("The first of", &prompt).ok());
  const auto expected =
      Generate(*trained->runner, nullptr, prompt, {.count = 30, .temperature = 0});
  REQUIRE(expected.ok());
  CHECK(likeliest["text"] == *(*tokenizer)->Decode(*expected, true));
  CHECK(likeliest["tokens"] == 30);
  CHECK(likeliest["prompt_tokens"] == prompt.size());
  CHECK(likeliest["text"].get<std::string>().starts_with(" the words is one"));

  const auto sampled = [&](const char* seed) {
    return Run({"generate", model, "--prompt", "The", "--temperature", "2", "--top-k", "50",
                "--tokens", "90", "--seed", seed},
               folder)["text"];
  };
  const Json five = sampled("5");
  CHECK(sampled("5") == five);
  CHECK(sampled("6") != five);
  const Json stopped = Run({"generate", model, "--prompt", "The first of", "--temperature", "0",
                            "--tokens", "30", "--stop", " one"},
                           folder);
  CHECK(stopped["text"] == " the words is");
}

TEST_CASE("generate_samples_within_top_k_and_top_p_as_the_model_without_a_cache_does") {
  const std::string folder = FreshFolder();
  const auto trained = TrainFolder(folder);
  const auto tokenizer = OpenTokenizer(folder + "/model");
  std::vector<int32_t> prompt;
  REQUIRE(Encoder(**tokenizer).Encode("The first of", &prompt).ok());
  const auto generated = [&](const char* flag, const char* value) {
    return Run({"generate", folder + "/model", "--prompt", "The first of", "--temperature", "3",
                "--tokens", "30", "--seed", "5", flag, value},
               folder)["text"]
        .get<std::string>();
  };
  const auto expected = [&](SamplingOptions options) {
    options.count = 30;
    options.temperature = 3;
    options.seed = 5;
    return *(*tokenizer)->Decode(*Generate(*trained->runner, nullptr, prompt, options), true);
  };
  const std::string likeliest = expected({.top_k = 1});
  CHECK(likeliest.starts_with(" the words is one"));
  CHECK(generated("--top-k", "1") == likeliest);
  CHECK(generated("--top-p", "0.000001") == likeliest);
  CHECK(generated("--top-p", "0.6") == expected({.top_p = 0.6}));
  CHECK(generated("--top-p", "0.6") != generated("--top-p", "1"));
  CHECK(generated("--top-k", "4") == expected({.top_k = 4}));
  CHECK(generated("--top-k", "4") != likeliest);
}

TEST_CASE("generate_reads_standard_input_and_writes_while_it_generates") {
  const std::string folder = FreshFolder();
  const auto trained = TrainFolder(folder);
  const std::string input = folder + "/prompt.txt";
  std::ofstream(input) << "The first of\n";
  const std::vector<std::string> arguments = {"cli/atoll",     "generate", folder + "/model",
                                              "--temperature", "0",        "--tokens"};
  const auto with = [&](std::initializer_list<std::string> more) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), more);
    return all;
  };
  const std::string expected = "The first of the words is one";

  Command endless(with({"1000000000"}), folder, input);
  CHECK(endless.WaitForBytes(expected.size()).starts_with(expected));
  CHECK(endless.IsRunning());

  Command stopped(with({"30", "--stop", "nowhere", "--stop", "s one"}), folder, input);
  CHECK(stopped.Wait() == 0);
  CHECK(stopped.rest() == "The first of the words i\n");
}

TEST_CASE("generate_without_a_tokenizer_or_with_another_models_says_so") {
  const std::string folder = FreshFolder();
  const auto trained = TrainFolder(folder);
  const auto fails = [&](const std::string& model, const std::string& tokenizer) {
    std::vector<std::string> arguments = {"cli/atoll", "generate", model, "--prompt", "x"};
    if (!tokenizer.empty()) arguments.insert(arguments.end(), {"--tokenizer", tokenizer});
    Command command(arguments, folder);
    CHECK(command.Wait() == 1);
    CHECK(command.rest().empty());
    return command.errors();
  };
  fs::copy(folder + "/model", folder + "/bare");
  fs::remove(folder + "/bare/tokenizer.json");
  CHECK(fails(folder + "/bare", "").find("tokenizer.json") != std::string::npos);
  const std::string other = "tests/tokenizer/small/unigram/tokenizer.json";
  if ((*OpenTokenizer(other))->vocabulary() > (*OpenTokenizer(kTokenizer))->vocabulary()) {
    CHECK(fails(folder + "/model", other).find(other) != std::string::npos);
  }
  CHECK(fails(folder + "/nowhere", "").find("nowhere") != std::string::npos);
}

TEST_CASE("generate_names_a_token_of_the_tokenizer_beyond_the_models_vocabulary") {
  const std::string folder = FreshFolder();
  const auto trained = TrainFolder(folder);
  std::ifstream file(kTokenizer);
  Json tokenizer = Json::parse(file);
  const int64_t beyond = (*OpenTokenizer(kTokenizer))->vocabulary();
  tokenizer["added_tokens"].push_back({{"id", beyond}, {"content", "<pad>"}, {"special", true}});
  std::ofstream(folder + "/model/tokenizer.json") << tokenizer;
  const auto run = [&](const std::string& prompt, int exit_code) {
    Command command(
        {"cli/atoll", "generate", folder + "/model", "--prompt", prompt, "--tokens", "2"}, folder);
    CHECK(command.Wait() == exit_code);
    return command.errors();
  };
  const std::string named = absl::StrCat("\"<pad>\" (token ", beyond, ")");
  CHECK(run("The first of", 0).find(named) != std::string::npos);
  CHECK(run("The <pad> first", 1).find(absl::StrCat("the text has \"<pad>\", token ", beyond)) !=
        std::string::npos);
}

TEST_CASE("generate_names_the_flag_that_is_impossible") {
  const std::string folder = FreshFolder();
  const std::vector<std::pair<const char*, const char*>> wrong = {
      {"--temperature", "-1"}, {"--top-k", "-1"},  {"--top-p", "0"}, {"--top-p", "1.5"},
      {"--tokens", "-1"},      {"--threads", "0"}, {"--stop", ""}};
  for (const auto& [flag, value] : wrong) {
    Command command({"cli/atoll", "generate", folder, "--prompt", "x", flag, value}, folder);
    CHECK(command.Wait() == 2);
    CHECK(command.rest().empty());
    CHECK(command.errors().find(flag) != std::string::npos);
  }
}

TEST_CASE("generate_ends_where_the_models_folder_says_so") {
  const std::string folder = FreshFolder();
  const auto trained = TrainFolder(folder);
  const std::string model = folder + "/model";
  const auto made = [&] {
    return Run({"generate", model, "--prompt", "The first of", "--temperature", "0", "--tokens",
                "30"},
               folder)["text"]
        .get<std::string>();
  };
  const std::string whole = made();
  std::vector<int32_t> ids;
  const auto tokenizer = OpenTokenizer(model);
  REQUIRE(Encoder(**tokenizer).Encode(whole, &ids).ok());
  std::ofstream(model + "/generation_config.json")
      << Json{{"eos_token_id", {ids[3], 1 << 30}}}.dump();
  const std::string cut = made();
  CHECK(cut.size() < whole.size());
  CHECK(whole.starts_with(cut));
}

TEST_CASE("tokenize_writes_to_local_folders_only") {
  const std::string folder = FreshFolder();
  std::ofstream(folder + "/a[1].txt") << kText;  // a name, not a pattern
  Command command({"cli/atoll", "tokenize", folder + "/a[1].txt", "--tokenizer", kTokenizer, "--to",
                   "s3://bucket/shards"},
                  folder);
  CHECK(command.Wait() == 1);
  CHECK(command.errors().find("--to") != std::string::npos);
  Run({"tokenize", folder + "/a[1].txt", "--tokenizer", kTokenizer, "--to", folder + "/shards"},
      folder);
}

TEST_CASE("an_interrupted_tokenize_leaves_nothing_behind") {
  const std::string folder = FreshFolder();
  {
    std::ofstream text(folder + "/t.txt");
    std::string block;
    for (int i = 0; i < 20000; ++i) block += kText;
    for (int i = 0; i < 100; ++i) text << block << i << "\n";  // 120 MB
  }
  const std::string to = folder + "/shards";
  Command command({"cli/atoll", "tokenize", folder + "/t.txt", "--tokenizer", kTokenizer, "--to",
                   to, "--shard-tokens", "100000"},
                  folder);
  while (!fs::exists(to + "/tokens-00002.bin")) {
    REQUIRE_FALSE(fs::exists(to + "/index.json"));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  command.Interrupt();
  CHECK(command.Wait() == 1);
  CHECK(command.errors().find("interrupted") != std::string::npos);
  CHECK_FALSE(fs::exists(to));
  fs::remove(folder + "/t.txt");
}

}  // namespace
}  // namespace atl
