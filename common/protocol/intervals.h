// Intervals of heartbeats and of other messages that members and the coordinator repeat.

#ifndef ATOLL_COMMON_PROTOCOL_INTERVALS_H_
#define ATOLL_COMMON_PROTOCOL_INTERVALS_H_

#include <chrono>

#include "common/time.h"

namespace atl {

inline constexpr Duration kRetryInterval = std::chrono::seconds(2);
inline constexpr Duration kHeartbeatInterval = std::chrono::seconds(2);
inline constexpr int kMissedHeartbeatsBeforeEviction = 3;
// A ClusterMark of which only the sequence has grown is written down after so long at the latest.
inline constexpr Duration kRememberInterval = std::chrono::seconds(10);

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_INTERVALS_H_
