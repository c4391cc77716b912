#include "worker/model/block_adapters.h"

namespace atl {

BlockAdapters::BlockAdapters(const LayerLayout& layout, const ModelConfig& config, DType compute,
                             BlockProduct product)
    : compute_(compute),
      rank_(config.adapter.rank),
      scale_(config.adapter.present() ? static_cast<float>(config.adapter.scale()) : 0) {
  int64_t outputs = 0;
  for (size_t m = 0; m < layout.frozen.size(); ++m) {
    const ParamSpec& w = layout.frozen[m];
    if (FindProduct(w.use) != product) continue;
    const int64_t rows = w.shape[w.transposed ? 1 : 0];
    const Range columns{outputs, outputs + rows};
    outputs += rows;
    for (const AdaptedMatrix& adapted : layout.adapted) {
      if (adapted.matrix != m) continue;
      const ParamSpec &a = layout.params[adapted.a], &b = layout.params[adapted.b];
      if (matrices_.empty()) a_ = a.offset;
      inputs_ = a.shape[1];
      ATOLL_CHECK(a.offset == a_ + low_ * inputs_, a.name, " is not behind the one before");
      low_ += rank_;
      matrices_.push_back({columns, b.offset});
    }
  }
}

void BlockAdapters::MakeLow(Exec& exec, const LayerMemory& memory, const Tensor& x,
                            const Tensor& low) const {
  exec.Run(LinearForward{.x = x, .w = A(memory.params, compute_), .y = low});
  exec.Run(Scale{low, scale_});
}

void BlockAdapters::AddOutput(Exec& exec, const LayerMemory& memory, const Tensor& low,
                              size_t index, const Tensor& y) const {
  const Tensor own = low.Columns(static_cast<int64_t>(index) * rank_, rank_);
  exec.Run(LinearForward{.x = own, .w = B(memory.params, compute_, index), .add = y, .y = y});
}

void BlockAdapters::BackwardInput(Exec& exec, const LayerMemory& memory, const Tensor& dy,
                                  const Tensor& dlow, const Tensor& dx) const {
  if (!present()) return;
  for (size_t i = 0; i < matrices_.size(); ++i) {
    const Range& columns = matrices_[i].columns;
    exec.Run(LinearBackwardInput{.dy = dy.Columns(columns.begin, columns.size()),
                                 .w = B(memory.params, compute_, i),
                                 .dx = dlow.Columns(static_cast<int64_t>(i) * rank_, rank_)});
  }
  exec.Run(Scale{dlow, scale_});
  exec.Run(LinearBackwardInput{.dy = dlow, .w = A(memory.params, compute_), .add = dx, .dx = dx});
}

void BlockAdapters::BackwardWeight(Exec& exec, const LayerMemory& memory, const Tensor& x,
                                   const Tensor& dy, const Tensor& low, const Tensor& dlow) const {
  if (!present()) return;
  const DType state = StateType(compute_);
  exec.Run(LinearBackwardWeight{.x = x, .dy = dlow, .dw = A(memory.grads, state)});
  for (size_t i = 0; i < matrices_.size(); ++i) {
    const Range& columns = matrices_[i].columns;
    exec.Run(LinearBackwardWeight{.x = low.Columns(static_cast<int64_t>(i) * rank_, rank_),
                                  .dy = dy.Columns(columns.begin, columns.size()),
                                  .dw = B(memory.grads, state, i)});
  }
}

}  // namespace atl
