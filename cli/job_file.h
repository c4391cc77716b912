// Job files: TOML onto the protobuf message JobSpec (common/toml_message.h).
//
// Relative paths in a job file are taken from the job file's folder and made absolute: the workers
// read them where they run.

#ifndef ATOLL_CLI_JOB_FILE_H_
#define ATOLL_CLI_JOB_FILE_H_

#include <string>
#include <vector>

#include "common/protocol/job_spec.h"
#include "common/status.h"
#include "proto/job.pb.h"

namespace atl::cli {

// Reads, checks against the schema, fills defaults and validates. Path "-" is standard input.
// `settings` replace keys of the file: "outer.momentum=0.9", as on a line of TOML; text may be
// without its quotation marks. Errors are one line:
// "job.toml:12: outer.momentm: there is no such field; did you mean momentum?".
absl::StatusOr<JobSpec> ReadJobFile(const std::string& path,
                                    const std::vector<std::string>& settings = {});

// The same for text that is already in memory; `path` is used in messages and for relative paths.
absl::StatusOr<JobSpec> ParseJob(absl::string_view text, const std::string& path,
                                 const std::vector<std::string>& settings = {});

// Makes a job that begins with the parameters of `origin`, JOB or JOB@VERSION, whose specification
// is `from`, changed by the settings.
absl::StatusOr<JobSpec> BranchJob(const v1::JobSpec& from, const std::string& origin,
                                  const std::vector<std::string>& settings);

}  // namespace atl::cli

#endif  // ATOLL_CLI_JOB_FILE_H_
