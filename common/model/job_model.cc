#include "common/model/job_model.h"

#include <filesystem>

#include "common/file_kind.h"
#include "common/files.h"
#include "common/model/family.h"
#include "common/model/hugging_face.h"
#include "common/object_store/hub.h"

namespace atl {
namespace {

constexpr int64_t kConfigBytesMax = int64_t{1} << 20;

absl::StatusOr<ModelConfig> Config(const JobSpec& spec, std::string* warning) {
  if (!spec.model.config_path.empty()) {
    return ReadConfigFile(spec.model.config_path, "model.config_path", warning);
  }
  if (spec.model.config_json.empty() && spec.model.hidden == 0 &&
      !spec.model.initial_weights_path.empty()) {
    const std::string& folder = spec.model.initial_weights_path;
    const auto path = std::filesystem::path(folder) / "config.json";
    auto config = ReadConfigFile(path.string(), "model.initial_weights_path", warning);
    std::error_code error;
    if (!absl::IsNotFound(config.status()) || !std::filesystem::exists(folder, error))
      return config;
    const bool is_folder = std::filesystem::is_directory(folder, error);
    const bool has_params = std::filesystem::exists(path.parent_path() / "params.json", error);
    return absl::InvalidArgumentError(absl::StrCat(
        "model.initial_weights_path: ", folder,
        is_folder ? ": has no config.json" : ": is a file; name the folder that it is in",
        has_params ? ", but a params.json, as Meta's and Mistral's own files; name a folder in the "
                     "form of transformers"
                   : ""));
  }
  return ModelConfigFromSpec(spec.model, spec.data.sequence_length, warning);
}

// Checks what becomes rows of a model of masked tokens, and of no other.
absl::Status CheckDocuments(const DataSpec& data, const ModelConfig& config) {
  const bool encoder = config.architecture().objective == Objective::kMaskedToken;
  const std::string name = GetFamily(config.family).model_type;
  if (encoder && data.format == DataFormat::kChat) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.format = \"chat\": the model is of family ", name,
        ", which learns masked tokens and not answers; use text, jsonl or a format of tokens"));
  }
  if (IsPacked(data) && config.architecture().objective != Objective::kNextToken) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.documents = \"", DocumentsName(data.documents), "\": the model is of family ", name,
        ", which does not learn next tokens; set data.documents = \"text\""));
  }
  if (!data.pad_documents) return absl::OkStatus();
  if (!encoder) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.pad_documents = true: the model is of family ", name,
                     ", and only bert learns padded documents; leave it out"));
  }
  const SpecialTokens& special = config.special_tokens;
  for (const auto& [field, ids] :
       {std::pair("cls_token_id", &special.cls), std::pair("sep_token_id", &special.sep),
        std::pair("pad_token_id", &special.pad)}) {
    if (!ids->empty() && (*ids)[0] >= 0 && (*ids)[0] < config.vocab) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "data.pad_documents = true: ", field, " of the model is ",
        ids->empty() ? "missing" : absl::StrCat((*ids)[0]), "; give it in a config.json ",
        "(model.config_path), from 0 to ", config.vocab - 1));
  }
  if (special.pad[0] != special.cls[0] && special.pad[0] != special.sep[0]) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("data.pad_documents = true: pad_token_id of the model is ", special.pad[0],
                   ", as is cls_token_id or sep_token_id; give it a token of its own"));
}

absl::Status CheckExpertBias(const InnerSpec& inner, const ModelConfig& config) {
  if (inner.expert_bias_rate == 0) return absl::OkStatus();
  const std::string field = absl::StrCat("inner.expert_bias_rate = ", inner.expert_bias_rate);
  if (!config.experts.correction) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": the model is of family ", GetFamily(config.family).model_type,
                     ", whose routers have no correcting bias; leave it out, or balance by "
                     "router_aux_loss_coef with output_router_logits in the model's config.json"));
  }
  if (!config.adapter.present()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": routers beside an adapter are frozen; leave it out"));
}

}  // namespace

absl::StatusOr<ModelConfig> ReadConfigFile(const std::string& path, absl::string_view field,
                                           std::string* warning) {
  auto local = FetchFromHub(path, HubFiles::kConfig);
  if (!local.ok()) return Annotate(local.status(), field);
  const auto file = InputFile::Open(*local);
  const auto text = file.ok() ? file->ReadAll(kConfigBytesMax) : file.status();
  if (!text.ok()) return Annotate(text.status(), absl::StrCat(field, " on this machine"));
  ATOLL_RETURN_IF_ERROR(CheckFileKind(absl::StrCat(field, ": ", path), *text, "a config.json"));
  return ParseModelConfig(*text, path, warning);
}

absl::StatusOr<ModelConfig> ModelConfigFromFacts(const ModelSpec& model, const JobSpec& spec) {
  ATOLL_ASSIGN_OR_RETURN(ModelConfig base, ModelConfigFromSpec(model, spec.data.sequence_length));
  ATOLL_ASSIGN_OR_RETURN(ModelConfig config, WithAdapter(std::move(base), spec.adapter));
  ATOLL_RETURN_IF_ERROR(CheckExpertBias(spec.inner, config));
  return config;
}

absl::StatusOr<ModelConfig> ModelConfigOfJob(const JobSpec& spec, std::string* warning) {
  ATOLL_ASSIGN_OR_RETURN(ModelConfig base, Config(spec, warning));
  ATOLL_ASSIGN_OR_RETURN(const ModelConfig config, WithAdapter(std::move(base), spec.adapter));
  if (config.adapter.present() && spec.outer.fragments > config.layers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "outer.fragments = ", spec.outer.fragments, ": only the model's ", config.layers,
        " blocks have parts of an adapter, and every fragment needs "
        "one of them; use at most ",
        config.layers));
  }
  ATOLL_RETURN_IF_ERROR(CheckExpertBias(spec.inner, config));
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
  ATOLL_RETURN_IF_ERROR(CheckDocuments(spec.data, config));
  if ((spec.objective.kind == ObjectiveKind::kDpo) != (spec.data.documents == Documents::kPairs)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.documents = \"", DocumentsName(spec.data.documents),
        "\": ", "objective.kind = \"dpo\" is of \"pairs\", and nothing else is; leave it out"));
  }
  if (spec.data.sequence_length > config.LongestSequence()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.sequence_length = ", spec.data.sequence_length,
                     ": the model takes at most ", config.LongestSequence(), " tokens"));
  }
  return config;
}

Documents DefaultDocuments(const JobSpec& spec) {
  const DataFormat format = spec.data.format;
  if (spec.objective.kind == ObjectiveKind::kDpo) return Documents::kPairs;
  if (spec.data.pad_documents) return Documents::kText;
  if (format != DataFormat::kJsonl && format != DataFormat::kChat) return Documents::kText;
  JobSpec plain = spec;
  plain.data.documents = Documents::kText;
  const auto config = ModelConfigOfJob(plain);
  const bool encoder = config.ok() && config->architecture().objective != Objective::kNextToken;
  return encoder ? Documents::kText : Documents::kMask;
}

}  // namespace atl
