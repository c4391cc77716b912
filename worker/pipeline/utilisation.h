// The share of the time in which a worker's devices compute, over its newest steps. Pure.

#ifndef ATOLL_WORKER_PIPELINE_UTILISATION_H_
#define ATOLL_WORKER_PIPELINE_UTILISATION_H_

#include <optional>
#include <vector>

#include "common/time.h"
#include "worker/pipeline/spans.h"

namespace atl::worker {

class Utilisation {
 public:
  // A step of these devices. Of one that is not timed everything up to its all-reduces counts.
  void Add(const std::vector<DeviceStep>& devices);
  // Weighted by e^-t over the last half minute, or over the newest step where it is longer. A step
  // that lasts longer than the one before counts as a wait from then on. 0: there were no two
  // steps.
  double Get(Instant now) const;

 private:
  std::optional<Instant> ended_;  // of the newest step
  double busy_s_ = 0, elapsed_s_ = 0, newest_s_ = 0;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_UTILISATION_H_
