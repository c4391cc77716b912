// One layer's numbers on one device: parameters, their gradient, and AdamW's moments, all fp32 (of
// StateType) and laid out as the LayerLayout says. A model of bf16 has a copy of the parameters
// beside them, which the layers read: AdamW rounds into it as it writes the parameters, and whoever
// else writes them calls ParamsWritten.

#ifndef ATOLL_WORKER_MODEL_LAYER_STATE_H_
#define ATOLL_WORKER_MODEL_LAYER_STATE_H_

#include "common/model/layout.h"
#include "kernels/backend.h"
#include "worker/model/model.h"

namespace atl {

// Used by one thread at a time, as its backend is, which outlives it.
class LayerState {
 public:
  // Parameters are undefined until somebody writes them; the rest is zero, and absent if it is not
  // to `train`.
  static absl::StatusOr<LayerState> Create(Backend& backend, Stream& stream, LayerLayout layout,
                                           DType compute, bool train);
  static int64_t Bytes(const LayerLayout& layout, DType compute, bool train);

  const LayerLayout& layout() const { return layout_; }
  Backend& backend() const { return *backend_; }

  // [1, layout.size] each.
  Tensor params() const { return Flat(params_); }
  Tensor grads() const { return Flat(grads_); }
  Tensor first_moment() const { return Flat(first_moment_); }
  Tensor second_moment() const { return Flat(second_moment_); }
  // What the layers read: a bf16 copy of params(), or absent where that is params() itself.
  Tensor params_copy() const;

  // params() was written, by operations on this stream: brings the copy, if any, up to date.
  void ParamsWritten(Stream& stream);

  // For Layer's calls; a tied head's table is not this layer's to know.
  LayerMemory memory() const;

 private:
  LayerState() = default;
  Tensor Flat(const Buffer& buffer) const {
    return {buffer.data(), StateType(compute_), 1, layout_.size};
  }

  Backend* backend_ = nullptr;
  LayerLayout layout_;
  DType compute_ = DType::kFloat32;
  Buffer params_, grads_, first_moment_, second_moment_, copy_;
};

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_LAYER_STATE_H_
