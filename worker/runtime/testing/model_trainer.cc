#include "worker/runtime/testing/model_trainer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/check.h"
#include "common/model/job_model.h"
#include "common/model/targets.h"
#include "worker/core/leases.h"
#include "worker/data/dataset.h"
#include "worker/model/optimizer.h"
#include "worker/model/runner.h"
#include "worker/model/weights.h"

namespace atl::worker {
namespace {

class RunnerTrainer : public ModelTrainer {
 public:
  explicit RunnerTrainer(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}

  std::string Name() const override { return backend_->Name(); }
  absl::StatusOr<JobFacts> Prepare(const JobSpec& spec) override;
  void Release() override { job_.reset(); }
  absl::Status InitialWeights() override;
  absl::StatusOr<MeanLoss> Step(const std::vector<PositionRange>& ranges,
                                double learning_rate) override;
  absl::StatusOr<int64_t> CountMasked(const std::vector<PositionRange>& ranges) override {
    ATOLL_ASSIGN_OR_RETURN(const int64_t masked, job_->data->CountMasked(ranges));
    const int64_t rows = Sequences(ranges), length = job_->data->sequence_length();
    return rows * length - CountTargets(job_->model->config(), rows, length, masked);
  }
  absl::StatusOr<MeanLoss> Validate(int64_t sequences, int set) override;

  absl::Status GetParameters(int layer, std::span<float> out) override {
    return ToHost(job_->runner->params(layer), out);
  }
  absl::Status SetParameters(int layer, std::span<const float> values) override {
    ATOLL_RETURN_IF_ERROR(ToDevice(job_->runner->params(layer), values));
    job_->runner->layer(layer).ParamsWritten(job_->runner->stream());
    return absl::OkStatus();
  }
  absl::Status GetMoments(int layer, std::span<float> first, std::span<float> second) override {
    ATOLL_RETURN_IF_ERROR(ToHost(job_->runner->layer(layer).first_moment(), first));
    // What the optimizer does not keep is zero.
    const LayerState& state = job_->runner->layer(layer);
    const auto kept = static_cast<size_t>(state.second_owned().begin);
    std::fill(second.begin(), second.begin() + kept, 0.0f);
    return ToHost(state.second_moment(), second.subspan(kept));
  }
  std::shared_ptr<OuterState> outer() const override { return outer_; }
  absl::StatusOr<Completion> CaptureDelta(const worker::CaptureDelta& command) override;
  absl::Status AdoptPulled(const worker::AdoptPulled& command) override;
  absl::StatusOr<std::vector<MeanLoss>> ValidateBase(int64_t sequences, int sets) override;
  absl::Status ResetMoments() override;

 private:
  struct Job {
    JobSpec spec;
    std::optional<Dataset> data;
    std::optional<Model> model;
    std::unique_ptr<ModelRunner> runner;
    std::unique_ptr<Optimizer> optimizer;
    int64_t optimizer_steps = 0;
    std::vector<int32_t> tokens;  // of one batch, rows of data's row()

    int layers() const { return static_cast<int>(model->layers().size()); }
    int64_t row() const { return data->row(); }
  };

  absl::Status ToHost(const Tensor& from, std::span<float> to) {
    ATOLL_CHECK(from.size() == static_cast<int64_t>(to.size()));
    backend_->CopyToHost(job_->runner->stream(), to.data(), from);
    return backend_->Synchronize(job_->runner->stream());
  }
  absl::Status ToDevice(const Tensor& to, std::span<const float> from) {
    ATOLL_CHECK(to.size() == static_cast<int64_t>(from.size()));
    backend_->CopyToDevice(job_->runner->stream(), to, from.data());
    return backend_->Synchronize(job_->runner->stream());
  }

  absl::Status Add(OuterKind kind, int layer) {
    std::vector<float> values(static_cast<size_t>(job_->runner->params(layer).size()));
    std::vector<float> theta(values.size());
    ATOLL_RETURN_IF_ERROR(ReadOuter(kind, layer, values));
    ATOLL_RETURN_IF_ERROR(GetParameters(layer, theta));
    for (size_t i = 0; i < values.size(); ++i) values[i] = theta[i] + values[i];
    return SetParameters(layer, values);
  }
  absl::Status ReadOuter(OuterKind kind, int layer, std::span<float> out) {
    return outer_->Read(kind, layer, {0, std::ssize(out)}, out);
  }

