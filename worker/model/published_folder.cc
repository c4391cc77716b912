#include "worker/model/published_folder.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/file_kind.h"
#include "common/files.h"
#include "common/model/json.h"
#include "common/model/unknown_fields.h"
#include "common/paths.h"
#include "common/plural.h"

namespace atl {
namespace {

namespace fs = std::filesystem;

constexpr char kAdapterConfig[] = "adapter_config.json";
constexpr int64_t kIndexBytesMax = 16 << 20;
constexpr int64_t kConfigBytesMax = 1 << 20;
constexpr size_t kMostNamed = 5;

absl::StatusOr<bool> Exists(const std::string& dir, absl::string_view name) {
  ATOLL_ASSIGN_OR_RETURN(const auto found, FindPath(JoinPath(dir, name)));
  return found.has_value();
}

absl::StatusOr<std::string> ReadText(const std::string& path, int64_t bytes_max) {
  ATOLL_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  ATOLL_ASSIGN_OR_RETURN(std::string text, file.ReadAll(bytes_max));
  ATOLL_RETURN_IF_ERROR(CheckFileKind(path, text, "JSON"));
  return text;
}

// A field of a file of the folder that says something in a message; "" where it does not.
std::string TextOfField(const std::string& dir, absl::string_view name, const char* field) {
  const auto text = ReadText(JoinPath(dir, name), kConfigBytesMax);
  const auto json = text.ok() ? ParseJsonObject(*text, name, 8) : text.status();
  if (!json.ok() || !json->contains(field)) return "";
  const nlohmann::json& value = (*json)[field];
  return value.is_string() ? value.get<std::string>() : ValueText(value);
}

absl::Status Pickle(const std::string& dir, absl::string_view name) {
  return absl::InvalidArgumentError(absl::StrCat(
      dir, ": has ", name, " but no ", kWeightsFile,
      "; Atoll does not read PyTorch's pickles, which may run any code. Convert it where you "
      "trust it: python3 -c \"import transformers as t; d = '",
      dir,
      "'; M = getattr(t, t.AutoConfig.from_pretrained(d).architectures[0]); "
      "M.from_pretrained(d).save_pretrained(d, safe_serialization=True)\""));
}

// The parts model-00001-of-00003.safetensors of a folder without an index; "" where there are none.
std::string DescribeParts(const std::vector<std::string>& names) {
  std::set<int64_t> there;
  int64_t count = 0;
  for (const std::string& name : names) {
    absl::string_view middle = name;
    if (!absl::ConsumePrefix(&middle, "model-") || !absl::ConsumeSuffix(&middle, ".safetensors")) {
      continue;
    }
    const std::pair<absl::string_view, absl::string_view> numbers =
        absl::StrSplit(middle, absl::MaxSplits("-of-", 1));
    int64_t number = 0, of = 0;
    if (!absl::SimpleAtoi(numbers.first, &number) || !absl::SimpleAtoi(numbers.second, &of)) {
      continue;
    }
    there.insert(number);
    count = std::max(count, of);
  }
  if (there.empty()) return "";
  return absl::StrCat("has ", there.size(), " of ", CountText(count, "part"),
                      " of the weights, and no ", kWeightsIndexFile, ", which says what is in ",
                      "them: copy it from where the parts come from",
                      std::ssize(there) < count ? ", and the parts that are missing" : "");
}

// Explains what a folder has that has no safetensors.
absl::Status NoWeights(const std::string& dir) {
  ATOLL_RETURN_IF_ERROR(CheckIsModelFolder(dir));
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::string> names, RealFiles().List(dir));
  if (const std::string parts = DescribeParts(names); !parts.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(dir, ": ", parts));
  }
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    ATOLL_ASSIGN_OR_RETURN(const bool there, Exists(dir, name));
    if (there) return Pickle(dir, name);
  }
  std::vector<std::string> others;
  for (const std::string& name : names) {
    for (const char* ending : {".safetensors", ".gguf", ".h5", ".msgpack", ".ckpt", ".pt", ".pth",
                               ".bin", ".onnx", ".npz", ".ot", ".distcp", ".incomplete"}) {
      if (absl::EndsWith(name, ending)) others.push_back(name);
    }
  }
  if (others.size() > kMostNamed) others.resize(kMostNamed);
  return absl::InvalidArgumentError(absl::StrCat(
      dir, ": has neither ", kWeightsFile, " nor ", kWeightsIndexFile,
      others.empty() ? "; name the folder that has the model's weights"
                     : absl::StrCat(", but ", absl::StrJoin(others, ", "),
                                    ", which Atoll does not read as a model's weights; give it the "
                                    "safetensors of the model, under these names")));
}

}  // namespace

