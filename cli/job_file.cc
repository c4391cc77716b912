#include "cli/job_file.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/model/job_model.h"
#include "common/path_pattern.h"
#include "common/protocol/outer_optimizer.h"
#include "common/protocol/wire.h"
#include "common/toml_message.h"
#include "coordinator/plan_io/plan_message.h"
#include "coordinator/plan_io/read_text.h"
#include "proto/job.pb.h"

namespace atl::cli {
namespace {

constexpr int64_t kMaxJobFileBytes = 1 << 20;
constexpr int64_t kMaxPlanFileBytes = 64 << 20;  // with operations, which a job does without

absl::Status MakeAbsolute(const char* field, const std::filesystem::path& folder,
                          std::string* path) {
  ATOLL_RETURN_IF_ERROR(CheckPlainPath(field, *path));
  if (path->empty() || std::filesystem::path(*path).is_absolute() ||
      absl::StrContains(*path, "://")) {  // in an object store
    return absl::OkStatus();
  }
  *path = (folder / *path).lexically_normal().string();
  return absl::OkStatus();
}

// Every path that workers read.
absl::Status MakePathsAbsolute(const std::filesystem::path& folder, JobSpec* spec) {
  const auto make = [&](const char* field, std::string* path) {
    return MakeAbsolute(field, folder, path);
  };
  ATOLL_RETURN_IF_ERROR(make("data.path", &spec->data.path));
  ATOLL_RETURN_IF_ERROR(make("data.validation_path", &spec->data.validation_path));
  for (ValidationSet& set : spec->data.validation) {
    ATOLL_RETURN_IF_ERROR(make("data.validation.path", &set.path));
  }
  for (EvaluationSpec& evaluation : spec->evaluation) {
    ATOLL_RETURN_IF_ERROR(make("evaluation.path", &evaluation.path));
  }
  for (DataSource& source : spec->data.sources) {
    ATOLL_RETURN_IF_ERROR(make("data.sources.path", &source.path));
  }
  for (SiteData& site : spec->data.sites) {
    ATOLL_RETURN_IF_ERROR(make("data.sites.path", &site.path));
    ATOLL_RETURN_IF_ERROR(make("data.sites.validation_path", &site.validation_path));
  }
  ATOLL_RETURN_IF_ERROR(make("data.tokenizer_path", &spec->data.tokenizer_path));
  ATOLL_RETURN_IF_ERROR(make("model.config_path", &spec->model.config_path));
  ATOLL_RETURN_IF_ERROR(make("adapter.path", &spec->adapter.path));
  ATOLL_RETURN_IF_ERROR(make("objective.reference", &spec->objective.reference));
  ATOLL_RETURN_IF_ERROR(CheckPlainPath("checkpoint.remote", spec->checkpoint.remote));
  return make("model.initial_weights_path", &spec->model.initial_weights_path);
}

// Where the field that `status` speaks of was given: by a setting, else in the file.
absl::Status Locate(const TomlMessage& reader, const std::vector<std::string>& settings,
                    const absl::Status& status) {
  for (const std::string& setting : settings) {
    if (!status.ok() &&
        absl::StartsWith(status.message(), absl::StrCat(SettingKey(setting), " "))) {
      return Annotate(status, absl::StrCat("--set ", setting));
    }
  }
  return reader.Locate(status);
}

// Reads the part of a plan's file that a job takes.
absl::StatusOr<std::string> ReadPlan(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadText(path, kMaxPlanFileBytes);
  if (!text.ok()) return Annotate(text.status(), "layout.plan");
  return PinnedJson(*text, path);
}

struct UnusedField {
  const char* name;  // of inner
  double value;
};

// Lists what is given for another optimizer than this one; defaults may stand in a file for each.
std::vector<UnusedField> ListUnused(const v1::InnerSpec& inner, InnerOptimizer optimizer) {
  using enum InnerOptimizer;
  const InnerSpec defaults;
  const struct {
    const char* name;
    bool given;
    double value, default_value;
    std::set<InnerOptimizer> users;
  } fields[] = {
      {"beta1", inner.has_beta1(), inner.beta1(), defaults.beta1, {kAdamW, kLamb, kMuon}},
      {"beta2", inner.has_beta2(), inner.beta2(), defaults.beta2, {kAdamW, kLamb, kMuon, kRmsProp}},
      {"epsilon",
       inner.has_epsilon(),
       inner.epsilon(),
       defaults.epsilon,
       {kAdamW, kLamb, kMuon, kRmsProp}},
      {"momentum",
       inner.has_momentum(),
       inner.momentum(),
       defaults.momentum,
       {kSgd, kRmsProp, kMuon}}};
  std::vector<UnusedField> unused;
  for (const auto& field : fields) {
    if (!field.given || field.value == field.default_value || field.users.contains(optimizer))
      continue;
    unused.push_back({field.name, field.value});
  }
  return unused;
}

absl::Status CheckOptimizerFields(const v1::InnerSpec& inner, InnerOptimizer optimizer) {
  const std::vector<UnusedField> unused = ListUnused(inner, optimizer);
  if (unused.empty()) return absl::OkStatus();
  absl::string_view name = "INNER_OPTIMIZER_ADAMW";
  if (inner.has_optimizer()) name = v1::InnerOptimizer_Name(inner.optimizer());
  absl::ConsumePrefix(&name, "INNER_OPTIMIZER_");
  return absl::InvalidArgumentError(
      absl::StrCat("inner.", unused.front().name, " = ", unused.front().value, ": the optimizer ",
                   absl::AsciiStrToLower(name), " does not use it; leave it out"));
}

absl::Status CheckOuterMomentum(const OuterSpec& outer) {
  if (outer.momentum == 0 || !GetOuterOptimizer(outer).slots.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("outer.momentum = ", outer.momentum, ": the optimizer ", outer.optimizer,
                   " does not use it; leave it out, or set outer.optimizer to \"nesterov\""));
}

// Makes the job of what was read of the file at `path`, and of the settings.
absl::StatusOr<JobSpec> Complete(const TomlMessage& reader, v1::JobSpec wire,
                                 const std::string& path,
                                 const std::vector<std::string>& settings) {
  for (const std::string& setting : settings) {
    ATOLL_RETURN_IF_ERROR(ReadSetting("--set ", setting, &wire));
  }
  const v1::InnerSpec inner = wire.inner();
  const bool names_documents = wire.data().has_documents();
  auto spec = Decode(&wire);
  if (!spec.ok()) return Locate(reader, settings, spec.status());
  ATOLL_RETURN_IF_ERROR(
      Locate(reader, settings, CheckOptimizerFields(inner, spec->inner.optimizer)));
  ATOLL_RETURN_IF_ERROR(Locate(reader, settings, Validate(*spec)));
  ATOLL_RETURN_IF_ERROR(Locate(reader, settings, CheckOuterMomentum(spec->outer)));

  std::error_code error;
  const auto folder = std::filesystem::absolute(path, error).parent_path();
  ATOLL_RETURN_IF_ERROR(Locate(reader, settings, MakePathsAbsolute(folder, &*spec)));
  if (!spec->layout.plan.empty()) {
    ATOLL_RETURN_IF_ERROR(MakeAbsolute("layout.plan", folder, &spec->layout.plan));
    ATOLL_ASSIGN_OR_RETURN(spec->layout.plan, ReadPlan(spec->layout.plan));
    ATOLL_RETURN_IF_ERROR(Locate(reader, settings, Validate(*spec)));
  }
  // Written into the job, so that every worker frames conversations alike.
  if (spec->data.format == DataFormat::kChat && spec->data.chat_date.empty()) {
    spec->data.chat_date = absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone());
  }
  // Likewise: in a job of an earlier version, which does not name it, it is text.
  if (!names_documents) spec->data.documents = DefaultDocuments(*spec);
  // The model's files may be on the workers alone.
  const absl::Status model = ModelConfigOfJob(*spec).status();
  const bool elsewhere = absl::IsNotFound(model) || absl::IsUnavailable(model);
  if (!model.ok() && !elsewhere) return Locate(reader, settings, model);
  return spec;
}

// Takes out what the other job had for optimizers that the settings replace.
void DropUnused(const std::vector<std::string>& settings, v1::JobSpec* wire) {
  v1::JobSpec changed = *wire;
  std::set<std::string> set;
  for (const std::string& setting : settings) {
    if (!ReadSetting("--set ", setting, &changed).ok()) return;
    set.insert(std::string(SettingKey(setting)));
  }
  const absl::StatusOr<JobSpec> spec = Decode(&changed);
  if (!spec.ok()) return;
  v1::InnerSpec& inner = *wire->mutable_inner();
  for (const UnusedField& field : ListUnused(inner, spec->inner.optimizer)) {
    if (set.contains(absl::StrCat("inner.", field.name))) continue;
    inner.GetReflection()->ClearField(&inner, inner.GetDescriptor()->FindFieldByName(field.name));
  }
  const bool uses = ValidateOuterChoice(spec->outer).ok() && CheckOuterMomentum(spec->outer).ok();
  if (!uses && !set.contains("outer.momentum")) wire->mutable_outer()->clear_momentum();
}

}  // namespace

