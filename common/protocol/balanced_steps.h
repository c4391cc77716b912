// Straggler mitigation by load balancing: how many inner steps an island makes between two pushes
// where slower islands make fewer.

#ifndef ATOLL_COMMON_PROTOCOL_BALANCED_STEPS_H_
#define ATOLL_COMMON_PROTOCOL_BALANCED_STEPS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace atl {

// `most` is the fastest island's, `share` (0 to 1) the island's speed over the fastest one's; at
// least min(most, least).
inline int64_t BalancedSteps(int64_t most, int64_t least, double share) {
  return std::clamp<int64_t>(std::llround(static_cast<double>(most) * share), std::min(most, least),
                             most);
}

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_BALANCED_STEPS_H_
