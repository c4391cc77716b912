// Fills shards that a parameter server has lost with theta_base of an island. Where no island has
// the newest version's, an older one fills them under a version of its own, and the update between
// the two is lost (docs/decisions/moving-shards.md). Private to the core.

#ifndef ATOLL_COORDINATOR_CORE_SHARDS_REFILL_H_
#define ATOLL_COORDINATOR_CORE_SHARDS_REFILL_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/state.h"

namespace atl::coord {

struct FillSource {
  const Member* leader = nullptr;
  const IslandRecord* island = nullptr;
};
// The islands that are there, by the version of their theta_base.
std::map<Version, std::vector<FillSource>> FindFillSources(const State& s, const Job& job);

// The parameters that lost shards get, and the version that has them.
struct Fill {
  Version version = 0;  // as JobRecord::fill_version
  Version base = 0;     // of theta_base
};
// Chooses a fill from the newest theta_base. A version that another theta_base was to fill, or
// whose bits of these shards (`lost`) an island may have pulled, is not filled otherwise. REQUIRES:
// there is a source.
Fill ChooseFill(const Job& job, const std::map<Version, std::vector<FillSource>>& sources,
                const std::vector<ShardPlacement>& lost);

// The version of theta_base that fills the moves under way.
Version GetFillBase(const Job& job);
// An island has adopted the committed version meanwhile, whose parameters of the lost shards are
// the same.
bool HasExactSource(const State& s, const Job& job);
// Returns whether a round without contributions is to be decided before they can be filled.
bool IsBeforeFill(const Job& job);
// All that the server holds is lost, and is being filled: no round waits for it.
bool IsBeingFilled(const Job& job, const NodeId& server);

// "version 7 (round 8: island 0 of w-0)" and so on: whose updates shards lack that go on from
// version `base`. Empty: none that concerns them.
std::string LostUpdates(const Job& job, const std::vector<ShardPlacement>& shards, Version base);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_SHARDS_REFILL_H_
