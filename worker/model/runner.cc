#include "worker/model/runner.h"

#include <algorithm>
#include <cmath>

#include "kernels/bfloat16.h"

namespace atl {

absl::StatusOr<std::unique_ptr<ModelRunner>> ModelRunner::Create(Backend& backend,
                                                                 const Model& model,
                                                                 const RunnerOptions& options) {
  ATOLL_CHECK(backend.Supports(model.compute()), backend.Name(), " does not compute in this type");
  ATOLL_CHECK(options.micro_batch_rows > 0);
  if (options.seq_len < 1 || options.seq_len > model.config().max_positions) {
    return absl::InvalidArgumentError(absl::StrCat("sequences of ", options.seq_len,
                                                   " tokens; the model has positions for 1 to ",
                                                   model.config().max_positions));
  }
  std::unique_ptr<ModelRunner> runner(new ModelRunner(backend, model, options));
  ATOLL_RETURN_IF_ERROR(runner->Allocate());
  return runner;
}

absl::Status ModelRunner::Allocate() {
  ATOLL_ASSIGN_OR_RETURN(stream_, backend_.NewStream());
  layers_.resize(model_.layers().size());
  for (size_t i = 0; i < layers_.size(); ++i) {
    const int64_t bytes = model_.layers()[i]->layout().size * SizeOf(DType::kFloat32);
    ATOLL_ASSIGN_OR_RETURN(layers_[i].params, backend_.Allocate(bytes));
    if (model_.compute() == DType::kBfloat16) {
      ATOLL_ASSIGN_OR_RETURN(layers_[i].copy, backend_.Allocate(bytes / 2));
    }
    if (options_.train) {
      ATOLL_ASSIGN_OR_RETURN(layers_[i].grads, backend_.Allocate(bytes));
      backend_.Zero(*stream_, grads(static_cast<int>(i)));
    }
  }
  Carver sizes(nullptr);
  CarveActivations(sizes);
  ATOLL_ASSIGN_OR_RETURN(memory_, backend_.Allocate(sizes.bytes()));
  Carver carver(memory_.data());
  CarveActivations(carver);
  const int64_t tokens = options_.micro_batch_rows * options_.seq_len;
  ATOLL_ASSIGN_OR_RETURN(staging_, backend_.AllocateHost(2 * tokens * SizeOf(DType::kInt32)));
  model_.InitConstants(backend_, *stream_, constants_);
  return backend_.Synchronize(*stream_);
}

void ModelRunner::CarveActivations(Carver& carver) {
  const BatchShape shape{options_.micro_batch_rows, options_.seq_len};
  const int64_t n = shape.tokens();
  tokens_ = carver.Take(DType::kInt32, 1, n);
  targets_ = carver.Take(DType::kInt32, 1, n);
  totals_ = carver.Take(DType::kFloat32, 1, 2);
  const Tensor constants = model_.Constants(shape.seq_len, nullptr);
  constants_ =
      model_.Constants(shape.seq_len, carver.Bytes(constants.size() * SizeOf(DType::kFloat32)));

  // Without a backward pass two boundary activations and one stash serve all layers in turn.
  Tensor boundary[2];
  LayerBytes largest;
  for (const auto& layer : model_.layers()) {
    const LayerBytes bytes = layer->Bytes(backend_, shape);
    largest.forward_stash = std::max(largest.forward_stash, bytes.forward_stash);
    largest.backward_stash = std::max(largest.backward_stash, bytes.backward_stash);
    largest.workspace = std::max(largest.workspace, bytes.workspace);
  }
  void* shared_stash = options_.train ? nullptr : carver.Bytes(largest.forward_stash);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = *model_.layers()[i];
    const bool last = i + 1 == layers_.size();
    if (options_.train || last || i < 2) {
      layers_[i].output = carver.Take(model_.compute(), n, layer.output_cols());
      if (i < 2) boundary[i] = layers_[i].output;
    } else {
      layers_[i].output = boundary[i % 2];
    }
    layers_[i].forward_stash =
        options_.train ? carver.Bytes(layer.Bytes(backend_, shape).forward_stash) : shared_stash;
  }
  if (options_.train) {
    for (Tensor& grad : grad_) {
      grad = carver.Take(model_.compute(), n, model_.config().d_model);
    }
    backward_stash_ = carver.Bytes(largest.backward_stash);
  }
  const CrossEntropy loss{.logits = layers_.back().output,
                          .targets = targets_,
                          .dlogits = layers_.back().output,
                          .totals = totals_};
  const int64_t workspace = std::max(largest.workspace, model_.LossWorkspaceBytes(backend_, loss));
  workspace_ = {carver.Bytes(workspace), workspace};
}

