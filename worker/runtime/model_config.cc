#include "worker/runtime/model_config.h"

#include <fstream>
#include <sstream>

#include "worker/model/weights.h"

namespace atl::worker {
namespace {

constexpr size_t kConfigBytesMax = size_t{1} << 20;

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(
        absl::StrCat("model.config_path = \"", path, "\": cannot be read on this worker"));
  }
  std::string text(kConfigBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kConfigBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.config_path = \"", path, "\": too long for a config.json"));
  }
  return text;
}

absl::StatusOr<ModelConfig> Config(const JobSpec& spec) {
  if (!spec.model.config_path.empty()) {
    ATOLL_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(spec.model.config_path));
    return ParseModelConfig(text, spec.model.config_path);
  }
  if (spec.model.hidden == 0 && !spec.model.initial_weights_path.empty()) {
    return ReadModelConfig(spec.model.initial_weights_path);
  }
  return ModelConfigFromSpec(spec.model, spec.data.sequence_length);
}

}  // namespace

absl::StatusOr<ModelConfig> ModelConfigOfJob(const JobSpec& spec) {
  ATOLL_ASSIGN_OR_RETURN(const ModelConfig config, Config(spec));
  if (spec.data.sequence_length > config.max_positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.sequence_length = ", spec.data.sequence_length,
                     ": the model takes at most ", config.max_positions, " tokens"));
  }
  return config;
}

}  // namespace atl::worker
