#include "common/model/job_model.h"

#include <filesystem>

#include "common/files.h"
#include "common/model/hugging_face.h"

namespace atl {
namespace {

constexpr int64_t kConfigBytesMax = int64_t{1} << 20;

absl::StatusOr<ModelConfig> Config(const JobSpec& spec) {
  if (!spec.model.config_path.empty()) {
    return ReadConfigFile(spec.model.config_path, "model.config_path");
  }
  if (spec.model.config_json.empty() && spec.model.hidden == 0 &&
      !spec.model.initial_weights_path.empty()) {
    const auto path = std::filesystem::path(spec.model.initial_weights_path) / "config.json";
    return ReadConfigFile(path.string(), "model.initial_weights_path");
  }
  return ModelConfigFromSpec(spec.model, spec.data.sequence_length);
}

}  // namespace

absl::StatusOr<ModelConfig> ReadConfigFile(const std::string& path, absl::string_view field) {
  const auto file = InputFile::Open(path);
  const auto text = file.ok() ? file->ReadAll(kConfigBytesMax) : file.status();
  if (!text.ok()) return Annotate(text.status(), absl::StrCat(field, " on this machine"));
  return ParseModelConfig(*text, path);
}

absl::StatusOr<ModelConfig> ModelConfigOfJob(const JobSpec& spec) {
  ATOLL_ASSIGN_OR_RETURN(const ModelConfig config, Config(spec));
  if (config.is_images() != IsImages(spec.data.format)) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.format: the model is one of ", config.is_images() ? "images" : "tokens",
                     ", the data are not; ",
                     config.is_images() ? "use cifar10, cifar100, idx or image_folder"
                                        : "use a format of text or tokens"));
  }
  if (spec.data.format == DataFormat::kImageFolder &&
      (config.image.height != spec.data.image_size || config.image.width != spec.data.image_size ||
       config.image.channels != 3)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.image_size = ", spec.data.image_size,
        ": an image folder gives images of this size "
        "with 3 channels; the model's are ",
        config.image.height, " x ", config.image.width, " with ", config.image.channels,
        ": change it, or image_size and num_channels in the "
        "model's config.json"));
  }
  if (config.is_images() && spec.inner.optimizer == InnerOptimizer::kMuon) {
    return absl::InvalidArgumentError(
        "inner.optimizer = \"muon\": models of images have no matrices that it steps; use adamw, "
        "sgd, lamb or rmsprop");
  }
  if (config.is_images() && spec.layout.tensor_parallel > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout.tensor_parallel = ", spec.layout.tensor_parallel,
                     ": convolutions are not cut; use 1"));
  }
  if (spec.data.sequence_length > config.max_positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.sequence_length = ", spec.data.sequence_length,
                     ": the model takes at most ", config.max_positions, " tokens"));
  }
  return config;
}

}  // namespace atl
