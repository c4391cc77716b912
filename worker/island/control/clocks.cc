#include "worker/island/control/clocks.h"

#include <algorithm>
#include <limits>

#include "common/check.h"

namespace atl::worker {

ClockOffset EstimateOffset(std::span<const ClockSample> samples) {
  ATOLL_CHECK(!samples.empty());
  int64_t low = std::numeric_limits<int64_t>::min();
  int64_t high = std::numeric_limits<int64_t>::max();
  for (const ClockSample& sample : samples) {
    low = std::max(low, sample.answered - sample.received);
    high = std::min(high, sample.answered - sample.requested);
  }
  const int64_t width = low <= high ? (high - low + 1) / 2 : low - high;
  return {low / 2 + high / 2 + (low % 2 + high % 2) / 2, width};
}

}  // namespace atl::worker
