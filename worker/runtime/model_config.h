// A job's model, from its numbers or from the files that it names.

#ifndef ATOLL_WORKER_RUNTIME_MODEL_CONFIG_H_
#define ATOLL_WORKER_RUNTIME_MODEL_CONFIG_H_

#include "common/protocol/job_spec.h"
#include "common/status.h"
#include "worker/model/config.h"

namespace atl::worker {

// model.config_path, else the numbers, else (model.hidden is 0) the config.json of
// model.initial_weights_path. Refuses data.sequence_length beyond the model's positions.
absl::StatusOr<ModelConfig> ModelConfigOfJob(const JobSpec& spec);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_RUNTIME_MODEL_CONFIG_H_
