// The decisions of a job as a chain: each has the digest of the one before it, so that none can be
// changed, left out or added later without its followers. Contributions in it are signed by their
// islands' leaders (common/trust/signed_push.h). Pure.

#ifndef ATOLL_COORDINATOR_CORE_ROUNDS_DECISION_CHAIN_H_
#define ATOLL_COORDINATOR_CORE_ROUNDS_DECISION_CHAIN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/records.h"

namespace atl {

// Digests all that was decided, why, and digest_before; the Gram matrix does not enter.
std::string DigestDecision(const DecisionRecord& decision);

struct CheckedDecisions {
  int64_t decisions = 0;  // that are in the chain
  int64_t signed_contributions = 0, unsigned_contributions = 0;
  int64_t first_round = 0, last_round = 0;
  std::string digest;     // of the last one
  int64_t bad_round = 0;  // the first that does not fit; 0: all do
  std::string problem;    // of it, human-readable
};

// Checks decisions that are kept of one job, oldest first, and the signatures of their
// contributions by these certificates, which must be the authority's (PEM; empty: nothing is known
// of who has signed, and signatures are not checked). Stops at the first round that does not fit.
CheckedDecisions CheckDecisions(const std::vector<DecisionRecord>& decisions,
                                const std::vector<std::string>& certificates,
                                const std::string& authority);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CORE_ROUNDS_DECISION_CHAIN_H_
