#include "worker/profiler/layer_bench.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "worker/model/weights.h"

namespace atl::worker {
namespace {

constexpr uint64_t kSeed = 1;

// Median and interquartile range over it; 0 of nothing.
std::pair<int64_t, double> MedianAndSpread(std::vector<int64_t> ns) {
  if (ns.empty()) return {0, 0};
  std::sort(ns.begin(), ns.end());
  const int64_t median = ns[ns.size() / 2];
  const int64_t range = ns[ns.size() * 3 / 4] - ns[ns.size() / 4];
  return {median, median > 0 ? static_cast<double>(range) / static_cast<double>(median) : 0};
}

template <class Work>
absl::StatusOr<int64_t> MeasureNanos(Backend& backend, Stream& stream, const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  ATOLL_RETURN_IF_ERROR(work());
  ATOLL_RETURN_IF_ERROR(backend.Synchronize(stream));
  return std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

absl::StatusOr<std::unique_ptr<LayerBench>> LayerBench::Create(Backend& backend, const Model& model,
                                                               int layer, const BatchShape& shape,
                                                               const OptimizerOptions& optimizer,
                                                               Communicator* communicator) {
  std::unique_ptr<LayerBench> bench(new LayerBench(backend, model, layer, shape, communicator));
  ATOLL_RETURN_IF_ERROR(bench->MakeState(optimizer));
  ATOLL_RETURN_IF_ERROR(bench->Allocate());
  ATOLL_RETURN_IF_ERROR(bench->Fill());
  return bench;
}

absl::Status LayerBench::MakeState(const OptimizerOptions& options) {
  ATOLL_ASSIGN_OR_RETURN(stream_, backend_.NewStream());
  ATOLL_ASSIGN_OR_RETURN(LayerState state,
                         LayerState::Create(backend_, *stream_, layer_.layout(), model_.compute(),
                                            LayerState::Training{options.kind}));
  state_.emplace(std::move(state));
  ATOLL_ASSIGN_OR_RETURN(optimizer_, Optimizer::Create(backend_, *stream_, {&*state_}, options));
  return absl::OkStatus();
}

void LayerBench::Carve(Carver& carver) {
  const int64_t n = shape_.tokens();
  const DType compute = model_.compute();
  const int64_t table = model_.part().vocab.size() * model_.config().d_model;
  if (last() && model_.config().tied_head) {
    table_ = carver.Take(compute, 1, table);
    if (!model_.config().adapter.present()) table_grads_ = carver.Take(DType::kFloat32, 1, table);
  }
  const int64_t width = first() ? 0 : model_.output_cols(index_ - 1);
  input_ = first() ? carver.Take(DType::kInt32, 1,
                                 shape_.rows * model_.config().InputNumbers(shape_.seq_len))
                   : carver.Take(compute, n, width);
  if (head_) {
    head_->Carve(carver);
  } else {
    output_ = carver.Take(compute, n, layer_.output_cols());
    grad_output_ = carver.Take(compute, n, layer_.output_cols());
  }
  grad_input_ = carver.Take(compute, n, width);
  targets_ = carver.Take(DType::kInt32, 1, n);
  totals_ = carver.Take(DType::kFloat32, 1, 2);
  const Tensor constants = model_.Constants(shape_.seq_len, nullptr);
  constants_ = model_.Constants(shape_.seq_len,
                                carver.Bytes(constants.size() * GetElementSize(DType::kFloat32)));
  stash_ = {carver.Bytes(bytes_.forward_stash), carver.Bytes(bytes_.backward_stash)};
  workspace_ = {carver.Bytes(bytes_.workspace), bytes_.workspace};
}

absl::Status LayerBench::Allocate() {
  if (last()) {
    head_.emplace(backend_, model_, shape_, /*trains=*/true);
    bytes_.workspace = head_->workspace_bytes();
  } else {
    bytes_ = layer_.Bytes(backend_, shape_);
  }
  Carver sizes(nullptr);
  Carve(sizes);
  ATOLL_ASSIGN_OR_RETURN(memory_, backend_.Allocate(sizes.bytes()));
  Carver carver(memory_.data());
  Carve(carver);
  return absl::OkStatus();
}

// Weights as training begins with them, and numbers of an activation's size: times of some
// operations depend on what they compute (denormal numbers above all).
absl::Status LayerBench::Fill() {
  std::vector<float> values(static_cast<size_t>(layer_.layout().size));
  InitLayer(layer_.layout(), model_.config().layers, kSeed, values);
  if (!values.empty()) backend_.CopyToDevice(*stream_, state_->params(), values.data());
  state_->ParamsWritten(*stream_);
  if (layer_.layout().frozen_size > 0) {
    const LayerLayout whole = MakeLayouts(model_.config())[static_cast<size_t>(index_)];
    const LayerLayout frozen = FrozenLayout(whole);
    values.resize(static_cast<size_t>(frozen.size));
    InitLayer(frozen, model_.config().layers, kSeed, values);
    ATOLL_RETURN_IF_ERROR(state_->WriteFrozen(*stream_, FrozenWeights(whole, values)));
  }
  backend_.Zero(*stream_, totals_);
  const int64_t n = shape_.tokens();
  // The numbers are pixels, too, for images, of which few are as large as classes.
  std::vector<int32_t> tokens(static_cast<size_t>(first() ? std::max(n, input_.size()) : n));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>(static_cast<int64_t>(i) * 7919 % model_.config().vocab);
  }
  backend_.CopyToDevice(*stream_, targets_, tokens.data());
  if (first()) backend_.CopyToDevice(*stream_, input_, tokens.data());
  for (const auto& [tensor, scale] :
       {std::pair(table_, 0.02f), std::pair(input_, 1.0f), std::pair(grad_output_, 1e-3f)}) {
    if (!tensor.present() || tensor.dtype == DType::kInt32) continue;
    std::vector<float> numbers(static_cast<size_t>(tensor.size()));
    for (size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = scale * (static_cast<float>(i * 2654435761u % 1024) / 512.0f - 1.0f);
    }
    ATOLL_ASSIGN_OR_RETURN(Buffer buffer,
                           backend_.Allocate(tensor.size() * GetElementSize(DType::kFloat32)));
    const Tensor staged(buffer.data(), DType::kFloat32, tensor.rows, tensor.cols);
    backend_.CopyToDevice(*stream_, staged, numbers.data());
    backend_.Run(*stream_, Convert{staged, tensor});
    ATOLL_RETURN_IF_ERROR(backend_.Synchronize(*stream_));
  }
  if (table_grads_.present()) backend_.Zero(*stream_, table_grads_);
  ATOLL_RETURN_IF_ERROR(model_.InitConstants(backend_, *stream_, constants_));
  return backend_.Synchronize(*stream_);
}

LayerMemory LayerBench::Memory() const {
  LayerMemory memory = state_->memory();
  memory.tied_params = table_.data;
  memory.tied_grads = static_cast<float*>(table_grads_.data);
  return memory;
}

absl::Status LayerBench::Forward() {
  if (!head_) return layer_.Forward(Call(), Memory(), input_, output_, stash_);
  const CrossEntropy loss{.targets = targets_,
                          .totals = totals_,
                          .grad_scale = 1.0f / static_cast<float>(shape_.tokens())};
  return head_->Run(Call(), Memory(), input_, loss, /*hits=*/{}, grad_input_);
}

absl::Status LayerBench::BackwardInput() {
  if (head_) return absl::OkStatus();
  return layer_.BackwardInput(Call(), Memory(), input_, grad_output_, grad_input_, stash_);
}

absl::Status LayerBench::BackwardWeight() {
  if (!head_) layer_.BackwardWeight(Call(), Memory(), input_, grad_output_, stash_);
  return absl::OkStatus();
}

absl::StatusOr<LayerCost> LayerBench::Measure(int runs) {
  LayerCost cost;
  cost.kind = first() ? LayerKind::kEmbedding : last() ? LayerKind::kHead : LayerKind::kBlock;
  cost.tensor_parallel = model_.part().ranks;
  cost.micro_batch_sequences = static_cast<int32_t>(shape_.rows);
  std::vector<int64_t> times[4];
  for (int run = 0; runs > 0 && run <= runs; ++run) {
    const auto timed = [&](int which, auto work) -> absl::Status {
      ATOLL_ASSIGN_OR_RETURN(const int64_t ns, MeasureNanos(backend_, *stream_, work));
      if (run > 0) times[which].push_back(ns);
      return absl::OkStatus();
    };
    ATOLL_RETURN_IF_ERROR(timed(0, [&] { return Forward(); }));
    ATOLL_RETURN_IF_ERROR(timed(1, [&] { return BackwardInput(); }));
    ATOLL_RETURN_IF_ERROR(timed(2, [&] { return BackwardWeight(); }));
    ATOLL_RETURN_IF_ERROR(timed(3, [&] { return optimizer_->Step(1, 0).status(); }));
  }
  int64_t* const medians[] = {&cost.forward_ns, &cost.input_gradient_ns, &cost.weight_gradient_ns,
                              &cost.optimizer_ns};
  for (int i = 0; i < 4; ++i) {
    const auto [median, spread] = MedianAndSpread(std::move(times[i]));
    *medians[i] = median;
    cost.spread_ratio = std::max(cost.spread_ratio, spread);
  }
  if (head_) cost.input_gradient_ns = cost.weight_gradient_ns = 0;  // F does all
  if (first() && !model_.config().is_images())
    cost.input_gradient_ns = 0;  // tokens have no gradient
  const int64_t element = GetElementSize(model_.compute());
  cost.parameter_bytes = state_->bytes();
  cost.stash_bytes = bytes_.forward_stash + bytes_.backward_stash;
  cost.backward_stash_bytes = bytes_.backward_stash;
  cost.output_bytes = output_.rows * output_.stride * element;
  cost.workspace_bytes = workspace_.bytes;
  return cost;
}

}  // namespace atl::worker
