#include "worker/island/job.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/masked_tokens.h"
#include "common/model/job_model.h"
#include "common/model/optimizer_state.h"
#include "common/model/targets.h"
#include "common/protocol/device_profile.h"
#include "worker/model/weights.h"

namespace atl::worker {
namespace {

void FindExperts(const LayerLayout& layout, LayerSize* size) {
  for (auto param = layout.params.begin(); param != layout.params.end(); ++param) {
    if (param->use != Param::kExpertGate) continue;
    if (size->experts++ > 0) continue;
    size->experts_begin = param->offset;  // gate, up and down follow each other
    size->expert_elements = param[0].size + param[1].size + param[2].size;
  }
}

}  // namespace

absl::StatusOr<GroupJob> GroupJob::Open(const JobSpec& spec, DType compute,
                                        const DataOptions& data_options) {
  ATOLL_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfigOfJob(spec));
  DataOptions options = data_options;
  if (spec.data.pad_documents) options.frame = GetDocumentFrame(config);
  ATOLL_ASSIGN_OR_RETURN(Dataset data, Dataset::Open(spec.data, config.vocab, options));
  ATOLL_RETURN_IF_ERROR(CheckImageShape(
      data.images(), {config.image.height, config.image.width, config.image.channels}));
  GroupJob job{.spec = spec, .data = std::move(data)};
  job.engine.model = config;
  job.engine.compute = compute;
  job.engine.sequence_length = spec.data.sequence_length;
  job.engine.batch_sequences = spec.inner.batch_sequences;
  job.engine.documents = spec.data.documents;
  job.engine.dpo = {spec.objective.beta, spec.objective.label_smoothing};
  // The statistics of a batch normalisation are a whole micro-batch's.
  job.engine.max_chunks = config.is_images() ? 1 : static_cast<int32_t>(spec.layout.chunks_max);
  job.engine.memory_reserve_bytes = spec.layout.memory_reserve_bytes;
  job.engine.optimizer = OptimizerOptionsFromSpec(spec.inner);
  job.layouts = MakeLayouts(config);
  for (const LayerLayout& layout : job.layouts) {
    job.undivided.push_back(UndividedRanges(spec.inner.optimizer, layout));
  }
  if (config.adapter.present()) job.base_layouts = MakeLayouts(config.Base());
  if (const std::string& weights = spec.model.initial_weights_path; !weights.empty()) {
    absl::Status status;
    if (job.base_layouts.empty()) {
      status = CheckWeights(weights, job.layouts);
    } else {
      const auto digest = DigestWeights(weights, job.base_layouts);
      status = digest.status();
      job.facts.base_digest = digest.value_or(0);
    }
    ATOLL_RETURN_IF_ERROR(Annotate(status, "model.initial_weights_path"));
  }
  if (job.has_reference_folder()) {
    const auto digest = DigestWeights(GetReferencePath(spec), job.layouts);
    ATOLL_RETURN_IF_ERROR(Annotate(digest.status(), "the reference of [objective]"));
    job.facts.base_digest = *digest;
  }
  if (!spec.adapter.path.empty()) {
    ATOLL_RETURN_IF_ERROR(
        Annotate(CheckAdapter(spec.adapter.path, config.adapter, job.layouts), "adapter.path"));
  }
  job.facts.model = ToSpec(config);
  for (const LayerLayout& layout : job.layouts) {
    job.facts.layers.push_back({layout.name, layout.size, layout.size - layout.trained_size});
    FindExperts(layout, &job.facts.layers.back());
  }
  job.facts.train_sequences = job.data.train_sequences();
  job.facts.validation_sequences = job.data.validation_sequences();
  job.facts.data_digest = job.data.digest();
  if (spec.data.documents == Documents::kPairs) {
    ATOLL_RETURN_IF_ERROR(job.MakeReferences());
  }
  int64_t tokens_max = kTaskTokensMax;
  for (const EvaluationSpec& evaluation : spec.evaluation) {
    ATOLL_ASSIGN_OR_RETURN(TaskRows rows,
                           OpenTask(spec, evaluation, config, tokens_max, options.watch.cancelled));
    tokens_max -= rows.tokens();
    job.facts.data_digest = rows.Digest(job.facts.data_digest);
    job.tasks.push_back(std::move(rows));
  }
  job.digest = ComputeModelDigest(job.facts.model, spec);
  return job;
}

absl::Status GroupJob::MakeReferences() {
  const int64_t pairs = data.train_sequences() + data.validation_sequences();
  if (pairs > kReferencesMax) {
    return absl::InvalidArgumentError(absl::StrCat("data.path: ", pairs, " pairs, and at most ",
                                                   kReferencesMax, " are trained on in one job"));
  }
  references = std::make_shared<References>();
  references->leads.assign(static_cast<size_t>(pairs), std::nan(""));
  return absl::OkStatus();
}

