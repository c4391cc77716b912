// Names of members that are kept no longer.

#ifndef ATOLL_COORDINATOR_CORE_NAMES_H_
#define ATOLL_COORDINATOR_CORE_NAMES_H_

#include "coordinator/core/state.h"

namespace atl::coord {

// After a process has been unavailable for so long, one of a smaller incarnation may have its name:
// clocks are set back.
inline constexpr Duration kNameHeld = std::chrono::minutes(1);

// Frees an entry for another name where as many are kept as options.max_members says: forgets those
// that have been detached longest, a sixteenth of all at once. False: none can be forgotten.
//
// Kept are the names of members that are attached, may come back after the coordinator's restart,
// or have been detached for less than kNameHeld; that an operator drains; and those that a job
// which is not removed refers to: holders of its shards and copies, of moves of these, and of what
// they have yet to delete, and the workers of its islands with their followers, plans and saved
// states. Of vacant islands that is so while the job has not ended. Decisions and events name
// members as text, which stays.
bool MakeRoomForName(State& s);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_NAMES_H_
