// `atoll plan` of the coordinator's cluster: the plans that islands would get now, made by the
// coordinator itself.

#ifndef ATOLL_CLI_PREVIEW_H_
#define ATOLL_CLI_PREVIEW_H_

#include <string>

#include "cli/commands.h"
#include "common/protocol/job_spec.h"
#include "common/status.h"
#include "proto/coordinator.pb.h"

namespace atl::cli {

// Prints the next plans of a running job's islands, and whether they would be taken.
absl::Status PreviewJob(const Global& global, const std::string& job, int timeout_s);

// Prints the plans that a job would get if it were submitted now.
absl::Status PreviewSpec(const Global& global, const JobSpec& spec, int timeout_s);

std::string PreviewText(const v1::PreviewReply& reply);

}  // namespace atl::cli

#endif  // ATOLL_CLI_PREVIEW_H_
