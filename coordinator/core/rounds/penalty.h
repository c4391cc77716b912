// How far a contribution may stray from what its island usually sends: a running mean and deviation
// of the size of each island's pseudo-gradients of each fragment, which is their global L2 norm
// divided by the sum of their learning rates. docs/decisions/penalty.md has the rules and why.
//
// Pure values and functions.

#ifndef ATOLL_COORDINATOR_CORE_ROUNDS_PENALTY_H_
#define ATOLL_COORDINATOR_CORE_ROUNDS_PENALTY_H_

#include <cstdint>
#include <string>

#include "proto/control.plain.h"

namespace atl {

inline constexpr double kPenaltyRate = 0.02;           // a, of the running mean and deviation
inline constexpr double kPenaltyFirstDeviation = 0.1;  // sigma_0 = 0.1 G
inline constexpr double kPenaltyScoreCut = 3;
inline constexpr int kPenaltyWarmUpPushes = 10;
inline constexpr int kPenaltyScoresKept = 100;
inline constexpr int kPenaltyRejectionsBeforeWarmUp = 3;
inline constexpr double kPenaltyExcessMost = 5;  // in the warm-up; see JudgedPush

struct JudgedPush {
  double norm = 0;
  double learning_rate_sum = 1;  // > 0: how far its steps could go, the sum of their learning
                                 // rates, or anything in proportion
  int64_t statistics = 0;        // the place of its like in PenaltyState::norm_statistics
  // The smaller of two ratios to the round's median island: of its norm, and of its size; 0: not
  // known. In the warm-up there are no earlier pushes to compare it with.
  double excess = 0;
};

// The treatment of an outlier once its island has warmed up.
enum class Outliers {
  kAccepted,  // nothing finite is rejected or clipped; scores are kept for display
  kRejected,
  kClipped,  // to the limit, and the island's statistics begin anew: its scale has changed
};

struct PenaltyVerdict {
  bool accepted = false;
  bool warm_up_again = false;  // the island re-pulls and its state begins anew
  double score = 0;            // E, before the update; 0 where there is none
  double limit = 0;            // E above this is rejected (after warm-up) or clipped (in it)
  double clip = 1;             // factor on this contribution's pseudo-gradient, (0, 1]
  std::string reason;          // human-readable
  PenaltyState after;
};

// Judges one contribution (a norm that is not finite: always rejected).
PenaltyVerdict Judge(const PenaltyState& before, const JudgedPush& push, Outliers outliers);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CORE_ROUNDS_PENALTY_H_
