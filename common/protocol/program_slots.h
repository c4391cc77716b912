// How many micro-batches a device has in flight under its program, found by playing it: what the
// worker takes memory for, and what a plan's prediction of that memory counts. Pure.

#ifndef ATOLL_COMMON_PROTOCOL_PROGRAM_SLOTS_H_
#define ATOLL_COMMON_PROTOCOL_PROGRAM_SLOTS_H_

#include <cstdint>
#include <vector>

#include "common/protocol/island_plan.h"

namespace atl {

struct StageSlots {
  int32_t stage = 0;
  int forward = 0;     // micro-batches between the start of F and the end of W, at most
  int backward = 0;    // and between the start of B and the end of W
  bool fused = false;  // every W of the device follows its B at once

  bool operator==(const StageSlots&) const = default;
};

// `stages`: that the device has, ascending. A stage writes its output into the slot of the next one
// where that is on the device too, and so do gradients the other way.
std::vector<StageSlots> ComputeStageSlots(const PlanProgram& program,
                                          const std::vector<int32_t>& stages);

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_PROGRAM_SLOTS_H_
