// The newest whole version of a job, out of the state folders of parameter servers and without
// their daemons: what `atoll recover` does. Changes nothing in the folders.

#ifndef ATOLL_PARAMSERVER_STORAGE_SALVAGE_H_
#define ATOLL_PARAMSERVER_STORAGE_SALVAGE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/files.h"
#include "common/protocol/control.h"
#include "common/thread_pool.h"

namespace atl::ps {

struct SalvagedJob {
  JobId job;
  Version version = kNoVersion;
  JobDefinition definition;
  std::vector<std::vector<float>> layers;
  std::vector<std::string> notes;  // what was damaged or had to be left out, one line each
};

// The newest version that all the folders together reach: a round that one of them has logged and
// another has not is made on that one too, from the pushes that it has logged; where that cannot
// be, and behind damage, all go back. `job` empty: the only one that there is. An error says
// what is missing, and in which folder. Memory: the job's parameters and momenta, and the pushes
// that were logged since the snapshots.
absl::StatusOr<SalvagedJob> Salvage(Files& files, const std::vector<std::string>& state_folders,
                                    const JobId& job, ThreadPool* pool);

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_STORAGE_SALVAGE_H_
