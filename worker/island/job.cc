#include "worker/island/job.h"

#include <utility>

#include "common/model/job_model.h"
#include "common/model/optimizer_state.h"
#include "common/model/targets.h"
#include "common/protocol/device_profile.h"
#include "worker/model/weights.h"

namespace atl::worker {

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
  if (!spec.adapter.path.empty()) {
    ATOLL_RETURN_IF_ERROR(
        Annotate(CheckAdapter(spec.adapter.path, config.adapter, job.layouts), "adapter.path"));
  }
  job.facts.model = ToSpec(config);
  for (const LayerLayout& layout : job.layouts) {
    job.facts.layers.push_back({layout.name, layout.size, layout.size - layout.trained_size});
  }
  job.facts.train_sequences = job.data.train_sequences();
  job.facts.validation_sequences = job.data.validation_sequences();
  job.facts.data_digest = job.data.digest();
  job.digest = ComputeModelDigest(job.facts.model, spec);
  return job;
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
