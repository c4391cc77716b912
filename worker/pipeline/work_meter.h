// How fast a device is while it trains: its F, B and W of whole steps, in windows. Stragglers are
// detected from these times. Pure.
//
// A window is 20 steps, or as many, at least 3, as 10 seconds hold. The step in the middle counts,
// by its work: what disturbs a machine for some steps disturbs no window.
//
// The devices of a tensor-parallel group wait for each other in every all-reduce, so all of them
// take as long as the slowest. A device's own time is its time outside of all-reduces. To that is
// added the least time that any device of the group spends in them, which is the slowest device's,
// for which no other waits. So the slowest device has the group's time, all-reduces included, as
// the profiler measures it, and the others have what they would take among equals.

#ifndef ATOLL_WORKER_PIPELINE_WORK_METER_H_
#define ATOLL_WORKER_PIPELINE_WORK_METER_H_

#include <cstdint>
#include <functional>
#include <string>
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

  // A step of all the plan's micro-batches, as this worker's devices made it, which are all of a
  // tensor-parallel group or the step is skipped; and so it is where spans are not timed.
  void Add(const std::vector<DeviceStep>& steps);

  // The newest window, with number 0 if there is none yet.
  const DeviceWork& work() const { return work_; }

 private:
  struct Sums {
    double forward_s = 0, backward_s = 0;
  };

  static Sums SumSpans(const DeviceStep& step, bool in_group);

  std::vector<std::string> group_;  // the others of the tensor-parallel group
  const std::function<int64_t()> next_window_;
  std::vector<Sums> window_;
  Instant begun_{};
  DeviceWork work_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_WORK_METER_H_
