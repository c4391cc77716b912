#include "worker/model/optimizer.h"

#include <algorithm>
#include <cmath>

namespace atl {

absl::StatusOr<std::unique_ptr<AdamWOptimizer>> AdamWOptimizer::Create(
    ModelRunner& runner, const AdamWOptions& options) {
  ATOLL_CHECK(runner.model().part().whole(), "a part alone does not know the norm to clip by");
  std::unique_ptr<AdamWOptimizer> optimizer(new AdamWOptimizer(runner, options));
  Backend& backend = runner.backend();
  const auto layers = runner.model().layers();
  optimizer->moments_.resize(layers.size());
  int64_t workspace = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const int layer = static_cast<int>(i);
    const int64_t bytes = layers[i]->layout().size * SizeOf(DType::kFloat32);
    Moments& moments = optimizer->moments_[i];
    ATOLL_ASSIGN_OR_RETURN(moments.first, backend.Allocate(bytes));
    ATOLL_ASSIGN_OR_RETURN(moments.second, backend.Allocate(bytes));
    backend.Zero(runner.stream(), optimizer->first_moment(layer));
    backend.Zero(runner.stream(), optimizer->second_moment(layer));
    const SumOfSquares op{runner.grads(layer), Tensor(nullptr, DType::kFloat32, 1, 1), true};
    workspace = std::max(workspace, backend.WorkspaceBytes(op));
  }
  ATOLL_ASSIGN_OR_RETURN(optimizer->scratch_, backend.Allocate(128 + workspace));
  Carver carver(optimizer->scratch_.data());
  optimizer->sum_of_squares_ = carver.Take(DType::kFloat32, 1, 1);
  optimizer->scale_ = carver.Take(DType::kFloat32, 1, 1);
  optimizer->workspace_ = {carver.Bytes(workspace), workspace};
  ATOLL_RETURN_IF_ERROR(backend.Synchronize(runner.stream()));
  return optimizer;
}

Tensor AdamWOptimizer::Flat(const Buffer& buffer, int layer) const {
  return {buffer.data(), DType::kFloat32, 1, runner_.model().layers()[layer]->layout().size};
}

Tensor AdamWOptimizer::MeasureClipScale() {
  Backend& backend = runner_.backend();
  for (size_t i = 0; i < moments_.size(); ++i) {
    backend.Run(runner_.stream(),
                SumOfSquares{runner_.grads(static_cast<int>(i)), sum_of_squares_, i > 0},
                workspace_);
  }
  backend.Run(runner_.stream(), ClipScale{sum_of_squares_, scale_, options_.clip_norm});
  return scale_;
}

void AdamWOptimizer::Step(int64_t step, float learning_rate) {
  const Tensor scale = options_.clip_norm > 0 ? MeasureClipScale() : Tensor();
  for (size_t i = 0; i < moments_.size(); ++i) {
    const int layer = static_cast<int>(i);
    const LayerLayout& layout = runner_.model().layers()[i]->layout();
    const auto update = [&](int64_t begin, int64_t size, float weight_decay) {
      if (size == 0) return;
      AdamW op;
      op.param = runner_.params(layer).Columns(begin, size);
      op.grad = runner_.grads(layer).Columns(begin, size);
      op.m = first_moment(layer).Columns(begin, size);
      op.v = second_moment(layer).Columns(begin, size);
      op.grad_scale = scale;
      const Tensor copy = runner_.params_copy(layer);
      if (copy.present()) op.param_copy = copy.Columns(begin, size);
      op.step = step;
      op.lr = learning_rate;
      op.beta1 = options_.beta1;
      op.beta2 = options_.beta2;
      op.eps = options_.epsilon;
      op.weight_decay = weight_decay;
      op.zero_grad = true;
      runner_.backend().Run(runner_.stream(), op);
    };
    update(0, layout.decay_size, options_.weight_decay);
    update(layout.decay_size, layout.size - layout.decay_size, 0.0f);
  }
}

absl::StatusOr<double> AdamWOptimizer::GradientNorm() {
  float sum = 0;
  runner_.backend().CopyToHost(runner_.stream(), &sum, sum_of_squares_);
  ATOLL_RETURN_IF_ERROR(runner_.backend().Synchronize(runner_.stream()));
  return std::sqrt(static_cast<double>(sum));
}

}  // namespace atl
