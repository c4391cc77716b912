// Profiles on the worker's disk: one file per model and device. A profile is good for the same
// model, kind of device, number of threads and software version; another one is measured again and
// replaces it. Whether it has all the sizes that a job needs is for the caller to see (IsComplete).
// Losing the folder costs a few seconds, so a file that cannot be read or written is no error.

#ifndef ATOLL_WORKER_PROFILER_PROFILE_CACHE_H_
#define ATOLL_WORKER_PROFILER_PROFILE_CACHE_H_

#include <optional>
#include <string>

#include "common/files.h"
#include "common/protocol/device_profile.h"
#include "common/status.h"

namespace atl::worker {

class ProfileCache {
 public:
  // `files` outlives the cache.
  ProfileCache(Files& files, std::string folder) : files_(files), folder_(std::move(folder)) {}

  // Nothing: none is there, or it is of another device, model or version, or damaged.
  std::optional<DeviceProfile> Find(const std::string& device, const std::string& kind,
                                    uint64_t model_digest, const std::string& software_version);
  absl::Status Store(const DeviceProfile& profile);
  // Forgets all of them: `--profile again`.
  absl::Status Clear();

 private:
  std::string GetProfilePath(const std::string& device, uint64_t model_digest) const;

  Files& files_;
  const std::string folder_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PROFILER_PROFILE_CACHE_H_
