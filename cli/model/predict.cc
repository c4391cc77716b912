#include "cli/model/predict.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/model/model_folder.h"
#include "cli/text/output.h"
#include "common/check.h"
#include "worker/data/image_codec.h"
#include "worker/data/image_folder.h"

namespace atl::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kMask = "[MASK]";  // where a model's tokens are bytes

struct Candidate {
  int32_t id = 0;
  double probability = 0;
};

// The k likeliest by the softmax of `logits`; of equal ones the lower id first.
absl::StatusOr<std::vector<Candidate>> Likeliest(std::span<const float> logits, int64_t k) {
  if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); })) {
    return absl::FailedPreconditionError("the model's logits are not finite; it has diverged");
  }
  const double largest = *std::max_element(logits.begin(), logits.end());
  const double sum = std::accumulate(logits.begin(), logits.end(), 0.0, [&](double total, float x) {
    return total + std::exp(x - largest);
  });
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const int64_t count = std::min<int64_t>(k, std::ssize(order));
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  std::vector<Candidate> best;
  for (int64_t i = 0; i < count; ++i) {
    best.push_back({order[i], std::exp(logits[order[i]] - largest) / sum});
  }
  return best;
}

absl::StatusOr<std::vector<int32_t>> EncodeMasked(const Tokenizer* tokenizer,
                                                  const ModelConfig& config,
                                                  const std::string& prompt) {
  std::vector<int32_t> ids;
  if (tokenizer != nullptr) {
    ATOLL_RETURN_IF_ERROR(Encoder(*tokenizer).EncodeFramed(prompt, &ids));
    return ids;
  }
  const std::vector<std::string> parts = absl::StrSplit(prompt, kMask);
  for (const std::string& part : parts) {
    if (&part != &parts.front()) ids.push_back(static_cast<int32_t>(config.mask_token));
    for (const char c : part) ids.push_back(static_cast<unsigned char>(c));
  }
  return ids;
}

absl::StatusOr<std::string> TokenText(const Tokenizer* tokenizer, int32_t id) {
  if (tokenizer != nullptr) return tokenizer->Decode(std::array{id}, false);
  return id < kByteVocabulary ? std::string(1, static_cast<char>(id)) : kMask;
}

absl::StatusOr<Json> PredictMasks(const PredictFlags& flags, const ModelConfig& config,
                                  const std::string& prompt) {
  ATOLL_ASSIGN_OR_RETURN(const auto tokenizer,
                         LoadTokenizer(flags.folder, flags.tokenizer, config.vocab, 1));
  ATOLL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                         EncodeMasked(tokenizer.get(), config, prompt));
  const auto mask = static_cast<int32_t>(config.mask_token);
  if (std::find(ids.begin(), ids.end(), mask) == ids.end()) {
    ATOLL_ASSIGN_OR_RETURN(const std::string name, TokenText(tokenizer.get(), mask));
    return absl::InvalidArgumentError(
        absl::StrCat("the text has no mask; write ", name.empty() ? kMask : name,
                     " where a token is to be found (token ", mask, ", mask_token_id of ",
                     flags.folder, "/config.json)"));
  }
  ATOLL_RETURN_IF_ERROR(CheckTokens(tokenizer.get(), ids, config.vocab));
  const int64_t length = std::ssize(ids);
  if (length > config.LongestSequence()) {
    return absl::InvalidArgumentError(absl::StrCat("the text has ", length, " tokens, the model ",
                                                   config.LongestSequence(),
                                                   " positions; give less text"));
  }
  ATOLL_ASSIGN_OR_RETURN(const LoadedModel loaded,
                         LoadModel(flags.folder, /*adapter=*/"", config, length, flags.threads));
  std::vector<float> logits(static_cast<size_t>(length * config.vocab));
  ATOLL_RETURN_IF_ERROR(loaded.runner->Logits(ids, logits));
  Json masks = Json::array();
  for (int64_t i = 0; i < length; ++i) {
    if (ids[i] != mask) continue;
    const auto row = std::span(logits).subspan(i * config.vocab, config.vocab);
    ATOLL_ASSIGN_OR_RETURN(const std::vector<Candidate> best, Likeliest(row, flags.top_k));
    Json candidates = Json::array();
    for (const Candidate& one : best) {
      ATOLL_ASSIGN_OR_RETURN(const std::string text, TokenText(tokenizer.get(), one.id));
      candidates.push_back({{"text", text}, {"id", one.id}, {"probability", one.probability}});
    }
    masks.push_back({{"position", i}, {"candidates", std::move(candidates)}});
  }
  return Json{{"prompt", prompt}, {"masks", std::move(masks)}};
}

