#include "worker/model/layer_state.h"

#include <utility>

namespace atl {

int64_t LayerState::Bytes(const LayerLayout& layout, DType compute, bool train) {
  const int64_t buffers = train ? 4 : 1;
  const int64_t copy = compute == StateType(compute) ? 0 : SizeOf(compute);
  return layout.size * (buffers * SizeOf(StateType(compute)) + copy);
}

absl::StatusOr<LayerState> LayerState::Create(Backend& backend, Stream& stream, LayerLayout layout,
                                              DType compute, bool train) {
  LayerState state;
  state.backend_ = &backend;
  state.layout_ = std::move(layout);
  state.compute_ = compute;
  const int64_t bytes = state.layout_.size * SizeOf(StateType(compute));
  ATOLL_ASSIGN_OR_RETURN(state.params_, backend.Allocate(bytes));
  if (compute != StateType(compute)) {
    ATOLL_ASSIGN_OR_RETURN(state.copy_, backend.Allocate(state.layout_.size * SizeOf(compute)));
  }
  if (!train) return state;
  ATOLL_ASSIGN_OR_RETURN(state.grads_, backend.Allocate(bytes));
  backend.Zero(stream, state.grads());
  ATOLL_ASSIGN_OR_RETURN(state.first_moment_, backend.Allocate(bytes));
  ATOLL_ASSIGN_OR_RETURN(state.second_moment_, backend.Allocate(bytes));
  backend.Zero(stream, state.first_moment());
  backend.Zero(stream, state.second_moment());
  return state;
}

Tensor LayerState::params_copy() const {
  if (compute_ == StateType(compute_)) return {};
  return {copy_.data(), compute_, 1, layout_.size};
}

void LayerState::ParamsWritten(Stream& stream) {
  const Tensor copy = params_copy();
  if (copy.present()) backend_->Run(stream, Convert{.from = params(), .to = copy});
}

LayerMemory LayerState::memory() const {
  LayerMemory memory;
  const Tensor copy = params_copy();
  memory.params = copy.present() ? copy.data : params_.data();
  memory.grads = grads_.data();
  return memory;
}

}  // namespace atl
