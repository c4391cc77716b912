// Schedule families by rule: the fixed orders of operations that frameworks use. What is found by
// search (greedy, zero-bubble, V-shaped) is in search.h.
//
// All return the order of every device for the whole problem, any number of replicas. An unsplit
// chunk (weight_ns = 0) has no W; where a rule knows no W of its own, a split chunk's W follows its
// B.

#ifndef ATOLL_COORDINATOR_SIMULATOR_SCHEDULES_H_
#define ATOLL_COORDINATOR_SIMULATOR_SCHEDULES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/simulator/problem.h"

namespace atl::sim {

// All forwards, then all backwards (GPipe). Memory: m activations. Any placement.
Schedule GPipe(const Problem& problem);

// One forward, one backward (DAPPLE, PipeDream-flush): stage s of p runs min(m, p - s) forwards,
// then alternates. Memory: p - s activations. One chunk per device.
absl::StatusOr<Schedule> OneForwardOneBackward(const Problem& problem);

// Interleaved 1F1B (Megatron's virtual stages): v chunks per device, chunk c on the pipeline's
// device c mod p; the number of micro-batches is a multiple of p.
absl::StatusOr<Schedule> Interleaved(const Problem& problem);

// Zero-bubble H1 and H2 (Qi et al., 2023) by their published pattern: as 1F1B with W held back
// min(s, ..) passes, memory p activations everywhere; H2 starts 2(p - s) - 1 forwards and holds W
// back twice as long, memory 2p - 1. One chunk per device.
absl::StatusOr<Schedule> ZeroBubbleH1(const Problem& problem);
absl::StatusOr<Schedule> ZeroBubbleH2(const Problem& problem);

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

// The schedules made of the blocks with this D whose turns take the fewest units: at most `most`,
// shortest turns first. Empty if no block repeats without a collision. The problem's pipelines are
// V-shaped with two chunks per device and a split backward; otherwise an error.
absl::StatusOr<std::vector<Schedule>> VBlockSchedules(const Problem& problem, int d, int most);

}  // namespace atl::sim

#endif  // ATOLL_COORDINATOR_SIMULATOR_SCHEDULES_H_
