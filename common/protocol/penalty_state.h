// What is known of an island's pushes, against which the next one is judged
// (coordinator/core/penalty.h has the rules).

#ifndef ATOLL_COMMON_PROTOCOL_PENALTY_STATE_H_
#define ATOLL_COMMON_PROTOCOL_PENALTY_STATE_H_

#include <vector>

namespace atl {

// How far its pushes of one fragment usually go; without fragments, all its pushes.
struct UsualPush {
  int warm_up_pushes = 0;  // accepted since the warm-up began, at most kPenaltyWarmUpPushes
  double mean = 0;         // mu, of norm / reach
  double deviation = 0;    // sigma
  int rejections_in_row = 0;

  bool operator==(const UsualPush&) const = default;
};

struct PenaltyState {
  std::vector<UsualPush> usual;  // by fragment; of those that it has pushed
  std::vector<double> scores;    // of the last accepted pushes, each cut at kPenaltyScoreCut

  bool operator==(const PenaltyState&) const = default;
};

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_PENALTY_STATE_H_
