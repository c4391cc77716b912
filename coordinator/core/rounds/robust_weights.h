// How much the contributions of a round weigh where sites do not trust each other: outer.merge
// "geometric_median" and "trimmed_norms", and outer.max_share. All of it follows from the Gram
// matrix of whole pseudo-gradients; the outlier rule (penalty.h) has judged each of them before, by
// its own island's past alone. Pure.

#ifndef ATOLL_COORDINATOR_CORE_ROUNDS_ROBUST_WEIGHTS_H_
#define ATOLL_COORDINATOR_CORE_ROUNDS_ROBUST_WEIGHTS_H_

#include <vector>

#include "common/protocol/job_spec.h"
#include "coordinator/core/rounds/decide.h"

namespace atl {

// Fewer contributions than these cannot outvote one: they are weighed by their tokens.
inline constexpr int kRobustContributionsMin = 3;

// Changes the weights of those that `decision` accepts, and says in the reason of each what has
// changed it. Weights that the statistics leave undefined stay those of tokens, under the cap.
// REQUIRES: `decision` was made of these candidates and this matrix, and is not void.
void WeighRobustly(const OuterSpec& outer, const std::vector<RoundCandidate>& candidates,
                   const std::vector<double>& gram, RoundDecision& decision);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CORE_ROUNDS_ROBUST_WEIGHTS_H_
