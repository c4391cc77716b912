// A job's model in the planner's words: layers with what they compute, keep and send, by the law
// that workers take memory by (common/model/stage_memory.h).

#ifndef ATOLL_COORDINATOR_PLANNING_MODEL_H_
#define ATOLL_COORDINATOR_PLANNING_MODEL_H_

#include <string>

#include "common/model/config.h"
#include "common/model/stash.h"
#include "coordinator/planner/cluster/catalogue.h"

namespace atl {

// For sequences of so many tokens; of images, one each. REQUIRES: config is valid.
plan::Model PlannerModel(const std::string& name, const ModelConfig& config,
                         int64_t sequence_length, const ElementBytes& element);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLANNING_MODEL_H_
