// The decision of a round, from the participants' token counts, the Gram matrix of their
// pseudo-gradients and the islands' penalty states. Pure.

#ifndef ATOLL_COORDINATOR_CORE_ROUNDS_DECIDE_H_
#define ATOLL_COORDINATOR_CORE_ROUNDS_DECIDE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/ids.h"
#include "coordinator/core/rounds/penalty.h"

namespace atl {

struct RoundCandidate {
  ContributionId contribution;
  int64_t tokens = 0;
  double learning_rate_sum = 1;  // see penalty.h
  int64_t masked_tokens = 0;     // of `tokens`, that the loss did not count
  int64_t statistics = 0;        // the place of its statistics, as in JudgedPush
  std::string site = {};         // whose weight outer.max_share limits
  bool is_unfit = false;         // servers have staged something else than what was signed
};

struct RoundVerdict {
  PenaltyVerdict penalty;
  double norm = 0;    // global L2 norm of the pseudo-gradient
  double weight = 0;  // of the pseudo-gradient, before the round is merged (merge.h); 0 if rejected
};

struct RoundDecision {
  std::vector<RoundVerdict> verdicts;  // as the candidates
  int64_t tokens = 0;                  // of the accepted
  bool is_void = false;                // nothing was accepted
};

// `gram` is k-by-k, row by row: inner products of the candidates' whole pseudo-gradients. Judges in
// the order of the candidates and updates `penalties` (an island without a state begins its
// warm-up). What is unfit is rejected, and says nothing of its island's norms. If several islands
// contribute and every one is an outlier, all are clipped instead of rejected: what has changed is
// the training. `reject_outliers`: see penalty.h.
//   weight_i = counted_i / sum of accepted counted * clip_i
// where counted = max(1, tokens - masked_tokens). REQUIRES: tokens >= masked_tokens >= 0;
// learning_rate_sum > 0; gram.size() == k * k.
RoundDecision Decide(const std::vector<RoundCandidate>& candidates, const std::vector<double>& gram,
                     bool reject_outliers, std::map<IslandId, PenaltyState>& penalties);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CORE_ROUNDS_DECIDE_H_
