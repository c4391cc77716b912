// Jobs of which a worker's disk holds saved states: one folder each in the tier's.

#ifndef ATOLL_WORKER_STATE_SAVED_JOBS_H_
#define ATOLL_WORKER_STATE_SAVED_JOBS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/ids.h"

namespace atl::worker {

// Lists the jobs in the order of names; none where the folder is missing. An unreadable entry is an
// error: a worker that does not say what it holds is sent no request for it.
absl::StatusOr<std::vector<JobId>> SavedJobs(const std::string& folder);
// All that is saved of the job, in whatever state. Never fails: what stays is there at the next
// start.
void RemoveSavedJob(const std::string& folder, const JobId& job);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_STATE_SAVED_JOBS_H_
