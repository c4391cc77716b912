// Time as cores see it: a value that they are given.
//
// An Instant counts nanoseconds from an arbitrary start and never goes back. Daemons make it from
// the steady clock once per turn of their event loop; simulations make it from a virtual clock.
// It means nothing outside the process: what is stored or sent carries durations or wall time.

#ifndef ATOLL_COMMON_TIME_H_
#define ATOLL_COMMON_TIME_H_

#include <chrono>

namespace atl {

using Duration = std::chrono::nanoseconds;

struct MonotonicTimeline {};
using Instant = std::chrono::time_point<MonotonicTimeline, Duration>;

inline constexpr Instant kNever = Instant::max();

inline constexpr double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

inline constexpr Duration FromSeconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

}  // namespace atl

#endif  // ATOLL_COMMON_TIME_H_
