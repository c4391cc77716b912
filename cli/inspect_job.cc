#include "cli/inspect_job.h"

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/model/job_model.h"
#include "common/model/layout.h"
#include "common/model/targets.h"
#include "common/object_store/hub.h"
#include "common/paths.h"
#include "common/plural.h"
#include "common/status.h"
#include "common/tokenizer/tokenizer.h"
#include "worker/data/images.h"
#include "worker/evaluation/job_tasks.h"
#include "worker/model/weights.h"

namespace atl::cli {
namespace {

// The line for what is there, or that `path` is not on this machine; the error otherwise.
absl::Status AddLine(const char* field, const std::string& path,
                     const absl::StatusOr<std::string>& found, Inspection* job) {
  if (absl::IsNotFound(found.status()) || absl::IsUnavailable(found.status())) {
    absl::StrAppend(&job->text, field, ": not looked at: ", found.status().message(), "\n");
    job->unread.push_back(path);
    if (!IsHubPath(path)) job->missing.push_back(path);
    return absl::OkStatus();
  }
  ATOLL_RETURN_IF_ERROR(found.status());
  absl::StrAppend(&job->text, field, ": ", *found, "\n");
  return absl::OkStatus();
}

absl::StatusOr<std::string> InspectWeights(const std::string& folder, const ModelConfig& config) {
  if (IsHubPath(folder)) return absl::NotFoundError(absl::StrCat(folder, ": workers fetch it"));
  ATOLL_ASSIGN_OR_RETURN(const auto found, FindPath(folder));
  if (!found) {
    return absl::NotFoundError(absl::StrCat(folder, ": there is no such folder"));
  }
  const std::vector<LayerLayout> layouts = MakeLayouts(config.Base());
  const absl::Status status = CheckWeights(folder, layouts);
  // The folder is here: what it lacks is an error.
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.initial_weights_path: ", status.message()));
  }
  int64_t tensors = 0, numbers = 0;
  for (const LayerLayout& layout : layouts) {
    tensors += std::ssize(layout.params);
    numbers += layout.size;
  }
  return absl::StrCat(CountText(tensors, "tensor"), " of ", CountText(numbers, "number"));
}

// Names what is trained, and checks the folder that it starts from, if any.
absl::StatusOr<std::string> InspectAdapter(const std::string& folder, const ModelConfig& config) {
  const std::vector<LayerLayout> layouts = MakeLayouts(config);
  if (!folder.empty()) {
    ATOLL_ASSIGN_OR_RETURN(const auto found, FindPath(folder));
    if (!found) return absl::NotFoundError(absl::StrCat(folder, ": there is no such folder"));
    const absl::Status status = CheckAdapter(folder, config.adapter, layouts);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("adapter.path: ", status.message()));
    }
  }
  int64_t matrices = 0, numbers = 0, frozen = 0;
  for (const LayerLayout& layout : layouts) {
    matrices += std::ssize(layout.adapted);
    numbers += layout.size;
    frozen += layout.frozen_size;
  }
  return absl::StrCat(CountText(matrices, "target"), ", ", CountText(numbers, "number"),
                      " trained beside ", frozen, " frozen");
}

// Reads the tasks that are here.
absl::Status InspectTasks(const JobSpec& spec, const ModelConfig& config,
                          const InspectionDepth& depth, Inspection* job) {
  int64_t tokens_max = kTaskTokensMax;
  for (const EvaluationSpec& evaluation : spec.evaluation) {
    if (!depth.remote && IsRemotePath(evaluation.path)) {
      job->unread.push_back(evaluation.path);
      continue;
    }
    const auto rows = OpenTask(spec, evaluation, config, tokens_max);
    if (rows.ok()) tokens_max -= rows->tokens();
    const auto found =
        rows.ok() ? absl::StatusOr<std::string>(CountText(rows->size(), "text")) : rows.status();
    ATOLL_RETURN_IF_ERROR(AddLine("evaluation", evaluation.path, found, job));
  }
  return absl::OkStatus();
}

