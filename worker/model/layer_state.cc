#include "worker/model/layer_state.h"

#include <utility>

namespace atl {

int64_t LayerState::Bytes(const LayerLayout& layout, DType compute, bool train, int64_t owned) {
  const int64_t state = SizeOf(StateType(compute));
  const int64_t copy = compute == StateType(compute) ? 0 : SizeOf(compute);
  const int64_t parameters = layout.size * (state + copy);
  if (!train) return parameters;
  return parameters + (layout.size + 2 * (owned < 0 ? layout.size : owned)) * state;
}

absl::Status LayerState::Allocate(int64_t bytes, absl::string_view what, Buffer* buffer) const {
  if (bytes == 0) return absl::OkStatus();
  absl::StatusOr<Buffer> made = backend_->Allocate(bytes);
  if (made.ok()) *buffer = *std::move(made);
  return Annotate(made.status(), absl::StrCat("layer ", layout_.name, ", ", what));
}

absl::StatusOr<LayerState> LayerState::Create(Backend& backend, Stream& stream, LayerLayout layout,
                                              DType compute, bool train,
                                              std::optional<Range> owned) {
  LayerState state;
  state.backend_ = &backend;
  state.layout_ = std::move(layout);
  state.compute_ = compute;
  const int64_t bytes = state.layout_.size * SizeOf(StateType(compute));
  ATOLL_RETURN_IF_ERROR(state.Allocate(bytes, "parameters", &state.params_));
  if (compute != StateType(compute)) {
    ATOLL_RETURN_IF_ERROR(state.Allocate(state.layout_.size * SizeOf(compute),
                                         "copy of its parameters", &state.copy_));
  }
  if (!train) return state;
  ATOLL_RETURN_IF_ERROR(state.Allocate(bytes, "gradients", &state.grads_));
  backend.Zero(stream, state.grads());
  ATOLL_ASSIGN_OR_RETURN(state.moments_,
                         state.NewMoments(stream, owned.value_or(Range{0, state.layout_.size})));
  return state;
}

absl::StatusOr<Moments> LayerState::NewMoments(Stream& stream, Range owned) const {
  Moments moments{owned, {}, {}};
  const int64_t bytes = owned.size() * SizeOf(StateType(compute_));
  ATOLL_RETURN_IF_ERROR(Allocate(bytes, "first moments", &moments.first));
  ATOLL_RETURN_IF_ERROR(Allocate(bytes, "second moments", &moments.second));
  if (bytes == 0) return moments;
  backend_->Zero(stream, Flat(moments.first, owned.size()));
  backend_->Zero(stream, Flat(moments.second, owned.size()));
  return moments;
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
