// Signed contributions: what their islands' leaders vouch for is checked before a contribution is
// taken, compared with what servers have staged before it counts, and kept with the round's
// decision (decision_chain.h).

#ifndef ATOLL_COORDINATOR_CORE_ROUNDS_SIGNED_ROUNDS_H_
#define ATOLL_COORDINATOR_CORE_ROUNDS_SIGNED_ROUNDS_H_

#include <vector>

#include "coordinator/core/state.h"

namespace atl::coord {

// An error says why the request is not what a worker with such a certificate has to send: digests
// of all that is pushed, and a signature that fits. Without a certificate none is needed; digests
// that are there must be whole all the same.
absl::Status CheckSigned(const Job& job, const Worker& worker, const PushRequest& message);

// Stores with the contribution who has pushed it, and what was checked. REQUIRES: it is taken.
void KeepSigned(Job& job, const Worker& worker, const PushRequest& message);

// The parts of the round's contributions that the server is active for. REQUIRES: a round is being
// collected.
std::vector<ContributionParts> SelectPartsOn(const Job& job, const NodeId& server);

// Gives those decisions their digests that are to be stored, in the order of their rounds.
void SealDecisions(Job& job);

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_ROUNDS_SIGNED_ROUNDS_H_
