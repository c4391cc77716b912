#include "worker/model/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/model/tensor_layout.h"
#include "worker/model/exec.h"

namespace atl {

absl::StatusOr<std::unique_ptr<AdamWOptimizer>> AdamWOptimizer::Create(
    Backend& backend, Stream& stream, std::vector<LayerState*> layers,
    const AdamWOptions& options) {
  std::unique_ptr<AdamWOptimizer> optimizer(
      new AdamWOptimizer(backend, stream, std::move(layers), options));
  ATOLL_RETURN_IF_ERROR(optimizer->Allocate());
  return optimizer;
}

absl::Status AdamWOptimizer::Allocate() {
  const DType type = layers_.empty() ? DType::kFloat32 : layers_[0]->grads().dtype;
  int64_t workspace = 0;
  for (const LayerState* layer : layers_) {
    const SumOfSquares op{layer->grads(), Tensor(nullptr, type, 1, 1), true};
    workspace = std::max(workspace, backend_.WorkspaceBytes(op));
  }
  host_sum_ = HostReals(type, 1);
  host_sums_ = HostReals(type, static_cast<int64_t>(layers_.size()));
  const auto carve = [&](Carver carver) {
    sums_ = carver.Take(type, 1, static_cast<int64_t>(layers_.size()));
    scale_ = carver.Take(type, 1, 1);
    workspace_ = {carver.Bytes(workspace), workspace};
    return carver.bytes();
  };
  ATOLL_ASSIGN_OR_RETURN(scratch_, backend_.Allocate(carve(Carver(nullptr))));
  carve(Carver(scratch_.data()));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> AdamWOptimizer::SumsOfSquares(int rank) {
  backend_.Zero(stream_, sums_);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Tensor sum = sums_.Columns(static_cast<int64_t>(i), 1);
    const Range owned = layers_[i]->owned();
    for (const Range& counted : CountedRanges(layers_[i]->layout(), rank)) {
      const Range range{std::max(counted.begin, owned.begin), std::min(counted.end, owned.end)};
      if (range.size() <= 0) continue;
      const Tensor part = layers_[i]->grads().Columns(range.begin, range.size());
      backend_.Run(stream_, SumOfSquares{part, sum, true}, workspace_);
    }
  }
  backend_.CopyToHost(stream_, host_sums_.data(), sums_);
  ATOLL_RETURN_IF_ERROR(backend_.Synchronize(stream_));
  return host_sums_.All();
}

void AdamWOptimizer::Apply(int64_t step, float learning_rate, double sum_of_squares,
                           bool keep_gradients) {
  Tensor scale;
  if (options_.clip_norm > 0) {
    host_sum_.Set(0, sum_of_squares);
    backend_.CopyToDevice(stream_, scale_, host_sum_.data());
    backend_.Run(stream_, ClipScale{scale_, scale_, options_.clip_norm});
    scale = scale_;
  }
  for (LayerState* layer : layers_) {
    const LayerLayout& layout = layer->layout();
    const Range owned = layer->owned();
    const auto update = [&](int64_t from, int64_t to, float weight_decay) {
      const int64_t begin = std::max(from, owned.begin), size = std::min(to, owned.end) - begin;
      if (size <= 0) return;
      AdamW op;
      op.param = layer->params().Columns(begin, size);
      op.grad = layer->grads().Columns(begin, size);
      op.m = layer->first_moment().Columns(begin - owned.begin, size);
      op.v = layer->second_moment().Columns(begin - owned.begin, size);
      op.grad_scale = scale;
      const Tensor copy = layer->params_copy();
      if (copy.present()) op.param_copy = copy.Columns(begin, size);
      op.step = step;
      op.lr = learning_rate;
      op.beta1 = options_.beta1;
      op.beta2 = options_.beta2;
      op.eps = options_.epsilon;
      op.weight_decay = weight_decay;
      op.zero_grad = !keep_gradients;
      backend_.Run(stream_, op);
    };
    update(0, layout.decay_size, options_.weight_decay);
    update(layout.decay_size, layout.size, 0.0f);
  }
}

absl::StatusOr<double> AdamWOptimizer::Step(int64_t step, float learning_rate) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<double> sums, SumsOfSquares());
  const double sum = std::accumulate(sums.begin(), sums.end(), 0.0);
  Apply(step, learning_rate, sum);
  ATOLL_RETURN_IF_ERROR(backend_.Synchronize(stream_));
  return std::sqrt(sum);
}

}  // namespace atl
