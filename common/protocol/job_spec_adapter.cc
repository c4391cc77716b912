// Limits of [adapter] and [objective].

#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "common/protocol/job_spec_impl.h"
#include "common/status.h"

namespace atl {

absl::Status ValidateAdapter(const AdapterSpec& a, const ModelSpec& model) {
  if (a.kind == AdapterKind::kNone) {
    if (a == AdapterSpec()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "adapter.kind is missing, and other fields of [adapter] are given: set it to \"lora\", or "
        "leave them out");
  }
  ATOLL_RETURN_IF_ERROR(IntInRange("adapter.rank", a.rank, 1, kAdapterRankMax));
  if (!(a.alpha > 0 && a.alpha <= kAdapterAlphaMax)) {
    return Bad("adapter.alpha", a.alpha, absl::StrCat("above 0 and at most ", kAdapterAlphaMax));
  }
  ATOLL_RETURN_IF_ERROR(
      IntInRange("the number of adapter.targets", std::ssize(a.targets), 1, kAdapterTargetsMax));
  std::set<std::string> seen;
  for (const std::string& target : a.targets) {
    if (target.empty() || !seen.insert(target).second) {
      return absl::InvalidArgumentError(absl::StrCat("adapter.targets has \"",
                                                     absl::CHexEscape(target.substr(0, 40)),
                                                     "\": must be names of matrices, each once"));
    }
  }
  if (a.targets.size() > 1 && seen.contains("all-linear")) {
    return absl::InvalidArgumentError(
        "adapter.targets has \"all-linear\" beside other names: it must stand alone");
  }
  if (!a.path.empty() && a.init != AdapterInit::kKaiming) {
    return absl::InvalidArgumentError(
        "adapter.init = \"gaussian\" and adapter.path: the adapter begins as the folder has it; "
        "leave "
        "one of them out");
  }
  if (absl::StrContains(a.path, "://")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "adapter.path = \"", absl::CHexEscape(a.path.substr(0, 80)),
        "\": must be a folder on the workers; fetch the adapter, and name its folder"));
  }
  if (!model.initial_weights_path.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "model.initial_weights_path is missing: an adapter is trained beside the weights of a model");
}

const std::string& GetReferencePath(const JobSpec& spec) {
  const std::string& path = spec.objective.reference;
  return path.empty() ? spec.model.initial_weights_path : path;
}

absl::Status ValidateObjective(const JobSpec& spec) {
  const ObjectiveSpec& o = spec.objective;
  if (o.kind != ObjectiveKind::kDpo) {
    if (o == ObjectiveSpec()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "objective.kind is missing, and other fields of [objective] are given: set it to \"dpo\", "
        "or leave them out");
  }
  if (!(o.beta > 0 && o.beta <= kBetaMax)) {
    return Bad("objective.beta", o.beta, absl::StrCat("above 0 and at most ", kBetaMax));
  }
  if (!(o.label_smoothing >= 0 && o.label_smoothing < 0.5)) {
    return Bad("objective.label_smoothing", o.label_smoothing, "at least 0 and below 0.5");
  }
  if (spec.adapter.kind == AdapterKind::kLora && !o.reference.empty()) {
    return absl::InvalidArgumentError(
        "objective.reference: an adapter's reference is its base: leave it out");
  }
  if (spec.adapter.kind != AdapterKind::kLora && GetReferencePath(spec).empty()) {
    return absl::InvalidArgumentError(
        "objective.reference is missing: name the folder of the model that answers are compared "
        "with, or begin with one (model.initial_weights_path)");
  }
  if (absl::StrContains(o.reference, "://")) {
    return absl::InvalidArgumentError(
        absl::StrCat("objective.reference = \"", absl::CHexEscape(o.reference.substr(0, 80)),
                     "\": must be a folder on the workers; fetch the model, and name its folder"));
  }
  if (spec.data.format != DataFormat::kChat) {
    return absl::InvalidArgumentError(
        "objective.kind = \"dpo\": data.format must be \"chat\", JSONL with \"prompt\", \"chosen\" "
        "and \"rejected\"");
  }
  return IntInRange("inner.batch_sequences", spec.inner.batch_sequences, 1, kPairsMax);
}

}  // namespace atl
