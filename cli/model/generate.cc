#include "cli/model/generate.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "cli/model/model_folder.h"
#include "cli/text/output.h"
#include "cli/text/text_stream.h"
#include "common/bounded_json.h"
#include "common/model/json.h"
#include "worker/model/generate.h"

namespace atl::cli {
namespace {

constexpr int64_t kGeneratedContextMax = 4096;
constexpr std::streamsize kEndsFileBytesMax = 1 << 20;

// A model's folder, ready to make tokens.
struct GeneratorModel {
  std::unique_ptr<const Tokenizer> tokenizer;  // null: tokens are bytes
  LoadedModel model;
  int64_t vocabulary = 0;  // of the model
};

absl::StatusOr<GeneratorModel> Load(const GenerateFlags& flags) {
  GeneratorModel loaded;
  ATOLL_ASSIGN_OR_RETURN(const ModelConfig config, ReadConfigAndWarn(flags.folder));
  if (config.is_images()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.folder,
                     "/config.json: a model of images does not continue texts; `atoll predict` "
                     "names an image's classes"));
  }
  if (!config.architecture().causal) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.folder,
                     "/config.json: an encoder's model does not continue texts; `atoll predict` "
                     "fills its masks"));
  }
  ATOLL_ASSIGN_OR_RETURN(loaded.tokenizer,
                         LoadTokenizer(flags.folder, flags.tokenizer, config.vocab));
  loaded.vocabulary = config.vocab;
  // Angles of dynamic rotary positions are those of the length that the model is run with.
  const bool dynamic = config.rope_scaling.kind == RopeScaling::Kind::kDynamic;
  const int64_t longest = dynamic ? config.max_positions : config.LongestSequence();
  ATOLL_ASSIGN_OR_RETURN(
      loaded.model, LoadModel(flags.folder, flags.adapter, config,
                              std::min<int64_t>(longest, kGeneratedContextMax), flags.threads));
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

absl::Status Written() {
  if (std::cout.good()) return absl::OkStatus();
  return absl::DataLossError("standard output: cannot be written; is the disk full?");
}

// The ids of "eos_token_id" in a file of the model's folder, one or several; none where it is not
// there: the tokenizer's own ends a text all the same.
std::vector<int32_t> EndsIn(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kEndsFileBytesMax, '\0');
  file.read(text.data(), kEndsFileBytesMax);
  text.resize(static_cast<size_t>(file.gcount()));
  const auto json = ParseBoundedJson<nlohmann::json>(text, /*max_depth=*/8);
  std::vector<int32_t> ends;
  if (!json.is_object() || !json.contains("eos_token_id")) return ends;
  const nlohmann::json& field = json["eos_token_id"];
  for (const auto& id : field.is_array() ? field : nlohmann::json::array({field})) {
    const absl::StatusOr<int64_t> token = JsonInteger(id, 0, INT32_MAX);
    if (token.ok()) ends.push_back(static_cast<int32_t>(*token));
  }
  return ends;
}

// Lists the tokens that end a text: the tokenizer's end, and what the model's folder says (of a
// chat model, the end of an answer).
absl::StatusOr<std::vector<int32_t>> Ends(const GenerateFlags& flags, const Tokenizer& tokenizer) {
  std::vector<int32_t> ends;
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::vector<int32_t> found = EndsIn(std::filesystem::path(flags.folder) / name);
    ends.insert(ends.end(), found.begin(), found.end());
  }
  ATOLL_ASSIGN_OR_RETURN(
      const auto end,
      EndOfText(tokenizer, flags.tokenizer.empty() ? flags.folder : flags.tokenizer));
  if (end.has_value()) ends.push_back(*end);
  return ends;
}

absl::Status Run(const Global& global, const GenerateFlags& flags, const std::string& prompt) {
  ATOLL_ASSIGN_OR_RETURN(const GeneratorModel loaded, Load(flags));
  const Tokenizer* tokenizer = loaded.tokenizer.get();
  ATOLL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, EncodePrompt(tokenizer, prompt));
  ATOLL_RETURN_IF_ERROR(CheckTokens(tokenizer, ids, loaded.vocabulary));
  SamplingOptions sampling;
  sampling.count = flags.tokens;
  sampling.temperature = flags.temperature;
  sampling.top_k = flags.top_k;
  sampling.top_p = flags.top_p;
  sampling.seed = flags.seed;
  if (tokenizer != nullptr) {
    ATOLL_ASSIGN_OR_RETURN(sampling.stop, Ends(flags, *tokenizer));
  }
  const int64_t context = loaded.model.runner->seq_len();
  if (std::ssize(ids) > context) {
    std::cerr << "atoll: the prompt has " << ids.size() << " tokens; the model is given the last "
              << context << "\n";
  }
  std::string text;
  TextStream stream(tokenizer, ids, flags.stops, [&](const std::string& part) {
    if (global.structured) {
      text += part;
    } else {
      std::cout << part << std::flush;
    }
  });
  if (!global.structured) std::cout << prompt << std::flush;
  absl::Status status;
  const auto start = std::chrono::steady_clock::now();
  const auto made = atl::Generate(*loaded.model.runner, loaded.model.backend.cache, ids, sampling,
                                  [&](int32_t token) {
                                    const auto go_on = stream.Add(token);
                                    status = go_on.status();
                                    return status.ok() && *go_on;
                                  });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  ATOLL_RETURN_IF_ERROR(made.status());
  ATOLL_RETURN_IF_ERROR(status);
  ATOLL_RETURN_IF_ERROR(stream.Finish());
  if (!global.structured) {
    std::cout << "\n" << std::flush;
    return Written();
  }
  const nlohmann::json answer = {{"prompt", prompt},
                                 {"text", text},
                                 {"prompt_tokens", ids.size()},
                                 {"tokens", made->size()},
                                 {"seconds", took.count()}};
  std::cout << DocumentLine(answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))
            << std::flush;
  return Written();
}

// "" for flags that are possible.
std::string WhatIsWrong(const GenerateFlags& flags) {
  if (flags.tokens < 0) return "--tokens: must be at least 0";
  if (flags.threads < 1 || flags.threads > 1024) return "--threads: must be from 1 to 1024";
  if (!(flags.temperature >= 0)) return "--temperature: must be at least 0";
  if (flags.top_k < 0) return "--top-k: must be at least 0";
  if (!(flags.top_p > 0 && flags.top_p <= 1)) return "--top-p: must be above 0 and at most 1";
  if (std::find(flags.stops.begin(), flags.stops.end(), "") != flags.stops.end()) {
    return "--stop: must not be empty";
  }
  return "";
}

}  // namespace

int Generate(const Global& global, const GenerateFlags& flags) {
  if (const std::string wrong = WhatIsWrong(flags); !wrong.empty()) return FailUsage(wrong);
  return ExitCode(Run(global, flags, flags.has_prompt ? flags.prompt : ReadPrompt(std::cin)));
}

}  // namespace atl::cli
