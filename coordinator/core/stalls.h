// Islands that make no progress although their workers' heartbeats come: cut off from the parameter
// servers, from their peers or from their data. They are judged by their progress, and no round
// waits for them (straggler mitigation). Private to the core.

#ifndef ATOLL_COORDINATOR_CORE_STALLS_H_
#define ATOLL_COORDINATOR_CORE_STALLS_H_

#include <string>

#include "coordinator/core/state.h"

namespace atl::coord {

// The island's leader has reported this in a heartbeat. Steps are progress only while the island
// has no contribution to push: one that cannot push trains on for a while.
void NoteProgress(State& s, Job& job, const IslandRecord& island, const IslandProgress& progress);
// A shard of the island's contribution is staged, or the contribution was granted.
void NotePush(State& s, Job& job, IslandId id);
// The coordinator itself stalled for so long and received nothing: that counts for no island.
void ExcuseStall(State& s, Duration late);

// Finds stalled islands among those that an open round waits for, once they have made no progress
// for the grace time. True if anything changed. One that goes on like this for long begins anew, so
// that others get its data.
bool AdvanceStalls(State& s, Job& job);

bool IsStalled(const Job& job, IslandId id);
// Human-readable, appended to the island's own status; "" if it is not stalled.
std::string StallReason(const State& s, const Job& job, IslandId id);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_STALLS_H_
