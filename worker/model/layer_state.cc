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
  const auto allocate = [&](int64_t count, absl::string_view what, Buffer* buffer) {
    absl::StatusOr<Buffer> made = backend.Allocate(count);
    if (made.ok()) *buffer = *std::move(made);
    return Annotate(made.status(), absl::StrCat("layer ", state.layout_.name, ", ", what));
  };
  ATOLL_RETURN_IF_ERROR(allocate(bytes, "parameters", &state.params_));
  if (compute != StateType(compute)) {
    ATOLL_RETURN_IF_ERROR(
        allocate(state.layout_.size * SizeOf(compute), "copy of its parameters", &state.copy_));
  }
  if (!train) return state;
  ATOLL_RETURN_IF_ERROR(allocate(bytes, "gradients", &state.grads_));
  backend.Zero(stream, state.grads());
  ATOLL_RETURN_IF_ERROR(allocate(bytes, "first moments", &state.first_moment_));
  ATOLL_RETURN_IF_ERROR(allocate(bytes, "second moments", &state.second_moment_));
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
