#include "worker/runtime/model_config.h"

#include "common/files.h"
#include "worker/model/weights.h"

namespace atl::worker {
namespace {

constexpr int64_t kConfigBytesMax = 1 << 20;

absl::StatusOr<ModelConfig> Config(const JobSpec& spec) {
  if (!spec.model.config_path.empty()) {
    const std::string& path = spec.model.config_path;
    const auto file = InputFile::Open(path);
    const auto text = file.ok() ? file->ReadAll(kConfigBytesMax) : file.status();
    if (!text.ok()) return Annotate(text.status(), "model.config_path on this worker");
    return ParseModelConfig(*text, path);
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
