#include "worker/pipeline/work_meter.h"

#include <algorithm>
#include <utility>

namespace atl::worker {
namespace {

constexpr size_t kSteps = 20, kStepsMin = 3;
constexpr Duration kLongEnough = std::chrono::seconds(10);

}  // namespace

WorkMeter::WorkMeter(const DeviceRole& role, int32_t layers, std::function<int64_t()> next_window)
    : next_window_(std::move(next_window)) {
  work_.device = role.device;
  work_.tensor_parallel = role.ranks;
  for (const DeviceGroup& group : role.groups) {
    if (role.ranks == 1 || group.name != role.stages[0].tensor_group) continue;
    group_ = group.devices;
    std::erase(group_, role.device);
  }
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

WorkMeter::Sums WorkMeter::SumSpans(const DeviceStep& step, bool in_group) {
  Sums sums;
  for (const OpSpan& span : step.spans) {
    const double seconds = Seconds(in_group ? span.in_group : span.end - span.start);
    if (span.op.kind == PlanOpKind::kForward) sums.forward_s += seconds;
    if (span.op.kind == PlanOpKind::kInputGradient || span.op.kind == PlanOpKind::kWeightGradient) {
      sums.backward_s += seconds;
    }
  }
  return sums;
}

void WorkMeter::Add(const std::vector<DeviceStep>& steps) {
  const auto find = [&](const std::string& device) {
    return std::find_if(steps.begin(), steps.end(),
                        [&](const DeviceStep& s) { return s.device == device && s.timed; });
  };
  const auto step = find(work_.device);
  if (step == steps.end()) return;
  Sums sums = SumSpans(*step, false);
  const Sums own = SumSpans(*step, true);
  Sums least = own;
  for (const std::string& device : group_) {
    const auto other = find(device);
    if (other == steps.end()) return;  // its waiting time is not known here
    const Sums theirs = SumSpans(*other, true);
    least.forward_s = std::min(least.forward_s, theirs.forward_s);
    least.backward_s = std::min(least.backward_s, theirs.backward_s);
  }
  sums.forward_s += least.forward_s - own.forward_s;
  sums.backward_s += least.backward_s - own.backward_s;
  if (window_.empty()) begun_ = step->begun;
  window_.push_back(sums);
  const bool enough = window_.size() >= kStepsMin && step->ended - begun_ >= kLongEnough;
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
