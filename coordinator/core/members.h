// Attached members: hellos, heartbeats, evictions.

#ifndef ATOLL_COORDINATOR_CORE_MEMBERS_H_
#define ATOLL_COORDINATOR_CORE_MEMBERS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "coordinator/core/state.h"

namespace atl::coord {

void OnWorkerMessage(State& s, const FromWorker& from);
void OnServerMessage(State& s, const FromServer& from);
void OnConnectionLost(State& s, const MemberKey& key, Incarnation incarnation, bool revoked);

// Of a member that leaves in order, the reason of its loss; whether a reason is one; and a loss for
// logs and islands: "left: SIGTERM", "evicted: its connection is lost".
std::string MakeLeavingReason(absl::string_view why);
bool IsLeaving(absl::string_view reason);
std::string DescribeLoss(absl::string_view reason);

// No member is evicted for silence within the next heartbeat's time.
void SuspendEvictions(State& s);
// Members without heartbeats, and members that did not come back after a restart of the
// coordinator.
void ExpireMembers(State& s);
Instant NextMemberDeadline(const State& s);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_MEMBERS_H_
