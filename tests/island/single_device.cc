#include "tests/island/single_device.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/model/job_model.h"
#include "common/model/targets.h"
#include "worker/core/leases.h"
#include "worker/evaluation/job_tasks.h"
#include "worker/model/weights.h"

namespace atl::worker {

absl::Status SingleDevice::ToHost(const Tensor& from, std::span<float> to) {
  ATOLL_CHECK(from.size() == static_cast<int64_t>(to.size()));
  backend_->CopyToHost(job_->runner->stream(), to.data(), from);
  return backend_->Synchronize(job_->runner->stream());
}

absl::Status SingleDevice::SetParameters(int layer, std::span<const float> values) {
  const Tensor& to = job_->runner->params(layer);
  ATOLL_CHECK(to.size() == static_cast<int64_t>(values.size()));
  backend_->CopyToDevice(job_->runner->stream(), to, values.data());
  ATOLL_RETURN_IF_ERROR(backend_->Synchronize(job_->runner->stream()));
  job_->runner->layer(layer).ParamsWritten(job_->runner->stream());
  return absl::OkStatus();
}

absl::Status SingleDevice::GetMoments(int layer, std::span<float> first, std::span<float> second) {
  ATOLL_RETURN_IF_ERROR(ToHost(job_->runner->layer(layer).first_moment(), first));
  // A slot that the optimizer does not keep is zero.
  const LayerState& state = job_->runner->layer(layer);
  const auto kept = static_cast<size_t>(state.second_owned().begin);
  std::fill(second.begin(), second.begin() + kept, 0.0f);
  return ToHost(state.second_moment(), second.subspan(kept));
}

absl::StatusOr<int64_t> SingleDevice::CountMasked(const std::vector<PositionRange>& ranges) {
  ATOLL_ASSIGN_OR_RETURN(const int64_t masked, job_->data->CountMasked(ranges));
  const int64_t rows = Sequences(ranges), length = job_->data->sequence_length();
  return rows * length - CountTargets(job_->model->config(), rows, length, masked);
}

absl::StatusOr<JobFacts> SingleDevice::Prepare(const JobSpec& spec) {
  auto job = std::make_unique<Job>();
  job->spec = spec;
  ATOLL_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfigOfJob(spec));
  DataOptions data;
  if (spec.data.pad_documents) data.frame = GetDocumentFrame(config);
  ATOLL_ASSIGN_OR_RETURN(job->data, Dataset::Open(spec.data, config.vocab, data));
  ATOLL_ASSIGN_OR_RETURN(job->model, Model::Create(config, DType::kFloat32));
  RunnerOptions options;
  options.micro_batch_rows = spec.inner.micro_batch_sequences > 0 ? spec.inner.micro_batch_sequences
                                                                  : spec.inner.batch_sequences;
  options.seq_len = spec.data.sequence_length;
  options.optimizer = spec.inner.optimizer;
  ATOLL_ASSIGN_OR_RETURN(job->runner, ModelRunner::Create(*backend_, *job->model, options));
  ATOLL_ASSIGN_OR_RETURN(job->optimizer,
                         Optimizer::Create(*backend_, job->runner->stream(), job->runner->layers(),
                                           OptimizerOptionsFromSpec(spec.inner)));
  JobFacts facts;
  facts.model = ToSpec(job->model->config());
  for (const auto& layer : job->model->layers()) {
    const LayerLayout& layout = layer->layout();
    facts.layers.push_back({layout.name, layout.size, layout.size - layout.trained_size});
  }
  facts.train_sequences = job->data->train_sequences();
  facts.validation_sequences = job->data->validation_sequences();
  facts.data_digest = job->data->digest();
  job_ = std::move(job);
  return facts;
}

