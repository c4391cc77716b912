// `atoll validate` and `atoll submit`: a worker's checks of the files that a job names.

#ifndef ATOLL_CLI_INSPECT_JOB_H_
#define ATOLL_CLI_INSPECT_JOB_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/protocol/job_spec.h"
#include "worker/data/inspection.h"

namespace atl::cli {

// A line for the model file and the initial weights, if the job has any, and one for tokenizer and
// data. Reads the beginnings of files alone: of weights names, types and shapes. What a worker
// would refuse is the error.
absl::StatusOr<Inspection> InspectJob(const JobSpec& spec, const InspectionDepth& depth = {});

// "valid", or what of it was not looked at too.
std::string ValidText(const Inspection& found);

}  // namespace atl::cli

#endif  // ATOLL_CLI_INSPECT_JOB_H_
