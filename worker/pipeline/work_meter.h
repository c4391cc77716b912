// How fast a device is while it trains: its F, B and W of whole steps, in windows. Pure.
//
// A window is 20 steps, or as many, at least 3, as 10 seconds hold. The step in the middle counts,
// by its work: what disturbs a machine for some steps disturbs no window.

#ifndef ATOLL_WORKER_PIPELINE_WORK_METER_H_
#define ATOLL_WORKER_PIPELINE_WORK_METER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "common/protocol/control.h"
#include "common/time.h"
#include "worker/pipeline/role.h"
#include "worker/pipeline/spans.h"

namespace atl::worker {

class WorkMeter {
 public:
  // `layers`: of the model, with embedding and head. `next_window` gives each window its number.
  WorkMeter(const DeviceRole& role, int32_t layers, std::function<int64_t()> next_window);

  // A step of all the plan's micro-batches; one whose spans are not timed is skipped.
  void Add(const DeviceStep& step);

  // The newest window, with number 0 if there is none yet: there never is one for a tensor-parallel
  // device, whose F and B contain waiting for the others.
  const DeviceWork& work() const { return work_; }

 private:
  struct Sums {
    double forward_s = 0, backward_s = 0;
  };

  const bool alone_;  // in its tensor group
  const std::function<int64_t()> next_window_;
  std::vector<Sums> window_;
  Instant begun_{};
  DeviceWork work_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_WORK_METER_H_
