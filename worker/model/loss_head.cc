#include "worker/model/loss_head.h"

#include <algorithm>

namespace atl {
namespace {

BatchShape SliceShape(const ModelConfig& config, int64_t rows) {
  return config.is_images() ? BatchShape{rows, 1} : BatchShape{1, rows};
}

}  // namespace

LossHead::LossHead(Backend& backend, const Model& model, const BatchShape& shape, bool trains)
    : model_(model),
      layer_(*model.layers().back()),
      rows_(LossRows(model.config(), shape)),
      trains_(trains),
      bytes_(layer_.Bytes(backend, SliceShape(model.config(), rows_))) {
  Carver sizes(nullptr);
  Carve(sizes);
  const CrossEntropy loss{.logits = logits_,
                          .targets = Tensor(nullptr, DType::kInt32, 1, rows_),
                          .dlogits = logits_,
                          .totals = Tensor(nullptr, StateType(model.compute()), 1, 2)};
  workspace_bytes_ = std::max(bytes_.workspace, model.LossWorkspaceBytes(backend, loss));
}

void LossHead::Carve(Carver& carver) {
  // A vocabulary may have any size.
  logits_ = carver.TakeAlignedRows(model_.compute(), rows_, layer_.output_cols());
  stash_.forward = carver.Bytes(bytes_.forward_stash);
  if (!trains_) return;
  stash_.backward = carver.Bytes(bytes_.backward_stash);
  const auto before = static_cast<int>(model_.layers().size()) - 2;
  gradient_ = carver.Take(model_.compute(), rows_, model_.output_cols(before));
}

LayerCall LossHead::Slice(const LayerCall& call, int64_t rows) const {
  LayerCall slice = call;
  slice.shape = SliceShape(model_.config(), rows);
  slice.borders = {};  // it works row by row
  return slice;
}

absl::Status LossHead::Run(const LayerCall& call, const LayerMemory& memory, const Tensor& input,
                           const CrossEntropy& loss, const Tensor& hits,
                           const Tensor& gradient) const {
  for (int64_t first = 0; first < input.rows; first += rows_) {
    const int64_t rows = std::min(rows_, input.rows - first);
    const LayerCall slice = Slice(call, rows);
    const Tensor from = input.Rows(first, rows), logits = logits_.Rows(0, rows);
    ATOLL_RETURN_IF_ERROR(layer_.Forward(slice, memory, from, logits, stash_));
    CrossEntropy part = loss;
    part.logits = logits;
    part.targets = loss.targets.Columns(first, rows);
    if (gradient.present()) part.dlogits = logits;
    ATOLL_RETURN_IF_ERROR(model_.Loss(slice, part, hits));
    if (!gradient.present()) continue;
    const Tensor made = gradient_.Rows(0, rows);
    ATOLL_RETURN_IF_ERROR(layer_.BackwardInput(slice, memory, from, logits, made, stash_));
    layer_.BackwardWeight(slice, memory, from, logits, stash_);
    call.backend.Run(call.stream, Convert{made, gradient.Rows(first, rows)});
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> LossHead::Logits(const LayerCall& call, const LayerMemory& memory,
                                        const Tensor& input) const {
  ATOLL_CHECK(input.rows <= rows_, input.rows, " rows in a slice of ", rows_);
  const Tensor logits = logits_.Rows(0, input.rows);
  ATOLL_RETURN_IF_ERROR(layer_.Forward(Slice(call, input.rows), memory, input, logits, stash_));
  model_.FinishLogits(call.backend, call.stream, logits);
  return logits;
}

}  // namespace atl
