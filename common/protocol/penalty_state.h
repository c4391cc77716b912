// What is known of an island's pushes, against which the next one is judged
// (coordinator/core/penalty.h has the rules).

#ifndef ATOLL_COMMON_PROTOCOL_PENALTY_STATE_H_
#define ATOLL_COMMON_PROTOCOL_PENALTY_STATE_H_

#include <vector>

namespace atl {

struct PenaltyState {
  int warm_up_pushes = 0;      // accepted since the warm-up began, at most kPenaltyWarmUpPushes
  double mean = 0;             // mu, of norm / reach
  double deviation = 0;        // sigma
  std::vector<double> scores;  // of the last accepted pushes, each cut at kPenaltyScoreCut
  int rejections_in_row = 0;

  bool operator==(const PenaltyState&) const = default;
};

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_PENALTY_STATE_H_
