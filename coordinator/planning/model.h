// A job's model in the planner's words: layers with what they compute, keep and send, by the law
// that workers take memory by (common/model/stage_memory.h).

#ifndef ATOLL_COORDINATOR_PLANNING_MODEL_H_
#define ATOLL_COORDINATOR_PLANNING_MODEL_H_

#include <string>

#include "common/model/config.h"
#include "common/model/stash.h"
#include "coordinator/planner/cluster/catalogue.h"

namespace atl {

// Makes the model for sequences of so many tokens; of images, one each. REQUIRES: config is valid.
plan::Model PlannerModel(const std::string& name, const ModelConfig& config,
                         int64_t sequence_length, const ElementBytes& element);

// A job that trains a published model, such as "llama-7b" or "resnet50", as far as the model says
// what it is: its numbers and what its data are. `sequence`: of tokens, or an image's side; 0: the
// model's own. The error lists the models.
absl::StatusOr<JobSpec> NamedModelJob(const std::string& name, int64_t sequence);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLANNING_MODEL_H_