absl::StatusOr<JobSpec> ParseJob(absl::string_view text, const std::string& path,
                                 const std::vector<std::string>& settings) {
  TomlMessage reader(path);
  v1::JobSpec wire;
  ATOLL_RETURN_IF_ERROR(reader.Read(text, &wire));
  return Complete(reader, std::move(wire), path, settings);
}

absl::StatusOr<JobSpec> BranchJob(const v1::JobSpec& from, const std::string& origin,
                                  const std::vector<std::string>& settings) {
  v1::JobSpec wire = from;
  wire.mutable_layout()->clear_plan();  // it names that job's workers
  wire.clear_rehearsed();
  v1::ModelSpec& model = *wire.mutable_model();
  model.set_initial_job(origin);
  // Its parameters take the place of these weights, whose folder may have the model's numbers.
  const std::string weights = model.initial_weights_path();
  if (!weights.empty() && wire.adapter().kind() != v1::ADAPTER_KIND_LORA) {
    if (model.config_path().empty() && model.config_json().empty() && model.hidden() == 0) {
      model.set_config_path(absl::StrCat(weights, "/config.json"));
    }
    const bool compares = wire.objective().kind() == v1::OBJECTIVE_KIND_DPO;
    if (compares && wire.objective().reference().empty()) {
      wire.mutable_objective()->set_reference(weights);
    }
    model.clear_initial_weights_path();
  }
  DropUnused(settings, &wire);
  const std::string name = absl::StrCat("job ", origin);
  return Complete(TomlMessage(name), std::move(wire), name, settings);
}

absl::StatusOr<JobSpec> ReadJobFile(const std::string& path,
                                    const std::vector<std::string>& settings) {
  if (path == "-") {
    ATOLL_ASSIGN_OR_RETURN(const std::string text,
                           ReadText(std::cin, "standard input", kMaxJobFileBytes));
    // Relative paths are taken from the working folder.
    return ParseJob(text, "standard input", settings);
  }
  ATOLL_ASSIGN_OR_RETURN(const std::string text, ReadText(path, kMaxJobFileBytes));
  return ParseJob(text, path, settings);
}

}  // namespace atl::cli
