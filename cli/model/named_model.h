// Jobs of published models, as `atoll plan --model` names them.

#ifndef ATOLL_CLI_MODEL_NAMED_MODEL_H_
#define ATOLL_CLI_MODEL_NAMED_MODEL_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/protocol/job_spec.h"

namespace atl::cli {

// A job that trains a published model, such as "llama-7b" or "resnet50", as far as the model says
// what it is: its numbers and what its data are. `sequence`: of tokens, or an image's side; 0: the
// model's own. The error lists the models.
absl::StatusOr<JobSpec> NamedModelJob(const std::string& name, int64_t sequence);

}  // namespace atl::cli

#endif  // ATOLL_CLI_MODEL_NAMED_MODEL_H_
