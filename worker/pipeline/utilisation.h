// The share of the time in which a worker's devices compute, over its newest steps. Pure.

#ifndef ATOLL_WORKER_PIPELINE_UTILISATION_H_
#define ATOLL_WORKER_PIPELINE_UTILISATION_H_

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "common/time.h"
#include "worker/pipeline/spans.h"

namespace atl::worker {

// Returns how long the device computed: F, B, W and the optimizer.
inline Duration ComputeTime(const DeviceStep& step) {
  Duration sum{0};
  for (const OpSpan& span : step.spans) {
    const PlanOpKind kind = span.op.kind;
    if (kind == PlanOpKind::kForward || kind == PlanOpKind::kInputGradient ||
        kind == PlanOpKind::kWeightGradient || kind == PlanOpKind::kOptimizer) {
      sum += span.end - span.start;
    }
  }
  return sum;
}

class Utilisation {
 public:
  // A step of these devices. Of one that is not timed everything up to its all-reduces counts.
  void Add(const std::vector<DeviceStep>& devices) {
    if (devices.empty()) return;
    Instant ended = devices.front().ended;
    double busy_s = 0;
    for (const DeviceStep& device : devices) {
      ended = std::max(ended, device.ended);
      busy_s += Seconds(device.timed ? ComputeTime(device) : device.worked - device.begun);
    }
    if (ended_) {
      newest_s_ = std::max(0.0, Seconds(ended - *ended_));
      const double kept = std::exp(-newest_s_ / kWindowSeconds);
      busy_s_ = busy_s_ * kept + busy_s / static_cast<double>(devices.size());
      elapsed_s_ = elapsed_s_ * kept + newest_s_;
    }
    ended_ = ended;
  }

  // Weighted by e^-t over the last half minute, or over the newest step where it is longer. A step
  // that lasts longer than the one before counts as a wait from then on. 0: there were no two
  // steps.
  double Get(Instant now) const {
    if (elapsed_s_ <= 0) return 0;
    const double waits_s = std::max(0.0, Seconds(now - *ended_) - newest_s_);
    return std::clamp(busy_s_ / (elapsed_s_ + waits_s), 0.0, 1.0);
  }

 private:
  static constexpr double kWindowSeconds = 30;

  std::optional<Instant> ended_;  // of the newest step
  double busy_s_ = 0, elapsed_s_ = 0, newest_s_ = 0;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_UTILISATION_H_
