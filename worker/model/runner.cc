#include "worker/model/runner.h"

#include <algorithm>

#include "common/masked_tokens.h"
#include "common/model/targets.h"
#include "kernels/bfloat16.h"
#include "worker/model/exec.h"

namespace atl {

absl::StatusOr<std::unique_ptr<ModelRunner>> ModelRunner::Create(Backend& backend,
                                                                 const Model& model,
                                                                 const RunnerOptions& options) {
  ATOLL_CHECK(backend.Supports(model.compute()), backend.Name(), " does not compute in this type");
  ATOLL_CHECK(options.micro_batch_rows > 0);
  if (options.seq_len < 1 || options.seq_len > model.config().LongestSequence()) {
    return absl::InvalidArgumentError(absl::StrCat("sequences of ", options.seq_len,
                                                   " tokens; the model has positions for 1 to ",
                                                   model.config().LongestSequence()));
  }
  ATOLL_RETURN_IF_ERROR(CheckChoices(model.config(), {options.micro_batch_rows, options.seq_len}));
  std::unique_ptr<ModelRunner> runner(new ModelRunner(backend, model, options));
  ATOLL_RETURN_IF_ERROR(runner->Allocate());
  return runner;
}

absl::Status ModelRunner::Allocate() {
  ATOLL_ASSIGN_OR_RETURN(stream_, backend_.NewStream());
  const int layers = static_cast<int>(model_.layers().size());
  layers_.reserve(layers);
  for (const auto& layer : model_.layers()) {
    ATOLL_ASSIGN_OR_RETURN(LayerState state, LayerState::Create(backend_, *stream_, layer->layout(),
                                                                model_.compute(), training()));
    layers_.push_back(std::move(state));
  }
  StageOptions stage;
  stage.layers = layers;
  stage.shape = {options_.micro_batch_rows, options_.seq_len};
  stage.backward = options_.train ? StageOptions::Backward::kFused : StageOptions::Backward::kNone;
  // B and W of the head and the embedding come in a fixed order, so the table's gradient adds up
  // where the embedding's is.
  LayerState* const table = model_.config().tied_head ? &layers_[0] : nullptr;
  stage_ = Stage::Create(backend_, model_, this->layers(), table, stage);
  ATOLL_RETURN_IF_ERROR(stage_->Allocate());

  const int64_t n = stage.shape.tokens();
  const int64_t borders = options_.micro_batch_rows * BorderNumbers(options_.seq_len);
  const auto carve = [&](Carver carver) {
    if (borders > 0) borders_ = carver.Take(DType::kInt32, 1, borders);
    targets_ = carver.Take(DType::kInt32, 1, n);
    totals_ = carver.Take(StateType(model_.compute()), 1, kLossTotals);
    const ModelConfig& config = model_.config();
    if (options_.train && config.experts.count > 0) {
      router_share_ = carver.Take(StateType(model_.compute()), 1, 1);
      router_totals_ = carver.Take(StateType(model_.compute()), config.mixtures(),
                                   kRouterTotals + config.experts.count);
    }
    constants_ = model_.Constants(options_.seq_len, nullptr);
    constants_ = model_.Constants(
        options_.seq_len, carver.Bytes(constants_.size() * GetElementSize(constants_.dtype)));
    workspace_ = {carver.Bytes(stage_->workspace_bytes()), stage_->workspace_bytes()};
    return carver.bytes();
  };
  ATOLL_ASSIGN_OR_RETURN(memory_, backend_.Allocate(carve(Carver(nullptr))));
  carve(Carver(memory_.data()));
  ATOLL_ASSIGN_OR_RETURN(host_totals_, HostReals::Create(backend_, totals_.dtype, kLossTotals));
  if (router_totals_.present()) {
    ATOLL_ASSIGN_OR_RETURN(host_share_, HostReals::Create(backend_, totals_.dtype, 1));
    ATOLL_ASSIGN_OR_RETURN(host_router_totals_,
                           HostReals::Create(backend_, totals_.dtype, router_totals_.size()));
  }
  const int64_t inputs = options_.micro_batch_rows * model_.config().InputNumbers(options_.seq_len);
  ATOLL_ASSIGN_OR_RETURN(
      staging_, backend_.AllocateHost((borders + inputs + n) * GetElementSize(DType::kInt32)));
  return model_.InitConstants(backend_, *stream_, constants_);
}

int64_t ModelRunner::memory_bytes() const {
  int64_t bytes = stage_->activation_bytes() + memory_.bytes();
  for (const auto& layer : model_.layers()) {
    bytes += LayerState::Bytes(layer->layout(), model_.compute(), training());
  }
  return bytes;
}

std::vector<LayerState*> ModelRunner::layers() {
  std::vector<LayerState*> layers;
  for (LayerState& layer : layers_) layers.push_back(&layer);
  return layers;
}

ModelRunner::Batch ModelRunner::MakeBatch(std::span<const int32_t> tokens, int64_t rows,
                                          int64_t step) const {
  ATOLL_CHECK(rows > 0 && std::ssize(tokens) % rows == 0);
  const size_t row = tokens.size() / static_cast<size_t>(rows), length = row - 1;
  const size_t each = model_.config().is_images() ? 1 : length;  // targets
  const auto count = static_cast<size_t>(rows);
  Batch batch{std::vector<int32_t>(count * length), std::vector<int32_t>(count * each), rows};
  const auto borders = static_cast<size_t>(BorderNumbers(static_cast<int64_t>(length)));
  batch.borders.resize(count * borders);
  for (size_t r = 0; r < count; ++r) {
    FillRow(model_.config(), tokens.subspan(r * row, row), step,
            std::span(batch.inputs).subspan(r * length, length),
            std::span(batch.targets).subspan(r * each, each));
    if (borders == 0) continue;
    FillBorders(model_.config(), tokens.subspan(r * row, row),
                std::span(batch.borders).subspan(r * borders, borders));
  }
  return batch;
}

void ModelRunner::StageTokens(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                              int slot) {
  const int64_t n = stage_->shape(slot).tokens();
  auto* staged = static_cast<int32_t*>(staging_.data()) + borders_.cols;
  std::copy(inputs.begin(), inputs.end(), staged);
  backend_.CopyToDevice(*stream_, stage_->input(slot), staged);
  if (targets.empty()) return;
  int32_t* const targets_staged = staged + inputs.size();
  std::copy(targets.begin(), targets.end(), targets_staged);
  backend_.CopyToDevice(*stream_, targets_.Columns(0, n), targets_staged);
}

Tensor ModelRunner::StageBorders(std::span<const int32_t> borders, int64_t seq_len) {
  if (AreWhole(model_.config(), borders, seq_len)) return {};
  ATOLL_CHECK(borders_.present(), "rows of this runner have no borders");
  auto* const staged = static_cast<int32_t*>(staging_.data());
  std::copy(borders.begin(), borders.end(), staged);
  const Tensor here = borders_.Columns(0, std::ssize(borders));
  backend_.CopyToDevice(*stream_, here, staged);
  return here;
}

absl::Status ModelRunner::RunMicroBatch(int slot, const Batch& batch, int64_t batch_tokens,
                                        bool train, const Tensor& borders) {
  backend_.Zero(*stream_, totals_);
  ATOLL_RETURN_IF_ERROR(stage_->Forward(Call(!train, borders), slot, 0, Tensor()));
  StageCall loss = Call(!train);
  loss.counts_hits = !train;
  ATOLL_RETURN_IF_ERROR(stage_->Loss(loss, slot, stage_->TokensOfChunk(slot, 0), targets_, totals_,
                                     1.0f / static_cast<float>(batch_tokens), train));
  if (train) {
    stage_->StartBackward(slot);
    StageCall call = Call(false, borders);
    call.router_share = router_share_;
    call.router_totals = router_totals_;
    if (router_totals_.present()) {
      host_share_.Set(0, 1.0 / static_cast<double>(batch.rows));
      backend_.CopyToDevice(*stream_, router_share_, host_share_.data());
      backend_.Zero(*stream_, router_totals_);
    }
    ATOLL_RETURN_IF_ERROR(stage_->Backward(call, slot, 0, Tensor()));
    if (router_totals_.present()) {
      backend_.CopyToHost(*stream_, host_router_totals_.data(), router_totals_);
    }
  }
  backend_.CopyToHost(*stream_, host_totals_.data(), totals_);
  return backend_.Synchronize(*stream_);
}

absl::StatusOr<LossSum> ModelRunner::RunBatch(const Batch& batch, bool train) {
  const int64_t size = std::ssize(batch.targets);
  ATOLL_CHECK(batch.rows > 0 && size % batch.rows == 0);
  const int64_t seq_len = size / batch.rows;
  const int64_t inputs = model_.config().InputNumbers(seq_len);
  ATOLL_CHECK(std::ssize(batch.inputs) == inputs * batch.rows);
  ATOLL_CHECK(seq_len > 0 && seq_len <= options_.seq_len, "sequences of ", seq_len, " tokens");
  LossSum sum;
  sum.tokens = size - std::count(batch.targets.begin(), batch.targets.end(), kIgnoredTarget);
  for (int64_t first = 0; first < batch.rows; first += options_.micro_batch_rows) {
    const BatchShape shape{std::min(options_.micro_batch_rows, batch.rows - first), seq_len};
    const int slot = stage_->Start(shape);
    const auto begin = static_cast<size_t>(first * seq_len);
    const auto n = static_cast<size_t>(shape.tokens());
    StageTokens(
        std::span(batch.inputs)
            .subspan(static_cast<size_t>(first * inputs), static_cast<size_t>(shape.rows * inputs)),
        std::span(batch.targets).subspan(begin, n), slot);
    const auto each = batch.borders.size() / static_cast<size_t>(batch.rows);
    const Tensor borders = StageBorders(
        std::span(batch.borders)
            .subspan(static_cast<size_t>(first) * each, static_cast<size_t>(shape.rows) * each),
        seq_len);
    const absl::Status status =
        RunMicroBatch(slot, batch, std::max<int64_t>(1, sum.tokens), train, borders);
    stage_->Finish(slot);
    ATOLL_RETURN_IF_ERROR(status);
    sum.nats += host_totals_[0];
    sum.hits += host_totals_[2];
    if (train && router_totals_.present()) {
      sum.AddRouters(host_router_totals_, model_.config().mixtures(),
                     model_.config().experts.count);
    }
  }
  return sum;
}

absl::StatusOr<LossSum> ModelRunner::Train(const Batch& batch) {
  ATOLL_CHECK(options_.train, "this runner only evaluates");
  return RunBatch(batch, true);
}

absl::Status ModelRunner::RunLogits(int slot, int64_t first, std::span<float> logits) {
  ATOLL_RETURN_IF_ERROR(stage_->Forward(Call(true), slot, 0, Tensor()));
  const int64_t end = stage_->shape(slot).tokens();
  while (first < end) {
    const int64_t rows = std::min(stage_->logit_rows(), end - first);
    ATOLL_ASSIGN_OR_RETURN(const Tensor slice, stage_->Logits(Call(true), slot, first, rows));
    ATOLL_RETURN_IF_ERROR(CopyLogits(slice, logits.first(static_cast<size_t>(slice.size()))));
    logits = logits.subspan(static_cast<size_t>(slice.size()));
    first += rows;
  }
  return absl::OkStatus();
}

absl::Status ModelRunner::CopyLogits(const Tensor& output, std::span<float> logits) {
  // With what fills up the rows.
  const Tensor whole(output.data, output.dtype, output.rows, output.stride);
  const auto copy = [&]<typename T>(std::vector<T> values, const auto& to_float) -> absl::Status {
    values.resize(static_cast<size_t>(whole.size()));
    backend_.CopyToHost(*stream_, values.data(), whole);
    ATOLL_RETURN_IF_ERROR(backend_.Synchronize(*stream_));
    for (int64_t r = 0; r < output.rows; ++r) {
      std::transform(values.begin() + r * output.stride,
                     values.begin() + r * output.stride + output.cols,
                     logits.begin() + r * output.cols, to_float);
    }
    return absl::OkStatus();
  };
  switch (output.dtype) {
    case DType::kBfloat16:
      return copy(std::vector<Bfloat16>(), WidenBfloat16);
    case DType::kFloat64:
      return copy(std::vector<double>(), [](double x) { return static_cast<float>(x); });
    default:
      return copy(std::vector<float>(), [](float x) { return x; });
  }
}

absl::Status ModelRunner::Logits(std::span<const int32_t> tokens, std::span<float> logits) {
  const bool image = model_.config().is_images();
  const int64_t length = image ? 1 : std::ssize(tokens);
  ATOLL_CHECK(std::ssize(tokens) == model_.config().InputNumbers(length));
  const int64_t vocab = model_.part().vocab.size();
  const auto rows = static_cast<int64_t>(logits.size()) / vocab;
  ATOLL_CHECK(length > 0 && length <= options_.seq_len);
  ATOLL_CHECK(static_cast<int64_t>(logits.size()) == rows * vocab && (rows == 1 || rows == length));
  const int slot = stage_->Start({1, length});
  StageTokens(tokens, {}, slot);
  const absl::Status status = RunLogits(slot, length - rows, logits);
  stage_->Finish(slot);
  return status;
}

}  // namespace atl
