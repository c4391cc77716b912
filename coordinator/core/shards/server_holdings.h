// Tracks what parameter servers hold of each job, as they report it: shards, versions, staged
// pushes; and what of it is not as the job needs it.

#ifndef ATOLL_COORDINATOR_CORE_SHARDS_SERVER_HOLDINGS_H_
#define ATOLL_COORDINATOR_CORE_SHARDS_SERVER_HOLDINGS_H_

#include <string>

#include "coordinator/core/state.h"

namespace atl::coord {

// `fresh`: a process that has not attached to this coordinator before: its list is all it holds.
void OnServerHello(State& s, Server& server, const ServerHello& message, bool fresh);
// Shards that the server said to lack are not to be there any more: it may have all it needs.
void OnLackedShardsForgotten(State& s, Job& job, const NodeId& server);
void OnPushStaged(State& s, Server& server, const PushStaged& message);

// The job waits while there is one; "": there is none any more. REQUIRES: the job has a link to the
// server.
void SetProblem(State& s, Job& job, const NodeId& server, std::string problem);
// The server holds what was decided after the store was written. REQUIRES: as above.
void NoteAhead(State& s, Job& job, const NodeId& server);

// Orders servers to drop what they have staged and no round will use. Not before every server has
// said what it holds: another one may show that the store is older, and that a round was made of
// it.
void DropUnknown(State& s, Job& job);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_SHARDS_SERVER_HOLDINGS_H_
