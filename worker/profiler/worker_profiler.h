// A worker's answer besides a job's facts: the profiles of its devices for the job's model, from
// its disk or measured now.

#ifndef ATOLL_WORKER_PROFILER_WORKER_PROFILER_H_
#define ATOLL_WORKER_PROFILER_WORKER_PROFILER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/protocol/control.h"
#include "common/protocol/device_profile.h"
#include "kernels/backend.h"
#include "worker/profiler/layer_profiler.h"
#include "worker/profiler/profile_cache.h"

namespace atl::worker {

struct WorkerProfilerOptions {
  NodeId worker;
  std::vector<DeviceInfo> devices;  // by index
  // A backend of its own for the measurements on device `index`; freed when they are done.
  std::function<absl::StatusOr<std::unique_ptr<Backend>>(int index)> make_backend;
  DType compute = DType::kFloat32;
  std::string software_version;
  std::string folder;  // of the cache
  Duration limit = std::chrono::seconds(10);
  int runs = 5;
  Emulation emulation;  // see ProfileOptions
  // Reports what it measures now, and how far it is ("measures layers: 7 of at most 21, ...");
  // empty: it is done. From any thread.
  std::function<void(const std::string&)> measuring = [](const std::string&) {};
};

// One thread at a time.
class WorkerProfiler {
 public:
  WorkerProfiler(Files& files, WorkerProfilerOptions options);

  // Returns the profiles of all devices, or none: the job's islands have no plans (they are single
  // devices, and none of these `needs_plan`), or what went wrong is logged, and the planner then
  // goes by the devices' kind. Seconds the first time, and for a job that needs sizes that none
  // before it did; nothing later. What the time limit left out is measured for the next job. None,
  // soon after `cancelled` (it may be null) is set.
  std::vector<DeviceProfile> ProfilesFor(const JobSpec& spec, const JobFacts& facts,
                                         bool needs_plan = false,
                                         const std::atomic<bool>* cancelled = nullptr);

  // Forgets what is on the disk: `--profile again`.
  void Forget();

 private:
  std::string DescribeDeviceKind(size_t device) const;
  absl::StatusOr<std::vector<DeviceProfile>> Measure(const JobSpec& spec, const JobFacts& facts,
                                                     std::vector<DeviceProfile> known,
                                                     const std::atomic<bool>* cancelled, bool* all);

  ProfileCache cache_;
  const WorkerProfilerOptions options_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PROFILER_WORKER_PROFILER_H_
