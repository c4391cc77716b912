// Times of a device's gradient all-reduces with other workers' devices, in windows. Pure.
//
// A window of a group is 20 all-reduces or more, and ends with a step: the first ones of a step
// find the link idle, later ones may queue behind others. Of its largest tensors the quickest
// counts: an all-reduce lasts longer for members that come early, and where other messages are on
// the link.

#ifndef ATOLL_WORKER_PIPELINE_ALL_REDUCE_METER_H_
#define ATOLL_WORKER_PIPELINE_ALL_REDUCE_METER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "common/protocol/island_plan.h"
#include "proto/control.plain.h"
#include "worker/pipeline/role.h"
#include "worker/pipeline/spans.h"

namespace atl::worker {

class AllReduceMeter {
 public:
  // Groups within a worker, and NCCL's, are ignored: they do not use the peer link.
  // `next_window` gives each window its number.
  AllReduceMeter(const DeviceRole& role, const IslandPlan& plan,
                 std::function<int64_t()> next_window);

  void Add(const DeviceStep& step);

  // The newest window of each group that has one.
  std::vector<AllReduceTimes> sums() const;

 private:
  struct Group {
    std::string name;
    int count = 0;  // in the window under way, and its best
    int64_t bytes = 0;
    double quickest_s = 0;
    AllReduceTimes newest;
  };

  const std::vector<SyncTask> tasks_;
  const std::function<int64_t()> next_window_;
  std::vector<Group> groups_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_ALL_REDUCE_METER_H_