Tensor ModelRunner::Flat(const Buffer& buffer, int layer) const {
  return {buffer.data(), DType::kFloat32, 1, model_.layers()[layer]->layout().size};
}

Tensor ModelRunner::params_copy(int layer) const {
  if (model_.compute() == DType::kFloat32) return {};
  return {layers_[layer].copy.data(), model_.compute(), 1, model_.layers()[layer]->layout().size};
}

void ModelRunner::ParamsWritten(int layer) {
  const Tensor copy = params_copy(layer);
  if (copy.present()) backend_.Run(*stream_, Convert{.from = params(layer), .to = copy});
}

LayerMemory ModelRunner::Memory(int layer) const {
  const auto read = [&](int of) {
    const Tensor copy = params_copy(of);
    return copy.present() ? copy.data : layers_[of].params.data();
  };
  LayerMemory memory;
  memory.params = read(layer);
  memory.grads = static_cast<float*>(layers_[layer].grads.data());
  // The table is the first parameter of the embedding.
  memory.tied_params = read(0);
  memory.tied_grads = static_cast<float*>(layers_[0].grads.data());
  return memory;
}

LayerCall ModelRunner::Call(const BatchShape& shape) {
  return {backend_, *stream_, workspace_, shape, constants_, options_.communicator};
}

Tensor ModelRunner::Output(int layer, const BatchShape& shape) const {
  return layers_[layer].output.Rows(0, shape.tokens());
}

Tensor ModelRunner::Input(int layer, const BatchShape& shape) const {
  return layer == 0 ? tokens_.Columns(0, shape.tokens()) : Output(layer - 1, shape);
}

void ModelRunner::StageTokens(std::span<const int32_t> tokens, const BatchShape& shape,
                              bool with_targets) {
  const int64_t n = shape.tokens(), row = shape.seq_len + (with_targets ? 1 : 0);
  auto* staged = static_cast<int32_t*>(staging_.data());
  for (int64_t r = 0; r < shape.rows; ++r) {
    const auto from = tokens.begin() + r * row;
    std::copy_n(from, shape.seq_len, staged + r * shape.seq_len);
    if (with_targets) std::copy_n(from + 1, shape.seq_len, staged + n + r * shape.seq_len);
  }
  backend_.CopyToDevice(*stream_, tokens_.Columns(0, n), staged);
  if (with_targets) backend_.CopyToDevice(*stream_, targets_.Columns(0, n), staged + n);
}

absl::Status ModelRunner::RunForward(const BatchShape& shape, int layers) {
  for (int i = 0; i < layers; ++i) {
    ATOLL_RETURN_IF_ERROR(model_.layers()[i]->Forward(Call(shape), Memory(i), Input(i, shape),
                                                      Output(i, shape),
                                                      {layers_[i].forward_stash, nullptr}));
  }
  return absl::OkStatus();
}

// The gradient of the loss takes the logits' place.
absl::Status ModelRunner::RunLoss(const BatchShape& shape, int64_t batch_tokens, bool train) {
  const Tensor logits = Output(static_cast<int>(layers_.size()) - 1, shape);
  const CrossEntropy loss{.logits = logits,
                          .targets = targets_.Columns(0, shape.tokens()),
                          .dlogits = train ? logits : Tensor(),
                          .totals = totals_,
                          .grad_scale = 1.0f / static_cast<float>(batch_tokens)};
  return model_.Loss(Call(shape), loss);
}

