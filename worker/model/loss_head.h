// A model's last layer and its loss, over a few rows of a micro-batch at a time (LossRows): of each
// slice it makes the logits, the loss, their gradient, and at once B and W of the layer, so that
// logits are never whole. F, B and W of other layers stay apart: where the head is, B follows F in
// any schedule, and its W would only keep the logits' gradient alive.
//
// Its memory is one slice's, however many micro-batches are in flight. Used by one thread at a
// time; operations are enqueued. Slices change gradients by rounding only, and are the same on all
// ranks of a tensor-parallel group. Source of the idea: Liger-Kernel's fused linear cross entropy
// (2410.10989).

#ifndef ATOLL_WORKER_MODEL_LOSS_HEAD_H_
#define ATOLL_WORKER_MODEL_LOSS_HEAD_H_

#include "worker/model/model.h"

namespace atl {

class LossHead {
 public:
  // `shape`: of the largest micro-batch. Backend and model outlive it.
  LossHead(Backend& backend, const Model& model, const BatchShape& shape, bool trains);

  int64_t workspace_bytes() const { return workspace_bytes_; }
  // Takes its memory, before all other calls.
  void Carve(Carver& carver);
  int64_t rows() const { return rows_; }  // of a slice

  // Adds the loss of all rows of `input`, with the targets and scale of `loss`, to its totals, and
  // to `hits` where present. Where `gradient` is present, which may be `input`, that becomes the
  // gradient of `input`, and memory.grads += ...
  absl::Status Run(const LayerCall& call, const LayerMemory& memory, const Tensor& input,
                   const CrossEntropy& loss, const Tensor& hits, const Tensor& gradient) const;

  // Makes logits of these rows, at most rows(), as they are sampled from; valid until the next
  // call.
  absl::StatusOr<Tensor> Logits(const LayerCall& call, const LayerMemory& memory,
                                const Tensor& input) const;

 private:
  // The call for a slice of so many rows.
  LayerCall Slice(const LayerCall& call, int64_t rows) const;

  const Model& model_;
  const Layer& layer_;
  const int64_t rows_;
  const bool trains_;
  LayerBytes bytes_;  // of a slice
  int64_t workspace_bytes_ = 0;
  Tensor logits_, gradient_;
  Stash stash_;
};

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_LOSS_HEAD_H_