double& GroupJob::FindReference(const ReferenceCall& call, int64_t position) const {
  const int64_t pair = call.validation ? data.train_sequences() + position : data.Order(position);
  return references->leads[static_cast<size_t>(pair)];
}

absl::Status GroupJob::CheckReferences(const ReferenceCall& call) const {
  if (references == nullptr) return absl::FailedPreconditionError("the job is not of pairs");
  int64_t left = spec.inner.batch_sequences;
  for (const PositionRange& range : call.ranges) {
    const bool there = range.begin >= 0 && range.begin <= range.end &&
                       (!call.validation || range.end <= data.validation_sequences());
    if (!there || range.size() > left) {
      return absl::InvalidArgumentError("pairs that are not there, or more than a batch");
    }
    left -= range.size();
  }
  return absl::OkStatus();
}

std::vector<double> GroupJob::GetReferences(const ReferenceCall& call) const {
  const std::lock_guard lock(references->mutex);
  std::vector<double> found;
  for (const PositionRange& range : call.ranges) {
    for (int64_t p = range.begin; p < range.end; ++p) {
      found.push_back(FindReference(call, p));
      if (std::isnan(found.back())) return {};
    }
  }
  return found;
}

void GroupJob::SetReferences(const ReferenceCall& call, const std::vector<double>& values) const {
  const std::lock_guard lock(references->mutex);
  size_t i = 0;
  for (const PositionRange& range : call.ranges) {
    for (int64_t p = range.begin; p < range.end; ++p, ++i) {
      // A step on what is not finite is skipped.
      FindReference(call, p) = std::isfinite(values[i]) ? values[i] : HUGE_VAL;
    }
  }
}

int64_t GroupJob::GetTaskBegin(size_t task) const {
  int64_t begin = data.validation_sequences();
  for (size_t i = 0; i < task; ++i) begin += tasks[i].size();
  return begin;
}

absl::Status GroupJob::CheckEvaluated(int64_t first, int64_t count) const {
  int64_t end = data.validation_sequences();
  for (size_t i = 0; first >= end && i < tasks.size(); ++i) end += tasks[i].size();
  if (first >= 0 && first < end && count > 0 && count <= end - first &&
      count <= spec.inner.batch_sequences) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(count, " sequences from ", first,
                   " on are not of validation or one task alone, or more than a batch"));
}

const TaskRows* GroupJob::FindTask(int64_t position) const {
  for (size_t i = tasks.size(); i-- > 0;) {
    if (position >= GetTaskBegin(i)) return &tasks[i];
  }
  return nullptr;
}

absl::Status GroupJob::ReadEvaluated(int64_t first, std::span<int32_t> out,
                                     const Cancelled& cancelled) const {
  const TaskRows* const task = FindTask(first);
  if (task == nullptr) return data.ReadValidation(first, out, cancelled);
  const auto numbers = static_cast<size_t>(row());
  int64_t from = first - GetTaskBegin(static_cast<size_t>(task - tasks.data()));
  for (size_t begin = 0; begin < out.size(); begin += numbers, ++from) {
    const std::span<const int32_t> tokens = task->row(from);
    const auto rest = std::copy(tokens.begin(), tokens.end(), out.subspan(begin).begin());
    std::fill(rest, out.subspan(begin).begin() + static_cast<std::ptrdiff_t>(numbers),
              MaskToken(0));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> GroupJob::CountMaskedEvaluated(int64_t first, int64_t count,
                                                       const Cancelled& cancelled) const {
  if (FindTask(first) == nullptr) return data.CountMaskedValidation(first, count, cancelled);
  std::vector<int32_t> rows(static_cast<size_t>(count * row()));
  ATOLL_RETURN_IF_ERROR(ReadEvaluated(first, rows, cancelled));
  return CountMasked(rows, row());
}

absl::StatusOr<LayerLayout> GroupJob::GetLayerLayout(const LayerShard& shard) const {
  const auto layer = static_cast<size_t>(shard.layer);
  if (layer >= layouts.size()) {
    return absl::InvalidArgumentError(absl::StrCat("there is no layer ", shard.layer));
  }
  const auto ranks = static_cast<int>(shard.tensor_split_ratios.size());
  if (ranks == 1) return layouts[layer];
  ATOLL_ASSIGN_OR_RETURN(const std::vector<TensorPart> parts,
                         CutModel(engine.model, ranks, shard.tensor_split_ratios));
  return MakeLayouts(engine.model, parts[static_cast<size_t>(shard.rank)])[layer];
}

}  // namespace atl::worker
