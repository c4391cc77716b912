#include "worker/model/layer_state.h"

#include <vector>

namespace atl {
namespace {

int64_t FrozenBytes(const LayerLayout& layout, DType compute) {
  return PlaceFrozen(layout, GetElementSize(compute)).bytes;
}

}  // namespace

int64_t LayerState::Bytes(const LayerLayout& layout, DType compute,
                          const std::optional<Training>& training) {
  const int64_t state = GetElementSize(StateType(compute));
  const int64_t copy = compute == StateType(compute) ? 0 : GetElementSize(compute);
  const int64_t parameters = layout.size * (state + copy) + FrozenBytes(layout, compute);
  if (!training) return parameters;
  const Range owned = training->owned.value_or(Range{0, layout.size});
  return parameters + (layout.size + StateElements(training->optimizer, layout, owned)) * state;
}

int64_t LayerState::bytes() const {
  const int64_t parameters = Bytes(layout_, compute_, std::nullopt);
  if (grads_.data() == nullptr) return parameters;  // it is not trained, or has nothing to train
  const int64_t moments = owned().size() + second_owned().size();
  return parameters + (layout_.size + moments) * GetElementSize(StateType(compute_));
}

absl::Status LayerState::Allocate(int64_t bytes, absl::string_view what, Buffer* buffer) const {
  if (bytes == 0) return absl::OkStatus();
  absl::StatusOr<Buffer> made = backend_->Allocate(bytes);
  if (made.ok()) *buffer = *std::move(made);
  return Annotate(made.status(), absl::StrCat("layer ", layout_.name, ", ", what));
}

absl::StatusOr<LayerState> LayerState::Create(Backend& backend, Stream& stream, LayerLayout layout,
                                              DType compute,
                                              const std::optional<Training>& training) {
  LayerState state;
  state.backend_ = &backend;
  state.layout_ = std::move(layout);
  state.compute_ = compute;
  const int64_t bytes = state.layout_.size * GetElementSize(StateType(compute));
  ATOLL_RETURN_IF_ERROR(state.Allocate(bytes, "parameters", &state.params_));
  if (compute != StateType(compute)) {
    ATOLL_RETURN_IF_ERROR(state.Allocate(state.layout_.size * GetElementSize(compute),
                                         "copy of its parameters", &state.copy_));
  }
  ATOLL_RETURN_IF_ERROR(
      state.Allocate(FrozenBytes(state.layout_, compute), "frozen weights", &state.frozen_));
  if (!training) return state;
  state.second_begin_ = SecondSlotBegin(training->optimizer, state.layout_);
  state.slots_ = GetStateSlots(training->optimizer);
  ATOLL_RETURN_IF_ERROR(state.Allocate(bytes, "gradients", &state.grads_));
  if (bytes > 0) backend.Zero(stream, state.grads());
  const Range owned = training->owned.value_or(Range{0, state.layout_.size});
  ATOLL_ASSIGN_OR_RETURN(state.moments_, state.NewMoments(stream, owned));
  return state;
}

absl::StatusOr<Moments> LayerState::NewMoments(Stream& stream, Range owned) const {
  Moments moments{owned, second_begin_, {}, {}};
  const auto make = [&](Range range, absl::string_view what, Buffer* buffer) -> absl::Status {
    ATOLL_RETURN_IF_ERROR(
        Allocate(range.size() * GetElementSize(StateType(compute_)), what, buffer));
    if (range.size() > 0) backend_->Zero(stream, Flat(*buffer, range.size()));
    return absl::OkStatus();
  };
  ATOLL_RETURN_IF_ERROR(make(owned, slots_.first, &moments.first));
  ATOLL_RETURN_IF_ERROR(make(moments.second_owned(), slots_.second, &moments.second));
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

Tensor LayerState::frozen() const {
  if (!layout_.coding) return {frozen_.data(), compute_, 1, layout_.frozen_size};
  return {frozen_.data(), DType::kInt32, 1, FrozenBytes(layout_, compute_) / 4};
}

absl::Status LayerState::WriteFrozen(Stream& stream, const FrozenWeights& weights) {
  const std::vector<std::byte> image = weights.Image(layout_, compute_);
  ATOLL_CHECK(std::ssize(image) == frozen().size() * GetElementSize(frozen().dtype), layout_.name);
  backend_->CopyToDevice(stream, frozen(), image.data());
  return backend_->Synchronize(stream);
}

LayerMemory LayerState::memory() const {
  LayerMemory memory;
  const Tensor copy = params_copy();
  memory.params = copy.present() ? copy.data : params_.data();
  memory.state_params = params_.data();
  memory.grads = grads_.data();
  memory.frozen = frozen_.data();
  return memory;
}

}  // namespace atl
