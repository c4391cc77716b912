// Parameter servers: their outstanding requests, their answers, their free memory (backpressure on
// pushes). What they hold: server_holdings.h.

#ifndef ATOLL_COORDINATOR_CORE_SHARDS_SERVERS_H_
#define ATOLL_COORDINATOR_CORE_SHARDS_SERVERS_H_

#include <functional>
#include <vector>

#include "coordinator/core/shards/placement.h"
#include "coordinator/core/state.h"

namespace atl::coord {

void OnServerHeartbeat(State& s, Server& server, const ServerHeartbeat& message);
void OnShardsAssigned(State& s, Server& server, const ShardsAssigned& message);
void OnStatistics(State& s, Server& server, const Statistics& message);
void OnRoundApplied(State& s, Server& server, const RoundApplied& message);
void OnServerFault(State& s, Server& server, const ServerFault& message);

// Sends requests that servers have not answered and that were not sent within kRetryInterval.
void PumpServers(State& s, Job& job);
// The next PumpServers sends at once.
void RetryServersNow(State& s, Job& job);
Instant NextServerRetry(const State& s, const Job& job);

bool AllServersKnown(const Job& job);
// "" or the servers that are not there, or lack what they should hold, why, and what to do.
std::string MissingServers(const State& s, const Job& job);
// The servers' passing faults, each after "; ". Empty: none is known.
std::string ServerTroubles(const Job& job);

// Makes the replica the server's, with its address.
void SetHolder(const Server& server, ShardReplica& replica);
// After all shards of the job were placed by name: their addresses, and links to their servers.
void LinkHolders(State& s, Job& job);
// Parameter servers that shards may go to, with their cost for these leaders.
std::vector<PlacementServer> ListServers(const State& s, const std::vector<const Worker*>& leaders,
                                         const std::function<bool(const Server&)>& wanted);
// Bytes free for the shards of a new job.
int64_t FreeBytes(const State& s, const Server& server);
// Update State::server_use after a job's record has changed, at the end of the Step; before the job
// is deleted.
void NoteServerUse(State& s, Job& job);
void ForgetServerUse(State& s, Job& job);
// The numbers of the jobs that may have replicas on the server or links to it.
std::set<int64_t> ListJobsOn(const State& s, const NodeId& server);
// Returns whether every server of the job has memory for one more contribution.
bool HasRoom(const State& s, const Job& job);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_SHARDS_SERVERS_H_
