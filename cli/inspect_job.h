// `atoll validate` and `atoll submit`: a worker's checks of the files that a job names.

#ifndef ATOLL_CLI_INSPECT_JOB_H_
#define ATOLL_CLI_INSPECT_JOB_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/protocol/job_spec.h"
#include "worker/data/inspection.h"

namespace atl::cli {

struct JobInspection {
  std::string text;                   // lines
  std::vector<std::string> warnings;  // of what a worker would do, but hardly as it is meant
  std::vector<std::string> unread;    // what was not looked at
  std::vector<std::string> missing;   // of that: what is not on this machine
};

// A line for the model file and the initial weights, if the job has any, and one for tokenizer and
// data. Reads the beginnings of files alone: of weights names, types and shapes. What a worker
// would refuse is the error.
absl::StatusOr<JobInspection> InspectJob(const JobSpec& spec, const InspectionDepth& depth = {});

// "valid", or what of it was not looked at too.
std::string ValidText(const JobInspection& found);

}  // namespace atl::cli

#endif  // ATOLL_CLI_INSPECT_JOB_H_
