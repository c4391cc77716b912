// Wall time: for output, never to decide by.

#ifndef ATOLL_COMMON_WALL_CLOCK_H_
#define ATOLL_COMMON_WALL_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace atl {

// Milliseconds since 1970.
inline int64_t UnixTimeMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace atl

#endif  // ATOLL_COMMON_WALL_CLOCK_H_
