// Says at a worker's start that an earlier one was ended for want of memory, which a process cannot
// say of itself.

#ifndef ATOLL_WORKER_KILL_REPORT_H_
#define ATOLL_WORKER_KILL_REPORT_H_

#include <string>

#include "common/files.h"
#include "common/machine/limits.h"

namespace atl::worker {

// "" or what happened since the start before this one, by the count that FOLDER/memory-kills keeps;
// stores `now` there. An error leaves the file as it was.
absl::StatusOr<std::string> ReportMemoryKills(Files& files, const std::string& folder,
                                              const MemoryKills& now, const MachineLimits& limits);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_KILL_REPORT_H_