// The pixels that the model reads of a file. A model of grey gets the brightness.
absl::StatusOr<std::vector<int32_t>> ReadPixels(const std::string& path, const ImageModel& image) {
  std::vector<uint8_t> square(image.height * image.height * kImageChannels);
  ATOLL_RETURN_IF_ERROR(
      ReadImageFiles(std::array{ImageFolder::File{path, 0}}, image.height, {}, square));
  if (image.channels == kImageChannels) return std::vector<int32_t>(square.begin(), square.end());
  std::vector<int32_t> pixels;
  for (size_t i = 0; i < square.size(); i += kImageChannels) {
    pixels.push_back((299 * square[i] + 587 * square[i + 1] + 114 * square[i + 2] + 500) / 1000);
  }
  return pixels;
}

absl::StatusOr<Json> PredictClasses(const PredictFlags& flags, const ModelConfig& config) {
  const std::string file = flags.folder + "/config.json";
  ATOLL_CHECK(config.image.height == config.image.width);  // as config.json has one size
  if (config.image.channels != 1 && config.image.channels != kImageChannels) {
    return absl::UnimplementedError(absl::StrCat(file, ": num_channels = ", config.image.channels,
                                                 ", but images of files have 1 or 3"));
  }
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                         ReadClassNames(flags.folder, config.vocab));
  ATOLL_ASSIGN_OR_RETURN(const LoadedModel loaded,
                         LoadModel(flags.folder, /*adapter=*/"", config, 1, flags.threads));
  std::vector<float> logits(static_cast<size_t>(config.vocab));
  Json images = Json::array();
  for (const std::string& path : flags.images) {
    ATOLL_ASSIGN_OR_RETURN(const std::vector<int32_t> pixels, ReadPixels(path, config.image));
    ATOLL_RETURN_IF_ERROR(loaded.runner->Logits(pixels, logits));
    ATOLL_ASSIGN_OR_RETURN(const std::vector<Candidate> best, Likeliest(logits, flags.top_k));
    Json classes = Json::array();
    for (const Candidate& one : best) {
      const std::string name = names.empty() ? absl::StrCat(one.id) : names[one.id];
      classes.push_back({{"text", name}, {"id", one.id}, {"probability", one.probability}});
    }
    images.push_back({{"path", path}, {"candidates", std::move(classes)}});
  }
  return Json{{"images", std::move(images)}};
}

void PrintCandidates(const std::string& title, const Json& candidates) {
  std::cout << title << "\n";
  for (const Json& one : candidates) {
    std::cout << absl::StrFormat("  %7.4f  %s\n", one["probability"].get<double>(),
                                 one["text"].get<std::string>());
  }
}

absl::StatusOr<Json> Answer(const PredictFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(const ModelConfig config, ReadConfigAndWarn(flags.folder));
  const std::string file = flags.folder + "/config.json";
  switch (config.architecture().objective) {
    case Objective::kNextToken:
      return absl::InvalidArgumentError(absl::StrCat(
          file, ": is a decoder's model, which has no masks; `atoll generate` continues texts"));
    case Objective::kMaskedToken:
      if (!flags.images.empty()) {
        return absl::InvalidArgumentError(absl::StrCat(
            file, ": is no model of images: give --prompt instead of ", flags.images.front()));
      }
      return PredictMasks(flags, config, flags.has_prompt ? flags.prompt : ReadPrompt(std::cin));
    case Objective::kImageClass:
      if (flags.images.empty() || flags.has_prompt || !flags.tokenizer.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat(file, ": is a model of images: give image files, and no text"));
      }
      return PredictClasses(flags, config);
  }
  __builtin_unreachable();
}

}  // namespace

int Predict(const Global& global, const PredictFlags& flags) {
  if (flags.top_k < 1 || flags.threads < 1 || flags.threads > 1024) {
    return FailUsage("--top-k must be at least 1, --threads from 1 to 1024");
  }
  const absl::StatusOr<Json> answer = Answer(flags);
  if (!answer.ok()) return Fail(answer.status());
  if (global.structured) {
    std::cout << DocumentLine(answer->dump(-1, ' ', false, Json::error_handler_t::replace));
    return 0;
  }
  for (const Json& image : answer->value("images", Json::array())) {
    PrintCandidates(image["path"].get<std::string>(), image["candidates"]);
  }
  int number = 0;
  for (const Json& mask : answer->value("masks", Json::array())) {
    PrintCandidates(absl::StrCat("mask ", ++number), mask["candidates"]);
  }
  return 0;
}

}  // namespace atl::cli
