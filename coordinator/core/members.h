// Attached members: hellos, heartbeats, evictions.

#ifndef ATOLL_COORDINATOR_CORE_MEMBERS_H_
#define ATOLL_COORDINATOR_CORE_MEMBERS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "coordinator/core/state.h"

namespace atl::coord {

void OnWorkerMessage(State& s, const FromWorker& from);
void OnServerMessage(State& s, const FromServer& from);
void OnConnectionLost(State& s, const ConnectionLost& lost);

// For logs and islands: "left: SIGTERM", "evicted: its connection is lost".
std::string DescribeLoss(const Loss& loss);

// No member is evicted for silence within the next heartbeat's time.
void SuspendEvictions(State& s);
// Evicts members without heartbeats, and members that did not come back after a restart of the
// coordinator.
void ExpireMembers(State& s);
// After what a member waits for has changed, in whatever may make it due earlier.
void NoteMemberDeadline(State& s, Member& member);
Instant NextMemberDeadline(const State& s);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_MEMBERS_H_
