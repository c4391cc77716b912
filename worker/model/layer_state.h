// One layer's numbers on one device: parameters, their gradient, and the optimizer's moments, all
// fp32 (of StateType) and laid out as the LayerLayout says. Moments may be those of a range of the
// elements alone, where other devices own the rest (common/model/ownership.h), and of the second
// ones those of fewer elements, which the optimizer uses (common/model/optimizer_state.h). A model
// of bf16 has a copy of the parameters in addition, which the layers read: the optimizer rounds
// into it as it writes the parameters, and any other writer calls ParamsWritten. The frozen tensors
// of a layer with an adapter lie as common/model/adapters/frozen_place.h says, and nothing changes
// them.

#ifndef ATOLL_WORKER_MODEL_LAYER_STATE_H_
#define ATOLL_WORKER_MODEL_LAYER_STATE_H_

#include <algorithm>
#include <optional>
#include <utility>

#include "common/model/layout.h"
#include "common/model/optimizer_state.h"
#include "common/model/tensor_part.h"
#include "kernels/backend.h"
#include "worker/model/frozen_weights.h"
#include "worker/model/model.h"

namespace atl {

// Moments of some elements of a layer. Second ones are of those from `second_begin` on.
struct Moments {
  Range owned;
  int64_t second_begin = 0;
  Buffer first, second;

  Range second_owned() const {
    return {std::clamp(second_begin, owned.begin, owned.end), owned.end};
  }
};

// Used by one thread at a time, as its backend is, which outlives it.
class LayerState {
 public:
  // The way to train; AdamW unless another optimizer is set.
  struct Training {
    InnerOptimizer optimizer = InnerOptimizer::kAdamW;
    std::optional<Range> owned = std::nullopt;  // none: all elements
  };
  // Parameters are undefined until they are written; the rest is zero, and absent without training.
  static absl::StatusOr<LayerState> Create(Backend& backend, Stream& stream, LayerLayout layout,
                                           DType compute, const std::optional<Training>& training);
  static int64_t Bytes(const LayerLayout& layout, DType compute,
                       const std::optional<Training>& training);
  // Returns the bytes that the state took when it was created.
  int64_t bytes() const;

  const LayerLayout& layout() const { return layout_; }
  Backend& backend() const { return *backend_; }

  // [1, layout.size] each.
  Tensor params() const { return Flat(params_, layout_.size); }
  Tensor grads() const { return Flat(grads_, layout_.size); }
  // [1, owned.size()] and [1, second_owned.size()].
  Range owned() const { return moments_.owned; }
  Range second_owned() const { return moments_.second_owned(); }
  Tensor first_moment() const { return Flat(moments_.first, owned().size()); }
  Tensor second_moment() const { return Flat(moments_.second, second_owned().size()); }
  // Takes these instead. Returns what was there.
  Moments Exchange(Moments moments) { return std::exchange(moments_, std::move(moments)); }
  // Zero moments of another range, for Exchange.
  absl::StatusOr<Moments> NewMoments(Stream& stream, Range owned) const;
  // Returns the parameters that layers read: a bf16 copy of params(), or absent where that is
  // params() itself.
  Tensor params_copy() const;

  // [1, layout.frozen_size], of the compute type; where some are codes, all bytes as int32.
  Tensor frozen() const;
  // Writes this part of the layer's; returns when it is there.
  absl::Status WriteFrozen(Stream& stream, const FrozenWeights& weights);

  // params() was written, by operations on this stream: brings the copy, if any, up to date.
  void ParamsWritten(Stream& stream);

  // Returns the memory for Layer's calls; a tied head's table is not this layer's to know.
  LayerMemory memory() const;

 private:
  LayerState() = default;
  Tensor Flat(const Buffer& buffer, int64_t size) const {
    return {buffer.data(), StateType(compute_), 1, size};
  }
  absl::Status Allocate(int64_t bytes, absl::string_view what, Buffer* buffer) const;

  Backend* backend_ = nullptr;
  LayerLayout layout_;
  DType compute_ = DType::kFloat32;
  int64_t second_begin_ = 0;
  StateSlots slots_;
  Buffer params_, grads_, copy_, frozen_;
  Moments moments_;
};

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_LAYER_STATE_H_