  const std::unique_ptr<Backend> backend_;
  std::unique_ptr<Job> job_;
  std::shared_ptr<OuterState> outer_;
};

absl::StatusOr<JobFacts> RunnerTrainer::Prepare(const JobSpec& spec) {
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
  outer_ = std::make_shared<OuterState>("", LayoutOfOne("", facts.layers), spec.outer);
  return facts;
}

absl::Status RunnerTrainer::InitialWeights() {
  const ModelSpec& spec = job_->spec.model;
  std::vector<LayerLayout> layouts;
  for (const auto& layer : job_->model->layers()) layouts.push_back(layer->layout());
  std::vector<std::vector<float>> values;
  std::vector<std::span<float>> spans;
  for (const LayerLayout& layout : layouts) values.emplace_back(layout.size);
  for (std::vector<float>& layer : values) spans.emplace_back(layer);
  if (!spec.initial_weights_path.empty()) {
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

absl::StatusOr<MeanLoss> RunnerTrainer::Step(const std::vector<PositionRange>& ranges,
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

absl::StatusOr<MeanLoss> RunnerTrainer::Validate(int64_t sequences, int set) {
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
    sum.hits += loss.hits;
  }
  return MeanLoss{sum.mean(), sum.tokens, sum.accuracy()};
}

absl::StatusOr<Trainer::Completion> RunnerTrainer::CaptureDelta(
    const worker::CaptureDelta& command) {
  ATOLL_RETURN_IF_ERROR(outer_->CheckShards(command));
  ATOLL_RETURN_IF_ERROR(
      outer_->ReadAll(command.shards, [this](int32_t layer, ElementRange, std::span<float> out) {
        return GetParameters(layer, out);
      }));
  return [outer = outer_, command](const std::atomic<bool>& cancelled) {
    return cancelled ? absl::AbortedError("interrupted") : outer->MakeDelta(command);
  };
}

absl::Status RunnerTrainer::AdoptPulled(const worker::AdoptPulled& command) {
  std::vector<float> values;
  for (int l = 0; l < job_->layers(); ++l) {
    if (!Concern(command.shards, l)) continue;
    if (command.mode == AdoptMode::kCarry) {
      ATOLL_RETURN_IF_ERROR(Add(OuterKind::kAddition, l));
      continue;
    }
    values.resize(static_cast<size_t>(job_->runner->params(l).size()));
    ATOLL_RETURN_IF_ERROR(ReadOuter(OuterKind::kPulled, l, values));
    ATOLL_RETURN_IF_ERROR(SetParameters(l, values));
  }
  outer_->Finish(command.version, {}, command.keep_residual, command.shards);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<MeanLoss>> RunnerTrainer::ValidateBase(int64_t sequences, int sets) {
  LayerBuffers theta, base;
  for (int l = 0; l < job_->layers(); ++l) {
    theta.emplace_back(job_->runner->params(l).size());
    base.emplace_back(theta.back().size());
    ATOLL_RETURN_IF_ERROR(GetParameters(l, theta.back()));
    ATOLL_RETURN_IF_ERROR(ReadOuter(OuterKind::kBase, l, base.back()));
  }
  for (int l = 0; l < job_->layers(); ++l) ATOLL_RETURN_IF_ERROR(SetParameters(l, base[l]));
  absl::StatusOr<std::vector<MeanLoss>> losses = ValidateSets(sequences, sets);
  for (int l = 0; l < job_->layers(); ++l) ATOLL_RETURN_IF_ERROR(SetParameters(l, theta[l]));
  return losses;
}

absl::Status RunnerTrainer::ResetMoments() {
  job_->optimizer_steps = 0;
  for (int l = 0; l < job_->layers(); ++l) {
    const LayerState& state = job_->runner->layer(l);
    for (const Tensor& moment : {state.first_moment(), state.second_moment()}) {
      if (moment.size() > 0) backend_->Zero(job_->runner->stream(), moment);
    }
  }
  return backend_->Synchronize(job_->runner->stream());
}

}  // namespace

std::unique_ptr<ModelTrainer> NewModelTrainer(std::unique_ptr<Backend> backend) {
  return std::make_unique<RunnerTrainer>(std::move(backend));
}

}  // namespace atl::worker
