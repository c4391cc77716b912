#include "cli/model/export_folder.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/model/adapters/peft.h"
#include "common/object_store/hub.h"
#include "common/paths.h"
#include "common/status.h"
#include "worker/export.h"

namespace atl::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kGenerationConfig[] = "generation_config.json";
constexpr char kTokenizerConfig[] = "tokenizer_config.json";

// Files that Hugging Face's tokenizers keep in a model's folder.
constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json",  kTokenizerConfig,    "special_tokens_map.json",
    "tokenizer.model", "vocab.json",        "merges.txt",
    "vocab.txt",       "added_tokens.json", "chat_template.jinja",
    "spiece.model"};

// Adds what transformers looks for beside a tokenizer.json: whose code reads it, and that texts
// come back as they were. A tokenizer.json that came alone says the rest by itself.
absl::Status AddTokenizerConfig(const fs::path& folder) {
  std::error_code error;
  const fs::path config = folder / kTokenizerConfig;
  if (!fs::exists(folder / "tokenizer.json", error) || fs::exists(config, error)) {
    return absl::OkStatus();
  }
  const std::string text =
      "{\n  \"clean_up_tokenization_spaces\": false,\n"
      "  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n";
  return WriteFileAtomically(RealFiles(), config.string(), std::array{AsBytes(text)});
}

bool IsExported(const std::string& name) {
  if (name == "config.json" || name == kGenerationConfig ||
      name == "model.safetensors.index.json" || name == worker::kExportJobFile ||
      name == kAdapterConfigFile || name == kAdapterWeightsFile)
    return true;
  if (absl::StartsWith(name, "model") && absl::EndsWith(name, ".safetensors")) return true;
  return std::find(std::begin(kTokenizerFiles), std::end(kTokenizerFiles), name) !=
         std::end(kTokenizerFiles);
}

absl::Status CopyInto(const fs::path& source, const fs::path& target) {
  std::error_code error;
  if (fs::equivalent(source, target, error)) return absl::OkStatus();
  fs::copy_file(source, target, fs::copy_options::overwrite_existing, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("copying ", source.string(), " to ", target.string(), ": ", error.message()));
}

}  // namespace

absl::Status CheckExportFolder(const std::string& folder) {
  ATOLL_ASSIGN_OR_RETURN(const auto there, FindPath(folder));
  if (!there) return absl::OkStatus();
  if (!there->is_folder) {
    return absl::AlreadyExistsError(absl::StrCat("--to ", folder, ": is not a folder"));
  }
  ATOLL_ASSIGN_OR_RETURN(const auto job,
                         FindPath((fs::path(folder) / worker::kExportJobFile).string()));
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::string> names, RealFiles().List(folder));
  for (const std::string& name : names) {
    ATOLL_ASSIGN_OR_RETURN(const auto found, FindPath((fs::path(folder) / name).string()));
    if (job && IsExported(name) && found && found->is_file) continue;
    return absl::AlreadyExistsError(
        absl::StrCat("--to ", folder, ": holds \"", name,
                     "\", which is of no export: name a new folder, or an earlier export"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> CopyTokenizer(const std::string& named,
                                                       const std::string& folder) {
  std::error_code error;
  ATOLL_ASSIGN_OR_RETURN(const std::string path, FetchFromHub(named, HubFiles::kTokenizer));
  const bool is_folder = fs::is_directory(path, error);
  if (!fs::exists(path, error)) {
    return absl::NotFoundError(absl::StrCat("data.tokenizer_path ", path,
                                            ": is not on this machine; copy it beside the model"));
  }
  const fs::path from = is_folder ? fs::path(path) : fs::path(path).parent_path();
  std::vector<std::string> names;
  for (const char* name : kTokenizerFiles) {
    if (fs::is_regular_file(from / name, error)) names.emplace_back(name);
  }
  const std::string own = fs::path(path).filename().string();
  const bool listed = std::find(names.begin(), names.end(), own) != names.end();
  std::vector<std::pair<fs::path, std::string>> copies;
  for (const std::string& name : names) copies.emplace_back(from / name, name);
  if (!is_folder && !listed) {  // the file has a name of its own
    names.clear();
    copies.clear();
    const char* default_name =
        fs::path(path).extension() == ".model" ? "tokenizer.model" : "tokenizer.json";
    names.emplace_back(default_name);
    copies.emplace_back(path, default_name);
  }
  for (const auto& [source, name] : copies) {
    ATOLL_RETURN_IF_ERROR(CopyInto(source, fs::path(folder) / name));
  }
  ATOLL_RETURN_IF_ERROR(AddTokenizerConfig(folder));
  return names;
}

absl::Status CopyGenerationConfig(const ModelSpec& model, const std::string& folder) {
  if (model.initial_weights_path.empty() && model.config_path.empty()) return absl::OkStatus();
  const std::string& weights = model.initial_weights_path;
  ATOLL_ASSIGN_OR_RETURN(
      const std::string local,
      FetchFromHub(weights.empty() ? model.config_path : weights, HubFiles::kConfig));
  const fs::path from = weights.empty() ? fs::path(local).parent_path() : fs::path(local);
  std::error_code error;
  if (!fs::exists(from, error)) {
    return absl::NotFoundError(
        absl::StrCat("model ", from.string(), ": is not on this machine; copy its ",
                     kGenerationConfig, ", if it has one, beside the model"));
  }
  if (!fs::is_regular_file(from / kGenerationConfig, error)) return absl::OkStatus();
  return CopyInto(from / kGenerationConfig, fs::path(folder) / kGenerationConfig);
}

}  // namespace atl::cli
