// When an island's workers go over to a new plan (state resharding), and when another one leads it
// (handover, failover).
//
// At the end of a step: if all workers under the old plan are there, the leader finishes the step,
// waits until the others have finished, and reports it (IslandProgress.setting_up); only then do
// the others get their orders. If one of them is unavailable, all get them at once, and the step is
// abandoned.
//
// A leader that ends hands over: its successor leads the next plan in the same generation, with the
// old leader as a source. The old leader gets its order first, finishes its step and follows; then
// the successor gets its order and fetches the control state. Leases, contributions and their names
// stay. If the old leader ends too early, a new generation begins, as after its death.

#ifndef ATOLL_COORDINATOR_CORE_ISLANDS_SWITCHING_H_
#define ATOLL_COORDINATOR_CORE_ISLANDS_SWITCHING_H_

#include <string>

#include "coordinator/core/state.h"

namespace atl::coord {

// How long a plan waits at least for the end of the step under way before that step is abandoned.
// It waits longer where a step may take longer (StepLimit), or the state transfer to the old plan
// (GetStateTransferLimit, for one copy of the model). This limit is for members that do not answer
// any more: steps and transfers end by themselves.
inline constexpr Duration kStepEndLimit = std::chrono::minutes(15);

// This very process is attached, or may come back after a restart of the coordinator.
bool IsExpected(const State& s, const IslandMember& member);

// Lists, before another plan replaces the island's, the workers that train together now, if all of
// them are there; else none.
std::vector<IslandMember> Stepping(const State& s, const Job& job, const IslandRecord& island);
// The island's newest plan takes effect: at the end of a step if `stepping` is not empty.
void BeginSwitch(State& s, Job& job, const IslandRecord& island, const std::string& reason,
                 std::vector<IslandMember> stepping);
// Returns whether that plan is set up without interrupting a step.
bool AtStepEnd(const Job& job, const IslandRecord& island);
// Returns whether this worker may have its order for the plan now.
bool MayGoOver(const State& s, const Job& job, const IslandRecord& island, const Worker& worker);

// Returns who leads the island next because its leader ends, or null.
const IslandMember* FindSuccessor(const State& s, const Job& job, const IslandRecord& island);
// `successor`, a follower, leads from now on and is to take over from the leader.
void BeginHandover(State& s, Job& job, IslandId id, const IslandMember& successor);

// Notes what has come of switches and handovers.
void AdvanceSwitches(State& s, Job& job);
Instant NextSwitchDeadline(const State& s, const Job& job);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_ISLANDS_SWITCHING_H_