absl::Status SingleDevice::InitialWeights() {
  const ModelSpec& spec = job_->spec.model;
  std::vector<LayerLayout> layouts;
  for (const auto& layer : job_->model->layers()) layouts.push_back(layer->layout());
  std::vector<std::vector<float>> values;
  std::vector<std::span<float>> spans;
  for (const LayerLayout& layout : layouts) values.emplace_back(layout.size);
  for (std::vector<float>& layer : values) spans.emplace_back(layer);
  if (job_->model->config().adapter.present()) {
    const std::vector<LayerLayout> base = MakeLayouts(job_->model->config().Base());
    std::vector<std::vector<float>> frozen;
    std::vector<std::span<float>> all;
    for (const LayerLayout& layout : base) frozen.emplace_back(layout.size);
    for (std::vector<float>& layer : frozen) all.emplace_back(layer);
    ATOLL_RETURN_IF_ERROR(ReadWeights(spec.initial_weights_path, base, all));
    for (int l = 0; l < job_->layers(); ++l) {
      ATOLL_RETURN_IF_ERROR(job_->runner->layer(l).WriteFrozen(
          job_->runner->stream(), FrozenWeights(layouts[l], frozen[l])));
      InitLayer(layouts[l], job_->model->config().layers, spec.seed, spans[l]);
    }
  } else if (!spec.initial_weights_path.empty()) {
    ATOLL_RETURN_IF_ERROR(Annotate(ReadWeights(spec.initial_weights_path, layouts, spans),
                                   "model.initial_weights_path"));
  } else {
    for (size_t l = 0; l < layouts.size(); ++l) {
      InitLayer(layouts[l], job_->model->config().layers, spec.seed, spans[l]);
    }
  }
  for (int l = 0; l < job_->layers(); ++l) ATOLL_RETURN_IF_ERROR(SetParameters(l, values[l]));
  return absl::OkStatus();
}

absl::StatusOr<MeanLoss> SingleDevice::Step(const std::vector<PositionRange>& ranges,
                                            double learning_rate) {
  const int64_t rows = Sequences(ranges);
  job_->tokens.resize(static_cast<size_t>(rows * job_->row()));
  std::span<int32_t> rest = job_->tokens;
  for (const PositionRange& range : ranges) {
    const std::span<int32_t> here = rest.first(static_cast<size_t>(range.size() * job_->row()));
    ATOLL_RETURN_IF_ERROR(job_->data->ReadTrain(range.begin, here));
    rest = rest.subspan(here.size());
  }
  const int64_t step = job_->optimizer_steps + 1;
  ATOLL_ASSIGN_OR_RETURN(const LossSum loss, job_->runner->Train(job_->tokens, rows, step));
  ATOLL_RETURN_IF_ERROR(
      job_->optimizer->Step(step, static_cast<float>(learning_rate), rows).status());
  job_->optimizer_steps = step;
  return MeanLoss{loss.mean(), loss.tokens};
}

absl::StatusOr<TaskScore> SingleDevice::ScoreTask(const EvaluationSpec& evaluation) {
  ATOLL_ASSIGN_OR_RETURN(const TaskRows rows,
                         OpenTask(job_->spec, evaluation, job_->model->config()));
  return rows.Score([&](int64_t row) { return job_->runner->Evaluate(rows.row(row), 1); });
}

absl::StatusOr<MeanLoss> SingleDevice::Validate(int64_t sequences, int set) {
  const PositionRange positions = job_->data->SelectValidationPositions(set, sequences);
  const int64_t batch = job_->spec.inner.batch_sequences;
  LossSum sum;
  for (int64_t first = positions.begin; first < positions.end; first += batch) {
    const int64_t rows = std::min(batch, positions.end - first);
    job_->tokens.resize(static_cast<size_t>(rows * job_->row()));
    ATOLL_RETURN_IF_ERROR(job_->data->ReadValidation(first, job_->tokens));
    ATOLL_ASSIGN_OR_RETURN(const LossSum loss, job_->runner->Evaluate(job_->tokens, rows));
    sum.nats += loss.nats;
    sum.tokens += loss.tokens;
  }
  return MeanLoss{sum.mean(), sum.tokens};
}

}  // namespace atl::worker
