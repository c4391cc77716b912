// The published building blocks of V-shaped schedules (Qi et al., "Pipeline Parallelism with
// Controllable Memory", 2024), for equal F, B and W.
//
// Two chunks per device, the second on the way back. A block is the pass of one micro-batch: F of
// the first chunk goes down the devices `a` units apart (a unit is one operation), F of the second
// comes back `b` apart, B of the second goes down `c` apart, B of the first comes back `d` apart.
// Every micro-batch repeats the block six units later. No two of a device's operations may meet
// modulo six; W takes the slots left. A micro-batch is held for about (a + d) = (b + c) = D units
// per device of the way, so a device holds p D / 6 whole activations: D = 6 is ZB-V (the memory of
// 1F1B, no bubbles), D = 3 V-Half, D = 2 V-Min.

#ifndef ATOLL_COORDINATOR_SIMULATOR_V_BLOCKS_H_
#define ATOLL_COORDINATOR_SIMULATOR_V_BLOCKS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/simulator/problem.h"

namespace atl::sim {

// The schedules made of the blocks with this D whose turns take the fewest units: at most `most`,
// shortest turns first. Empty if no block repeats without a collision. The problem's pipelines are
// V-shaped with two chunks per device and a split backward; otherwise an error.
absl::StatusOr<std::vector<Schedule>> VBlockSchedules(const Problem& problem, int d, int most);

}  // namespace atl::sim

#endif  // ATOLL_COORDINATOR_SIMULATOR_V_BLOCKS_H_
