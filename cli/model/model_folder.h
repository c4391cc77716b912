// A model's folder (config.json, safetensors, tokenizer), loaded to run on the CPU.

#ifndef ATOLL_CLI_MODEL_MODEL_FOLDER_H_
#define ATOLL_CLI_MODEL_MODEL_FOLDER_H_

#include <istream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/tokenizer/tokenizer.h"
#include "kernels/cpu/cpu.h"
#include "worker/model/runner.h"

namespace atl::cli {

inline constexpr int64_t kByteVocabulary = 256;  // of tokens that are a text's bytes

struct LoadedModel {
  CachedCpuBackend backend;
  std::unique_ptr<Model> model;
  std::unique_ptr<ModelRunner> runner;
};

// The folder's config.json; what it has that is left out is a warning on standard error.
absl::StatusOr<ModelConfig> ReadConfigAndWarn(const std::string& folder);

// Takes memory for sequences of up to `seq_len` tokens. `adapter`: folder of an adapter that the
// model is run with, in PEFT's form; "": none.
absl::StatusOr<LoadedModel> LoadModel(const std::string& folder, const std::string& adapter,
                                      ModelConfig config, int64_t seq_len, int threads);

// The tokenizer at `path`, or the folder's where that is empty. What it has beyond the model's
// vocabulary is named on standard error; INVALID_ARGUMENT: far more than tokens that were added
// afterwards. Null: the folder has none, and the model's tokens, apart from
// `other_tokens` and a few that are no text, are bytes.
absl::StatusOr<std::unique_ptr<const Tokenizer>> LoadTokenizer(const std::string& folder,
                                                               const std::string& path,
                                                               int64_t vocabulary,
                                                               int64_t other_tokens = 0);

// INVALID_ARGUMENT: a token of a text is beyond the model's vocabulary. `tokenizer` null: bytes.
absl::Status CheckTokens(const Tokenizer* tokenizer, std::span<const int32_t> ids,
                         int64_t vocabulary);

// All of standard input, or what stands for it, without the newline at its end.
std::string ReadPrompt(std::istream& in);

// The classes that the folder's config.json names (id2label), by number; empty where it names none.
// INVALID_ARGUMENT: names that are not of `classes` classes.
absl::StatusOr<std::vector<std::string>> ReadClassNames(const std::string& folder, int64_t classes);

// Writes names of classes into the folder's config.json, as transformers has them; the model's
// further classes, that the data have not, become LABEL_<number>.
absl::Status WriteClassNames(const std::string& folder, std::vector<std::string> names);

}  // namespace atl::cli

#endif  // ATOLL_CLI_MODEL_MODEL_FOLDER_H_
