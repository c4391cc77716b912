// `atoll validate`: what a worker would say of the files that a job names.

#ifndef ATOLL_CLI_INSPECT_JOB_H_
#define ATOLL_CLI_INSPECT_JOB_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/protocol/job_spec.h"

namespace atl::cli {

// A line for the model file and the initial weights, if the job has any, and one for tokenizer and
// data. Reads the beginnings of files alone: of weights names, types and shapes. What is not on
// this machine is named as not looked into; what a worker would refuse is the error.
absl::StatusOr<std::string> InspectJob(const JobSpec& spec);

}  // namespace atl::cli

#endif  // ATOLL_CLI_INSPECT_JOB_H_