std::string JoinPath(const std::string& dir, absl::string_view name) {
  return (fs::path(dir) / std::string(name)).string();
}

absl::Status CheckIsModelFolder(const std::string& dir) {
  ATOLL_ASSIGN_OR_RETURN(const bool adapter, Exists(dir, kAdapterConfig));
  ATOLL_ASSIGN_OR_RETURN(const bool weights, Exists(dir, kWeightsFile));
  ATOLL_ASSIGN_OR_RETURN(const bool index, Exists(dir, kWeightsIndexFile));
  if (!adapter || weights || index) return absl::OkStatus();
  const std::string kind = TextOfField(dir, kAdapterConfig, "peft_type");
  const std::string base = TextOfField(dir, kAdapterConfig, "base_model_name_or_path");
  return absl::InvalidArgumentError(absl::StrCat(
      dir, ": is an adapter", kind.empty() ? "" : absl::StrCat(" (", kind, ")"),
      base.empty() ? "" : absl::StrCat(" of ", base),
      ", not a model: merge it into its model where you have both: python3 -c \"import peft; "
      "peft.AutoPeftModelForCausalLM.from_pretrained('",
      dir, "').merge_and_unload().save_pretrained('merged')\", and name that folder"));
}

absl::StatusOr<std::vector<std::string>> FindWeightFiles(const std::string& dir) {
  const std::string index_path = JoinPath(dir, kWeightsIndexFile);
  ATOLL_ASSIGN_OR_RETURN(const bool single, Exists(dir, kWeightsFile));
  if (single) return std::vector<std::string>{JoinPath(dir, kWeightsFile)};
  ATOLL_ASSIGN_OR_RETURN(const bool indexed, Exists(dir, kWeightsIndexFile));
  if (!indexed) {
    ATOLL_ASSIGN_OR_RETURN(const auto folder, FindPath(dir));
    if (folder && folder->is_folder) return NoWeights(dir);
    return absl::NotFoundError(absl::StrCat(dir, ": there is no such folder"));
  }
  ATOLL_ASSIGN_OR_RETURN(const std::string text, ReadText(index_path, kIndexBytesMax));
  ATOLL_ASSIGN_OR_RETURN(const nlohmann::json index, ParseJsonObject(text, index_path, 3));
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(index_path, ": field \"weight_map\" is missing or not an object"));
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    // A file of this folder only.
    if (!file.is_string() || absl::StrContains(file.get<std::string>(), '/')) {
      return absl::InvalidArgumentError(absl::StrCat(index_path, ": weight_map of \"", tensor,
                                                     "\" is not a file of this folder"));
    }
    names.insert(file.get<std::string>());
  }
  std::vector<std::string> files;
  for (const std::string& name : names) files.push_back(JoinPath(dir, name));
  return files;
}

absl::Status MissingTensors(const std::string& dir, const std::vector<std::string>& missing) {
  const bool head_alone = std::all_of(missing.begin(), missing.end(), [](const std::string& name) {
    return absl::StartsWith(name, "lm_head.") || absl::StartsWith(name, "cls.predictions.");
  });
  std::vector<std::string> named(
      missing.begin(),
      missing.begin() + static_cast<ptrdiff_t>(std::min(missing.size(), kMostNamed)));
  if (missing.size() > kMostNamed) named.emplace_back("...");
  std::string text =
      absl::StrCat(dir, ": ", CountText(std::ssize(missing), "tensor"),
                   missing.size() == 1 ? " is" : " are", " missing: ", absl::StrJoin(named, ", "));
  if (!head_alone) return absl::InvalidArgumentError(text);
  const std::string classes = TextOfField(dir, "config.json", "architectures");
  const bool masked = absl::StartsWith(missing[0], "cls.");
  absl::StrAppend(&text, ". The folder has a model without the head that ",
                  masked ? "finds masked tokens" : "finds the next token",
                  classes.empty() ? "" : absl::StrCat(" (", classes, ")"));
  absl::StrAppend(&text, masked ? ". Name the folder of a BertForMaskedLM"
                                : ". Where the head is the embedding, set tie_word_embeddings to "
                                  "true in config.json; else name the folder of the whole model");
  return absl::InvalidArgumentError(text);
}

}  // namespace atl
