// How many steps each island makes until its next push: load balancing between islands.
//
// Slower islands make fewer, so that all push at about the same time (`outer.balance_steps`). An
// island whose push came between the others' (it joined, or was unavailable for a while) would do
// so indefinitely: all rounds last as long. Rounds would then be those of single islands, each
// pseudo-gradient a version late. So it makes one shorter round and joins the others'
// (docs/design/rounds.md).

#ifndef ATOLL_COORDINATOR_CORE_ROUNDS_ROUND_STEPS_H_
#define ATOLL_COORDINATOR_CORE_ROUNDS_ROUND_STEPS_H_

#include "coordinator/core/state.h"

namespace atl::coord {

// Sets, after a round was committed, the steps of its islands' next one; other islands' steps are
// lowered where they have become slower.
void BalanceSteps(State& s, Job& job, const DecisionRecord& committed);

// Returns how long a window is open that the island's contribution opens.
Duration GraceFor(const State& s, const Job& job, IslandId first);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_ROUNDS_ROUND_STEPS_H_
