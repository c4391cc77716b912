// The Hockney fit of a link: a message of n bytes takes latency + n / bandwidth; and what each size
// took, where it does not.

#ifndef ATOLL_WORKER_PROFILER_HOCKNEY_H_
#define ATOLL_WORKER_PROFILER_HOCKNEY_H_

#include <cstdint>
#include <vector>

#include "common/protocol/device_profile.h"
#include "common/status.h"

namespace atl::worker {

struct TransferTime {
  int64_t bytes = 0;
  double seconds = 0;
};

struct HockneyFit {
  double latency_s = 0;
  double bytes_per_s = 0;
  // Root mean square of (fit - measured) / measured over the sizes.
  double residual_ratio = 0;
};

// Takes the quickest time of each size, which is least disturbed, and fits the line whose relative
// errors have the least squares, so that small messages count as much as large ones. A latency that
// would be below 0 is 0. Where larger messages were not slower at all, noise hides the bandwidth:
// it is then what the largest message had, which is certainly there. INVALID_ARGUMENT with fewer
// than two sizes.
absl::StatusOr<HockneyFit> FitHockney(const std::vector<TransferTime>& times);

// The quickest time of each size without the receipt's way back, `back_s`, rising in both, from
// above `latency_s` on. A size that took no less than a larger one is as quick as that one, and
// left out, as are sizes beyond the kMessageTimesMax largest.
std::vector<MessageTime> TimesBySize(const std::vector<TransferTime>& times, double latency_s,
                                     double back_s);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PROFILER_HOCKNEY_H_
