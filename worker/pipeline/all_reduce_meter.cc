#include "worker/pipeline/all_reduce_meter.h"

#include <algorithm>
#include <utility>

#include "common/time.h"
#include "worker/pipeline/transport_selection.h"

namespace atl::worker {
namespace {

constexpr int kWindow = 20;

}  // namespace

AllReduceMeter::AllReduceMeter(const DeviceRole& role, const IslandPlan& plan,
                               std::function<int64_t()> next_window)
    : tasks_(role.syncs), next_window_(std::move(next_window)) {
  for (const DeviceGroup& group : role.groups) {
    const auto is_own = [&](const std::string& device) {
      return WorkerFromDevice(device) == WorkerFromDevice(role.device);
    };
    const bool sums = std::any_of(tasks_.begin(), tasks_.end(),
                                  [&](const SyncTask& task) { return task.group == group.name; });
    const bool within = std::all_of(group.devices.begin(), group.devices.end(), is_own);
    if (!sums || within || SharesNccl(plan, group.devices)) continue;
    Group& added = groups_.emplace_back();
    added.name = group.name;
    added.newest.device = role.device;
    added.newest.devices = group.devices;
    added.newest.plan_number = plan.number;
  }
}

void AllReduceMeter::Add(const DeviceStep& step) {
  for (Group& group : groups_) {
    for (size_t i = 0; i < std::min(tasks_.size(), step.sync_spans.size()); ++i) {
      const OpSpan& span = step.sync_spans[i];
      if (tasks_[i].group != group.name || span.bytes == 0) continue;
      const double seconds = Seconds(span.end - span.start);
      const bool larger = span.bytes > group.bytes;
      if (larger || (span.bytes == group.bytes && seconds < group.quickest_s)) {
        group.bytes = span.bytes;
        group.quickest_s = seconds;
      }
      ++group.count;
    }
    if (group.count < kWindow) continue;
    group.newest.window = next_window_();
    group.newest.bytes = std::exchange(group.bytes, 0);
    group.newest.quickest_seconds = group.quickest_s;
    group.count = 0;
  }
}

std::vector<AllReduceTimes> AllReduceMeter::sums() const {
  std::vector<AllReduceTimes> all;
  for (const Group& group : groups_) {
    if (group.newest.window > 0) all.push_back(group.newest);
  }
  return all;
}

}  // namespace atl::worker
