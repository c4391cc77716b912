// Predicts the memory that a plan's devices will have taken once they are set up, from the model's
// shapes (common/model/stage_memory.h), the programs, and the workspace that workers have measured:
// the number that a worker's own counters are compared with. The search for plans reserves more or
// less the same more simply (planner/costs.h); tests/island/memory_test.cc holds this to what
// workers take. Where the search has reserved too little, PlanIsland searches again with more.

#ifndef ATOLL_COORDINATOR_PLANNING_PLAN_MEMORY_H_
#define ATOLL_COORDINATOR_PLANNING_PLAN_MEMORY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/protocol/island_plan.h"
#include "coordinator/planning/request.h"

namespace atl {

// A plan's memory on a device, which may have less than that.
struct MemoryLack {
  std::string device;
  int64_t takes_bytes = 0;      // as its backends count
  int64_t auxiliary_bytes = 0;  // of the same memory: messages, all-reduces, copies of the model
  int64_t has_bytes = 0;        // INT64_MAX: not known
  int64_t reserved_bytes = 0;   // by the search

  int64_t lacks_bytes() const { return takes_bytes + auxiliary_bytes - has_bytes; }
};

// "w1/0 lacks 3.1 MiB: it would take 67.1 MiB, 5.0 MiB of it for messages and copies of the
// model on the host, and has 64.0 MiB".
std::string Text(const MemoryLack& lack);

// Predicts the memory of one program of the plan's; nothing: the device is in no stage, or workers
// have not said what the model is.
std::optional<MemoryLack> PredictProgramMemory(const PlanRequest& request, const IslandPlan& plan,
                                               const PlanProgram& program);

// Writes memory_peak_bytes of the programs, and what the workers' processes take of their hosts at
// most: devices, where these are the host's, messages, what is kept of the model
// (common/model/outer_copies.h), also what a worker does without where memory is short, and the
// process itself. Nothing: as PredictProgramMemory, of any of its programs. Returns all devices
// that have less than that.
std::vector<MemoryLack> PredictMemory(const PlanRequest& request, IslandPlan* plan);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLANNING_PLAN_MEMORY_H_
