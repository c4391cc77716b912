#include "worker/pipeline/work_meter.h"

#include <algorithm>
#include <utility>

namespace atl::worker {
namespace {

constexpr size_t kSteps = 20, kStepsMin = 3;
constexpr Duration kLongEnough = std::chrono::seconds(10);

}  // namespace

WorkMeter::WorkMeter(const DeviceRole& role, int32_t layers, std::function<int64_t()> next_window)
    : alone_(role.ranks == 1), next_window_(std::move(next_window)) {
  work_.device = role.device;
  work_.micro_batch_sequences = static_cast<int32_t>(role.micro_batch_sequences);
  for (const StageRole& stage : role.stages) {
    for (int32_t l = stage.plan.first_layer; l < stage.plan.first_layer + stage.plan.layers; ++l) {
      (l == 0            ? work_.embeddings
       : l + 1 == layers ? work_.heads
                         : work_.blocks) += role.micro_batches;
    }
    for (const int32_t l : stage.plan.recomputed_layers) {
      if (l > 0 && l + 1 < layers) work_.recomputed_blocks += role.micro_batches;
    }
  }
}

void WorkMeter::Add(const DeviceStep& step) {
  if (!alone_ || !step.timed) return;
  if (window_.empty()) begun_ = step.begun;
  Sums& sums = window_.emplace_back();
  for (const OpSpan& span : step.spans) {
    const double seconds = Seconds(span.end - span.start);
    if (span.op.kind == PlanOpKind::kForward) sums.forward_s += seconds;
    if (span.op.kind == PlanOpKind::kInputGradient || span.op.kind == PlanOpKind::kWeightGradient) {
      sums.backward_s += seconds;
    }
  }
  const bool enough = window_.size() >= kStepsMin && step.ended - begun_ >= kLongEnough;
  if (window_.size() < kSteps && !enough) return;
  std::sort(window_.begin(), window_.end(), [](const Sums& a, const Sums& b) {
    return a.forward_s + a.backward_s < b.forward_s + b.backward_s;
  });
  const Sums& middle = window_[window_.size() / 2];
  work_.forward_seconds = middle.forward_s;
  work_.backward_seconds = middle.backward_s;
  work_.window = next_window_();
  window_.clear();
}

}  // namespace atl::worker
