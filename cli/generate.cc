#include "cli/generate.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "cli/text_stream.h"
#include "common/tokenizer/tokenizer.h"
#include "kernels/cpu/cpu.h"
#include "worker/data/tokenize.h"
#include "worker/model/generate.h"
#include "worker/model/weights.h"

namespace atl::cli {
namespace {

constexpr int64_t kMaxContext = 4096;
constexpr int64_t kBytes = 256;  // vocabulary of a model without a tokenizer

// A model's folder, ready to make tokens.
struct Loaded {
  std::unique_ptr<const Tokenizer> tokenizer;  // null: tokens are bytes
  CachedCpuBackend backend;
  std::unique_ptr<Model> model;
  std::unique_ptr<ModelRunner> runner;
};

absl::StatusOr<std::unique_ptr<const Tokenizer>> LoadTokenizer(const GenerateFlags& flags,
                                                               int64_t vocabulary) {
  const std::string path = flags.tokenizer.empty() ? flags.folder : flags.tokenizer;
  auto tokenizer = OpenTokenizer(path);
  if (absl::IsNotFound(tokenizer.status()) && flags.tokenizer.empty() && vocabulary == kBytes) {
    return nullptr;
  }
  if (!tokenizer.ok()) return tokenizer.status();
  if ((*tokenizer)->vocabulary() > vocabulary) {
    return absl::InvalidArgumentError(absl::StrCat(
        flags.folder, "/config.json: vocab_size = ", vocabulary, ", but the tokenizer ", path,
        " has ", (*tokenizer)->vocabulary(), " tokens: it is of another model"));
  }
  return tokenizer;
}

absl::StatusOr<Loaded> Load(const GenerateFlags& flags) {
  Loaded loaded;
  ATOLL_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(flags.folder));
  if (config.is_images()) {
    return absl::InvalidArgumentError(absl::StrCat(
        flags.folder, "/config.json: a model of images does not continue texts; use a decoder's"));
  }
  if (!config.architecture().causal) {
    return absl::InvalidArgumentError(absl::StrCat(
        flags.folder, "/config.json: an encoder's model does not continue texts; use a decoder's"));
  }
  ATOLL_ASSIGN_OR_RETURN(loaded.tokenizer, LoadTokenizer(flags, config.vocab));
  ATOLL_ASSIGN_OR_RETURN(Model model, Model::Create(config));
  loaded.model = std::make_unique<Model>(std::move(model));
  loaded.backend = NewCachedCpuBackend(flags.threads);
  RunnerOptions options;
  options.seq_len = std::min<int64_t>(config.max_positions, kMaxContext);
  options.train = false;
  ATOLL_ASSIGN_OR_RETURN(loaded.runner,
                         ModelRunner::Create(*loaded.backend.backend, *loaded.model, options));
  std::vector<LayerLayout> layouts;
  std::vector<std::span<float>> layers;
  for (int l = 0; l < static_cast<int>(loaded.model->layers().size()); ++l) {
    layouts.push_back(loaded.model->layers()[l]->layout());
    // The CPU backend's memory is the host's.
    layers.emplace_back(static_cast<float*>(loaded.runner->params(l).data), layouts.back().size);
  }
  ATOLL_RETURN_IF_ERROR(ReadWeights(flags.folder, layouts, layers));
  return loaded;
}

absl::StatusOr<std::vector<int32_t>> EncodePrompt(const Tokenizer* tokenizer,
                                                  const std::string& prompt) {
  std::vector<int32_t> ids;
  if (tokenizer == nullptr) {
    for (const char c : prompt) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  ids.assign(tokenizer->before().begin(), tokenizer->before().end());
  Encoder encoder(*tokenizer);
  ATOLL_RETURN_IF_ERROR(encoder.Encode(prompt, &ids));
  return ids;
}

absl::Status Run(const Global& global, const GenerateFlags& flags, const std::string& prompt) {
  ATOLL_ASSIGN_OR_RETURN(const Loaded loaded, Load(flags));
  const Tokenizer* tokenizer = loaded.tokenizer.get();
  ATOLL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, EncodePrompt(tokenizer, prompt));
  SamplingOptions sampling;
  sampling.count = flags.tokens;
  sampling.temperature = flags.temperature;
  sampling.top_k = flags.top_k;
  sampling.top_p = flags.top_p;
  sampling.seed = flags.seed;
  if (tokenizer != nullptr) {
    ATOLL_ASSIGN_OR_RETURN(
        const auto end,
        EndOfText(*tokenizer, flags.tokenizer.empty() ? flags.folder : flags.tokenizer));
    if (end.has_value()) sampling.stop.push_back(*end);
  }
  std::string text;
  TextStream stream(tokenizer, ids, flags.stops, [&](const std::string& part) {
    if (global.json) {
      text += part;
    } else {
      std::cout << part << std::flush;
    }
  });
  if (!global.json) std::cout << prompt << std::flush;
  absl::Status status;
  const auto start = std::chrono::steady_clock::now();
  const auto made =
      atl::Generate(*loaded.runner, loaded.backend.cache, ids, sampling, [&](int32_t token) {
        const auto go_on = stream.Add(token);
        status = go_on.status();
        return status.ok() && *go_on;
      });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  ATOLL_RETURN_IF_ERROR(made.status());
  ATOLL_RETURN_IF_ERROR(status);
  ATOLL_RETURN_IF_ERROR(stream.Finish());
  if (!global.json) {
    std::cout << "\n";
    return absl::OkStatus();
  }
  const nlohmann::json answer = {{"prompt", prompt},
                                 {"text", text},
                                 {"prompt_tokens", ids.size()},
                                 {"tokens", made->size()},
                                 {"seconds", took.count()}};
  std::cout << answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  return absl::OkStatus();
}

}  // namespace

int Generate(const Global& global, const GenerateFlags& flags) {
  if (flags.tokens < 0 || flags.threads < 1 || flags.threads > 1024) {
    std::cerr << "atoll: --tokens must be at least 0, --threads from 1 to 1024\n";
    return 2;
  }
  std::string prompt = flags.prompt;
  if (!flags.has_prompt) {
    prompt.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
    if (!prompt.empty() && prompt.back() == '\n') prompt.pop_back();
  }
  const absl::Status status = Run(global, flags, prompt);
  if (status.ok()) return 0;
  std::cerr << "atoll: " << status.message() << "\n";
  return 1;
}

}  // namespace atl::cli
