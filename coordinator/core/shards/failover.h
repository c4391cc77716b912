// Failover of shards that two servers hold (docs/decisions/shard-copies.md): a server that is
// lost is dropped where another one holds the same shards. Private to the core.

#ifndef ATOLL_COORDINATOR_CORE_SHARDS_FAILOVER_H_
#define ATOLL_COORDINATOR_CORE_SHARDS_FAILOVER_H_

#include <string>

#include "coordinator/core/state.h"

namespace atl::coord {

// Drops servers that are lost or have been unavailable for long as holders, where other servers
// hold the same shards. True if that changed something.
bool DropLostHolders(State& s, Job& job);
// Drops this server now, whatever the grace. A user requests it.
void DropHolder(State& s, Job& job, const NodeId& server);
// A server that holds shards of this server, too, and is not attached; "": there is none.
NodeId FindUnavailableCounterpart(const State& s, const Job& job, const NodeId& server);
// Neither this server nor the others that hold its shards have them, when DropHolder has been
// called: the active replica of each stays, to be filled.
void ForgetStandbys(State& s, Job& job, const NodeId& server);
// Returns when DropLostHolders is to be called again.
Instant NextFailoverDeadline(const State& s, const Job& job);

// "" or which shards have one replica only, where the job keeps two.
std::string StandbysText(const Job& job);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_SHARDS_FAILOVER_H_
