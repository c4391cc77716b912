// Measures how long the layers of a model take on this worker's devices, with the code that
// training runs: F, B and W of each kind of layer and the optimizer's step, by micro-batch and by
// number of devices that share the layer.
//
// All devices measure at the same time, as they will train at the same time: devices that share
// cores or memory bandwidth are slower together than alone. Their operations are not in step with
// each other unless they share layers.

#ifndef ATOLL_WORKER_PROFILER_LAYER_PROFILER_H_
#define ATOLL_WORKER_PROFILER_LAYER_PROFILER_H_

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "common/model/config.h"
#include "common/protocol/device_profile.h"
#include "common/status.h"
#include "common/time.h"
#include "kernels/backend.h"
#include "worker/model/optimizer.h"
#include "worker/pipeline/emulation.h"

namespace atl::worker {

struct ProfiledDevice {
  std::string name;  // "worker/index"
  std::string kind;
  Backend* backend = nullptr;  // used by one thread at a time; outlives the call
};

struct ProfileOptions {
  DType compute = DType::kFloat32;
  int64_t sequence_length = 0;
  int64_t micro_batch_max = 1;  // sequences; sizes 1, 2, 4, ... up to it, until times are linear
  std::vector<int> tensor_parallel = {1};  // sizes; those that devices or model do not allow are
                                           // left out
  OptimizerOptions optimizer;
  int runs = 5;         // of each operation, after one uncounted
  Emulation emulation;  // of devices that only pretend to compute: times are as it says
  // No new size is begun after this; what is measured by then is returned. Size 1 always is.
  Duration limit = std::chrono::seconds(20);
  const std::atomic<bool>* cancelled = nullptr;  // ABORTED soon after it is set; may be null
  // Reports what comes next, as the `layer`-th of at most `most`, from 1. From one of the threads.
  std::function<void(int64_t layer, int64_t most, const std::string& what)> progress;
};

// One profile per device, without software version and digest, beside what is `known`: a profile of
// every device, in their order, or none. Sizes that all of them know are not measured again.
// RESOURCE_EXHAUSTED: a device's memory does not hold one layer and a micro-batch of one sequence.
// REQUIRES: a valid config; sequence_length from 1 to its LongestSequence().
absl::StatusOr<std::vector<DeviceProfile>> ProfileLayers(const std::vector<ProfiledDevice>& devices,
                                                         const ModelConfig& config,
                                                         const ProfileOptions& options,
                                                         std::vector<DeviceProfile> known = {});

// Returns whether that would measure nothing: `known` has every size that is wanted, or those up to
// the one where times were steady.
bool IsComplete(const std::vector<ProfiledDevice>& devices, const ModelConfig& config,
                const ProfileOptions& options, const std::vector<DeviceProfile>& known);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PROFILER_LAYER_PROFILER_H_
