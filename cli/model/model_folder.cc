#include "cli/model/model_folder.h"

#include <algorithm>
#include <array>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/bounded_json.h"
#include "common/files.h"
#include "common/plural.h"
#include "worker/model/weights.h"

namespace atl::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kConfigBytesMax = int64_t{16} << 20;
constexpr int kConfigDepthMax = 8;  // as ReadModelConfig
// Beyond a model's vocabulary, that a tool added to a tokenizer without the model's table.
constexpr int64_t kAddedTokensMax = 64;
// Beyond bytes, of a model without a tokenizer.
constexpr int64_t kByteTokensMoreMax = 256;

std::string ConfigPath(const std::string& folder) { return folder + "/config.json"; }

absl::StatusOr<Json> ReadConfig(const std::string& folder) {
  ATOLL_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(ConfigPath(folder)));
  ATOLL_ASSIGN_OR_RETURN(const std::string text, file.ReadAll(kConfigBytesMax));
  Json json = ParseBoundedJson<Json>(text, kConfigDepthMax);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(ConfigPath(folder), ": is no JSON object, or nested more than ",
                     kConfigDepthMax, " deep; export the model again"));
  }
  return json;
}

}  // namespace

absl::StatusOr<ModelConfig> ReadConfigAndWarn(const std::string& folder) {
  std::string warning;
  auto config = ReadModelConfig(folder, &warning);
  if (!warning.empty()) std::cerr << "atoll: " << warning << "\n";
  return config;
}

absl::StatusOr<LoadedModel> LoadModel(const std::string& folder, const std::string& adapter,
                                      ModelConfig config, int64_t seq_len, int threads) {
  LoadedModel loaded;
  if (!adapter.empty()) {
    ATOLL_ASSIGN_OR_RETURN(const AdapterSpec spec, ReadAdapterConfig(adapter));
    auto with = WithAdapter(std::move(config), spec);
    if (!with.ok()) return Annotate(with.status(), adapter);
    config = *std::move(with);
  }
  ATOLL_ASSIGN_OR_RETURN(Model model, Model::Create(config));
  loaded.model = std::make_unique<Model>(std::move(model));
  loaded.backend = NewCachedCpuBackend(threads);
  RunnerOptions options;
  options.seq_len = seq_len;
  options.train = false;
  ATOLL_ASSIGN_OR_RETURN(loaded.runner,
                         ModelRunner::Create(*loaded.backend.backend, *loaded.model, options));
  std::vector<LayerLayout> layouts, base;
  std::vector<std::span<float>> layers, frozen;
  for (int l = 0; l < static_cast<int>(loaded.model->layers().size()); ++l) {
    layouts.push_back(loaded.model->layers()[l]->layout());
    base.push_back(FrozenLayout(layouts.back()));
    // The CPU backend's memory is the host's.
    layers.emplace_back(static_cast<float*>(loaded.runner->params(l).data), layouts.back().size);
    frozen.emplace_back(static_cast<float*>(loaded.runner->layer(l).frozen().data),
                        base.back().size);
  }
  if (adapter.empty()) {
    ATOLL_RETURN_IF_ERROR(ReadWeights(folder, layouts, layers));
    return loaded;
  }
  ATOLL_RETURN_IF_ERROR(ReadWeights(folder, base, frozen));
  ATOLL_RETURN_IF_ERROR(ReadAdapter(adapter, layouts, layers));
  return loaded;
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> LoadTokenizer(const std::string& folder,
                                                               const std::string& path,
                                                               int64_t vocabulary,
                                                               int64_t other_tokens) {
  const std::string& from = path.empty() ? folder : path;
  auto tokenizer = OpenTokenizer(from);
  const int64_t more = vocabulary - kByteVocabulary - other_tokens;
  if (absl::IsNotFound(tokenizer.status()) && path.empty() && more >= 0 &&
      more <= (other_tokens == 0 ? kByteTokensMoreMax : 0)) {
    if (more > 0) {
      std::cerr << "atoll: " << folder
                << ": has no tokenizer: tokens below 256 are taken for bytes, "
                << "and the model's " << more << " others for no text\n";
    }
    return nullptr;
  }
  if (!tokenizer.ok()) return tokenizer.status();
  if (!(*tokenizer)->warning().empty()) std::cerr << "atoll: " << (*tokenizer)->warning() << "\n";
  const int64_t beyond = (*tokenizer)->vocabulary() - vocabulary;
  if (beyond <= 0) return tokenizer;
  constexpr int64_t kMostNamed = 3;
  std::string names;
  for (int64_t i = 0; i < std::min(beyond, kMostNamed); ++i) {
    const auto id = static_cast<int32_t>(vocabulary + i);
    const std::array<int32_t, 1> one = {id};
    ATOLL_ASSIGN_OR_RETURN(const std::string text, (*tokenizer)->Decode(one, false));
    absl::StrAppend(&names, i == 0 ? "" : ", ", "\"", text, "\" (token ", id, ")");
  }
  const std::string problem = absl::StrCat(
      ConfigPath(folder), ": vocab_size = ", vocabulary, ", and the tokenizer ", from, " has ",
      CountText(beyond, "token"), " beyond it: ", names, beyond > kMostNamed ? ", ..." : "");
  if (beyond > kAddedTokensMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(problem, ": it is of another model; name the model's own"));
  }
  std::cerr << "atoll: " << problem << "; the model knows none of them\n";
  return tokenizer;
}

