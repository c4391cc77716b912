// When an island's workers go over to a new plan, and when another one leads it.
//
// At a step's boundary: if all who work under the plan before are there, the leader finishes what
// is under way, hears that the others have, too, and says so (IslandProgress.setting_up); only then
// do the others get their orders.
// If one of them is gone, all get them at once, and the step is given up.
//
// A leader that ends hands over: the next plan is led by its heir in the same generation, and has
// it as a lender. It gets its order first, finishes what is under way and follows; then the heir
// gets its own, and fetches what the one before knows. Leases, contributions and their names stay.
// If the one before is gone too early, a new generation begins, as after its death.

#ifndef ATOLL_COORDINATOR_CORE_SWITCHING_H_
#define ATOLL_COORDINATOR_CORE_SWITCHING_H_

#include <string>

#include "coordinator/core/state.h"

namespace atl::coord {

// How long a plan waits at least for the end of the step under way, before that is given up. It
// waits longer where a step may take longer (StepLimit), or the layers that still move to the plan
// before (MoveLimit, for one copy of the model). This is for who says nothing any more: steps and
// moves end by themselves.
inline constexpr Duration kBoundaryLimit = std::chrono::minutes(15);

// This very process is attached, or may come back after a restart of the coordinator.
bool IsExpected(const State& s, const IslandMember& member);

// Before another plan takes the place of the island's: those who work together now, if all of them
// are there; else nobody.
std::vector<IslandMember> Stepping(const State& s, const Job& job, const IslandRecord& island);
// The island's newest plan takes effect: at a boundary if `stepping` names anybody.
void BeginSwitch(State& s, Job& job, const IslandRecord& island, const std::string& reason,
                 std::vector<IslandMember> stepping);
// Whether that plan is set up without interrupting a step.
bool AtBoundary(const Job& job, const IslandRecord& island);
// Whether this worker may have its order for the plan now.
bool MayGoOver(const State& s, const Job& job, const IslandRecord& island, const Member& worker);

// Who leads the island next because its leader ends, or null.
const IslandMember* HeirOf(const State& s, const Job& job, const IslandRecord& island);
// `heir`, a follower, leads from now on and is to take over from the leader.
void HandOver(State& s, Job& job, IslandId id, const IslandMember& heir);

// Notes what has come of switches and hand-overs.
void AdvanceSwitches(State& s, Job& job);
Instant NextSwitchDeadline(const Job& job);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_SWITCHING_H_