absl::Status ModelRunner::RunBackward(const BatchShape& shape) {
  const int last = static_cast<int>(layers_.size()) - 1;
  Tensor grad_output = Output(last, shape);
  for (int i = last; i >= 0; --i) {
    const Layer& layer = *model_.layers()[i];
    const Tensor grad_input = grad_[i % 2].Rows(0, shape.tokens());
    const Stash stash{layers_[i].forward_stash, backward_stash_};
    ATOLL_RETURN_IF_ERROR(layer.BackwardInput(Call(shape), Memory(i), Input(i, shape), grad_output,
                                              grad_input, stash));
    layer.BackwardWeight(Call(shape), Memory(i), Input(i, shape), grad_output, stash);
    grad_output = grad_input;
  }
  return absl::OkStatus();
}

absl::StatusOr<LossSum> ModelRunner::RunBatch(std::span<const int32_t> tokens, int64_t rows,
                                              bool train) {
  ATOLL_CHECK(rows > 0 && static_cast<int64_t>(tokens.size()) % rows == 0);
  const int64_t row = static_cast<int64_t>(tokens.size()) / rows, seq_len = row - 1;
  ATOLL_CHECK(seq_len > 0 && seq_len <= options_.seq_len, "sequences of ", seq_len, " tokens");
  LossSum sum;
  for (int64_t first = 0; first < rows; first += options_.micro_batch_rows) {
    const BatchShape shape{std::min(options_.micro_batch_rows, rows - first), seq_len};
    StageTokens(tokens.subspan(first * row, shape.rows * row), shape, true);
    backend_.Zero(*stream_, totals_);
    ATOLL_RETURN_IF_ERROR(RunForward(shape, static_cast<int>(layers_.size())));
    ATOLL_RETURN_IF_ERROR(RunLoss(shape, rows * seq_len, train));
    float totals[2];
    backend_.CopyToHost(*stream_, totals, totals_);
    if (train) ATOLL_RETURN_IF_ERROR(RunBackward(shape));
    ATOLL_RETURN_IF_ERROR(backend_.Synchronize(*stream_));
    sum.nats += totals[0];
    sum.tokens += shape.tokens();
  }
  return sum;
}

absl::StatusOr<LossSum> ModelRunner::Train(std::span<const int32_t> tokens, int64_t rows) {
  ATOLL_CHECK(options_.train, "this runner only evaluates");
  return RunBatch(tokens, rows, true);
}

absl::StatusOr<LossSum> ModelRunner::Evaluate(std::span<const int32_t> tokens, int64_t rows) {
  return RunBatch(tokens, rows, false);
}

absl::Status ModelRunner::Logits(std::span<const int32_t> tokens, std::span<float> logits) {
  const auto length = static_cast<int64_t>(tokens.size());
  const int64_t vocab = model_.part().vocab.size();
  const auto rows = static_cast<int64_t>(logits.size()) / vocab;
  ATOLL_CHECK(length > 0 && length <= options_.seq_len);
  ATOLL_CHECK(static_cast<int64_t>(logits.size()) == rows * vocab && (rows == 1 || rows == length));
  const BatchShape shape{1, length};
  StageTokens(tokens, shape, false);
  const int head = static_cast<int>(layers_.size()) - 1;
  ATOLL_RETURN_IF_ERROR(RunForward(shape, head));
  // The head works row by row: only the rows that were asked for.
  const BatchShape head_shape{1, rows};
  const Tensor output = Output(head, head_shape);
  ATOLL_RETURN_IF_ERROR(model_.layers()[head]->Forward(
      Call(head_shape), Memory(head), Input(head, shape).Rows(length - rows, rows), output,
      {layers_[head].forward_stash, nullptr}));
  if (output.dtype == DType::kFloat32) {
    backend_.CopyToHost(*stream_, logits.data(), output);
    return backend_.Synchronize(*stream_);
  }
  std::vector<Bfloat16> rounded(logits.size());
  backend_.CopyToHost(*stream_, rounded.data(), output);
  ATOLL_RETURN_IF_ERROR(backend_.Synchronize(*stream_));
  std::transform(rounded.begin(), rounded.end(), logits.begin(), WidenBfloat16);
  return absl::OkStatus();
}

}  // namespace atl
