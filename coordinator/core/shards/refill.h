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

using ShardList = std::vector<const ShardDescriptor*>;

// `atoll refill`: the job's shards on this server are lost; they are filled from an island.
absl::Status RefillShards(State& s, Job& job, const NodeId& server);

struct FillSource {
  const Worker* leader = nullptr;
  const IslandRecord* island = nullptr;
};
// The islands that are there, by the version of their theta_base.
std::map<Version, std::vector<FillSource>> FindFillSources(const State& s, const Job& job);

// The version of theta_base that fills the replicas under way.
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
std::string LostUpdates(const Job& job, const ShardList& shards, Version base);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_SHARDS_REFILL_H_