absl::Status CheckTokens(const Tokenizer* tokenizer, std::span<const int32_t> ids,
                         int64_t vocabulary) {
  for (const int32_t id : ids) {
    if (id < vocabulary || tokenizer == nullptr) continue;
    const std::array<int32_t, 1> one = {id};
    ATOLL_ASSIGN_OR_RETURN(const std::string text, tokenizer->Decode(one, false));
    return absl::InvalidArgumentError(
        absl::StrCat("the text has \"", text, "\", token ", id, " of the tokenizer; the model has ",
                     vocabulary, " tokens, up to ", vocabulary - 1, ": leave it out of the text"));
  }
  return absl::OkStatus();
}

std::string ReadPrompt(std::istream& in) {
  std::string prompt{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (!prompt.empty() && prompt.back() == '\n') prompt.pop_back();
  return prompt;
}

absl::StatusOr<std::vector<std::string>> ReadClassNames(const std::string& folder,
                                                        int64_t classes) {
  ATOLL_ASSIGN_OR_RETURN(const Json json, ReadConfig(folder));
  const auto labels = json.find("id2label");
  if (labels == json.end() || labels->is_null()) return std::vector<std::string>();
  bool fits = labels->is_object() && static_cast<int64_t>(labels->size()) == classes;
  // `classes` is the file's own num_labels, which may be far more than the names it lists.
  std::vector<std::string> names(fits ? static_cast<size_t>(classes) : 0);
  std::vector<bool> named(names.size());
  for (auto it = labels->begin(); fits && it != labels->end(); ++it) {
    int64_t number = -1;
    fits = it->is_string() && absl::SimpleAtoi(it.key(), &number) && number >= 0 &&
           number < classes && !named[static_cast<size_t>(number)];
    if (!fits) break;
    named[static_cast<size_t>(number)] = true;
    names[static_cast<size_t>(number)] = it->get<std::string>();
  }
  if (fits) return names;
  return absl::InvalidArgumentError(
      absl::StrCat(ConfigPath(folder), ": id2label must have a name for each number from 0 to ",
                   classes - 1, ", because of num_labels; correct it or leave it out"));
}

absl::Status WriteClassNames(const std::string& folder, std::vector<std::string> names) {
  ATOLL_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(folder));
  while (std::ssize(names) < config.vocab) names.push_back(absl::StrCat("LABEL_", names.size()));
  ATOLL_ASSIGN_OR_RETURN(Json json, ReadConfig(folder));
  Json by_id = Json::object(), by_name = Json::object();
  for (size_t i = 0; i < names.size(); ++i) {
    by_id[absl::StrCat(i)] = names[i];
    by_name[names[i]] = i;
  }
  json["id2label"] = std::move(by_id);
  json["label2id"] = std::move(by_name);
  const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  return WriteFileAtomically(RealFiles(), ConfigPath(folder), std::array{AsBytes(text)});
}

}  // namespace atl::cli
