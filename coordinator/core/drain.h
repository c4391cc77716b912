// `atoll drain`: a member finishes or hands over what it has and gets nothing new until an operator
// undoes that. A parameter server's shards move to others (moves.h). A worker leaves its island as
// one that ends does (island_members.h), but stays attached: a leader hands over, a follower's
// layers move, and one that is alone first trains on the data that it has leased and pushes the
// result. The mark is stored with the member. An island that other jobs call for leaves in the same
// way (sharing/scheduling.h), with all its workers. So that no job waits for ever, a called island
// loses what it has not pushed where rounds do not wait for it, or where it makes no progress for
// kCalledIslandLimit; and it keeps no leased data where its round waits for paused islands.
// Private to the core.

#ifndef ATOLL_COORDINATOR_CORE_DRAIN_H_
#define ATOLL_COORDINATOR_CORE_DRAIN_H_

#include <string>

#include "coordinator/core/state.h"

namespace atl::coord {

inline constexpr Duration kCalledIslandLimit = std::chrono::minutes(10);

// `name`: of a worker or parameter server; "worker/NAME" or "paramserver/NAME" where both exist.
absl::Status SetDraining(State& s, const std::string& name, bool drain);

// Takes drained workers, and islands that are called, out of the job. True if anything changed.
bool AdvanceDrains(State& s, Job& job);

// Returns when AdvanceDrains is to be called again.
Instant NextCallDeadline(const Job& job);

// Returns whether the island gets no more data: its only worker is drained, or it is called.
bool IsRunningOut(const State& s, const Job& job, const IslandRecord& island);

// How far a member is with it.
struct DrainProgress {
  std::string text;      // "", "draining: ..." and what it still has, or "drained: ..."
  bool drained = false;  // it has nothing
};
DrainProgress DescribeDrain(const State& s, const Worker& worker);
DrainProgress DescribeDrain(const State& s, const Server& server);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_DRAIN_H_
