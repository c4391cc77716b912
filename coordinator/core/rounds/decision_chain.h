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

// Begins the participant's worker where a site's branch has contributed, which signs nothing.
inline constexpr char kBranchPrefix[] = "site ";

struct CheckedDecisions {
  int64_t decisions = 0;  // that are in the chain
  int64_t unchained = 0;  // before it, without a digest: an earlier build made them
  // The newest round that begins a chain, as the job's first one and those that are taken over from
  // parameter servers: that it follows those before is not shown. -1: the kept ones have none.
  int64_t begins_at = -1;
  int64_t signed_contributions = 0, unsigned_contributions = 0;
  int64_t first_round = 0, last_round = 0;
  std::string digest;     // of the last one
  int64_t bad_round = 0;  // the first that does not fit
  std::string problem;    // of it, human-readable; empty: all fit
};

// Checks decisions that are kept of one job, oldest first, whose newest digest is `newest` (empty:
// not known), and the signatures of their contributions. Each must be by its worker's certificate,
// one of these that the authority has signed (PEM; empty: signatures are not checked). None may be
// unsigned after the first round that has a signed one, or where none is signed, but those of
// branches, which the coordinator makes, and of a decision that begins a chain. Stops at the first
// round that does not fit.
CheckedDecisions CheckDecisions(const std::vector<DecisionRecord>& decisions,
                                const std::string& newest,
                                const std::vector<std::string>& certificates,
                                const std::string& authority);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CORE_ROUNDS_DECISION_CHAIN_H_