// That the tokens which mask a target and frame a document are the tokenizer's.
absl::Status CheckSpecialTokens(const JobSpec& spec, const ModelConfig& config) {
  const bool masks = config.architecture().objective == Objective::kMaskedToken;
  if (!masks || spec.data.tokenizer_path.empty()) return absl::OkStatus();
  const auto tokenizer = OpenTokenizer(spec.data.tokenizer_path);
  if (!tokenizer.ok()) return absl::OkStatus();  // InspectData's to report
  struct Token {
    const char* text;
    const char* field;
    int64_t id;
  };
  std::vector<Token> tokens = {{"[MASK]", "mask_token_id", config.mask_token}};
  if (spec.data.pad_documents) {
    const DocumentFrame frame = GetDocumentFrame(config);
    tokens.push_back({"[CLS]", "cls_token_id", frame.cls});
    tokens.push_back({"[SEP]", "sep_token_id", frame.sep});
    tokens.push_back({"[PAD]", "pad_token_id", frame.pad});
  }
  for (const Token& token : tokens) {
    const std::optional<int32_t> id = (*tokenizer)->TokenId(token.text);
    if (!id.has_value() || *id == token.id) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "data.tokenizer_path ", spec.data.tokenizer_path, ": its ", token.text, " is token ", *id,
        ", and ", token.field, " of the model is ", token.id, ": set ", token.field, " to ", *id,
        " in a config.json (model.config_path), or name the model's own tokenizer"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Inspection> InspectJob(const JobSpec& spec, const InspectionDepth& depth) {
  Inspection job;
  std::string warning;
  const absl::StatusOr<ModelConfig> config = ModelConfigOfJob(spec, &warning);
  if (!warning.empty()) absl::StrAppend(&job.text, "warning: ", warning, "\n");
  const std::string& weights = spec.model.initial_weights_path;
  int64_t vocabulary = spec.model.vocabulary;
  std::optional<ImageShape> images;
  std::optional<DocumentFrame> frame;
  if (config.ok()) {
    vocabulary = config->vocab;
    images = ImageShape{config->image.height, config->image.width, config->image.channels};
    if (spec.data.pad_documents) frame = GetDocumentFrame(*config);
    if (!weights.empty()) {
      ATOLL_RETURN_IF_ERROR(AddLine("weights", weights, InspectWeights(weights, *config), &job));
    }
    if (const std::string& reference = spec.objective.reference; !reference.empty()) {
      ATOLL_RETURN_IF_ERROR(
          AddLine("reference", reference, InspectWeights(reference, *config), &job));
    }
    if (config->adapter.present()) {
      ATOLL_RETURN_IF_ERROR(
          AddLine("adapter", spec.adapter.path, InspectAdapter(spec.adapter.path, *config), &job));
    }
  } else {
    const std::string& path = spec.model.config_path.empty() ? weights : spec.model.config_path;
    ATOLL_RETURN_IF_ERROR(AddLine("model", path, config.status(), &job));
    vocabulary = int64_t{1} << 31;  // unknown here
  }
  ATOLL_ASSIGN_OR_RETURN(const Inspection data,
                         InspectData(spec.data, vocabulary, images, frame, depth));
  absl::StrAppend(&job.text, "data: ", data.text, "\n");
  job.warnings.insert(job.warnings.end(), data.warnings.begin(), data.warnings.end());
  if (config.ok()) {
    ATOLL_RETURN_IF_ERROR(CheckSpecialTokens(spec, *config));
    ATOLL_RETURN_IF_ERROR(InspectTasks(spec, *config, depth, &job));
  }
  job.unread.insert(job.unread.end(), data.unread.begin(), data.unread.end());
  job.missing.insert(job.missing.end(), data.missing.begin(), data.missing.end());
  return job;
}

std::string ValidText(const Inspection& found) {
  if (found.unread.empty()) return "valid";
  return absl::StrCat("valid; not looked at: ", absl::StrJoin(found.unread, ", "));
}

}  // namespace atl::cli
