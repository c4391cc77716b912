// Settings that a user changes while a job runs.

#ifndef ATOLL_COORDINATOR_CHANGE_SETTINGS_H_
#define ATOLL_COORDINATOR_CHANGE_SETTINGS_H_

#include <string>
#include <vector>

#include "common/protocol/job_spec.h"
#include "common/status.h"
#include "proto/coordinator.pb.h"

namespace atl {

inline constexpr size_t kSettingsMax = 64;  // of one request

struct ChangedSpec {
  JobSpec spec;                            // whole and valid
  std::vector<v1::SettingChange> changes;  // fields that had another value
};

// Returns `now` with the settings. INVALID_ARGUMENT: one names no field, or the result is no valid
// job; FAILED_PRECONDITION: job.proto does not mark its field `live`.
absl::StatusOr<ChangedSpec> ApplySettings(const JobSpec& now,
                                          const std::vector<std::string>& settings);

// Formats the changes for a log: "inner.learning_rate 0.001 -> 0.0005".
std::string ChangesText(const std::vector<v1::SettingChange>& changes);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CHANGE_SETTINGS_H_
