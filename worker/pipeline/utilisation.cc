#include "worker/pipeline/utilisation.h"

#include <algorithm>
#include <cmath>

namespace atl::worker {
namespace {

constexpr double kWindowSeconds = 30;

}  // namespace

void Utilisation::Add(const std::vector<DeviceStep>& devices) {
  if (devices.empty()) return;
  Instant ended = devices.front().ended;
  double busy = 0;
  for (const DeviceStep& device : devices) {
    ended = std::max(ended, device.ended);
    busy += Seconds(device.timed ? device.busy : device.worked - device.begun);
  }
  if (ended_) {
    newest_s_ = std::max(0.0, Seconds(ended - *ended_));
    const double kept = std::exp(-newest_s_ / kWindowSeconds);
    busy_s_ = busy_s_ * kept + busy / static_cast<double>(devices.size());
    elapsed_s_ = elapsed_s_ * kept + newest_s_;
  }
  ended_ = ended;
}

double Utilisation::Get(Instant now) const {
  if (elapsed_s_ <= 0) return 0;
  const double waits = std::max(0.0, Seconds(now - *ended_) - newest_s_);
  return std::clamp(busy_s_ / (elapsed_s_ + waits), 0.0, 1.0);
}

}  // namespace atl::worker
