// How many inner steps there are between two pushes where the job leaves that to measurements
// (outer.steps_per_round = 0): the fewest that keep exchanges from costing time. At equal bytes few
// steps and few bits lose less than many steps and many bits (docs/design/rounds.md).
//
// Pure.

#ifndef ATOLL_COMMON_PROTOCOL_ROUND_LENGTH_H_
#define ATOLL_COMMON_PROTOCOL_ROUND_LENGTH_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>

#include "common/time.h"

namespace atl {

inline constexpr int64_t kFirstRoundSteps = 2;  // until an exchange is measured
inline constexpr int64_t kStepsPerRoundMax = 1 << 20;
// Where H is chosen, what is scheduled by rounds is scheduled by rounds of so many steps.
inline constexpr int64_t kScheduleSteps = 64;

// The times that a round consists of, in seconds; those of the slowest island where they differ.
struct RoundTimes {
  double exchange_s = 0;            // at least 0
  double exchange_least_s = 0;      // surely
  double exchange_most_s = 0;       // surely
  double step_s = 0;                // of the fastest island, above 0
  bool overlap = false;             // islands train on during an exchange
  double slowest_over_fastest = 1;  // speeds, where islands make as many steps as they are fast
};

// Returns the steps of the fastest island in which the slowest one makes one; at most 64.
inline int64_t CountLeastSteps(double slowest_over_fastest) {
  constexpr double kMost = 64;
  const double ratio = slowest_over_fastest > 0 ? 1 / slowest_over_fastest : kMost;
  return static_cast<int64_t>(std::ceil(std::clamp(ratio - 0.5, 1.0, kMost)));
}

// Without overlap exchanges take at most a twentieth of the time that steps take; with overlap a
// round lasts four exchanges, so that what is exchanged is not old when it is adopted.
inline double ComputeStepsOfExchange(double exchange_s, const RoundTimes& times) {
  constexpr double kShare = 0.05, kExchanges = 4;
  return times.overlap ? kExchanges * exchange_s / times.step_s
                       : exchange_s / (kShare * times.step_s);
}

inline int64_t ComputeRoundSteps(const RoundTimes& times) {
  const double steps = ComputeStepsOfExchange(times.exchange_s, times);
  const int64_t least =
      std::max<int64_t>(times.overlap ? 2 : 1, CountLeastSteps(times.slowest_over_fastest));
  if (!(steps < static_cast<double>(kStepsPerRoundMax))) return kStepsPerRoundMax;
  return std::max(static_cast<int64_t>(std::ceil(steps)), least);
}

// The same while a round has `steps`, which stay unless even the most favourable of the measured
// times calls for a quarter more, or for a quarter less than those that round up to them: numbers
// are small, and one that is measured a little above 2 is no reason to go from 2 to 3.
inline int64_t FollowRoundTimes(int64_t steps, const RoundTimes& times) {
  constexpr double kBand = 1.25;
  const double now = static_cast<double>(steps), speeds = times.slowest_over_fastest;
  const bool longer = ComputeStepsOfExchange(times.exchange_least_s, times) > kBand * now ||
                      CountLeastSteps(kBand * speeds) > steps;
  const bool shorter = kBand * ComputeStepsOfExchange(times.exchange_most_s, times) < now - 1 &&
                       CountLeastSteps(speeds / kBand) < steps;
  return longer || shorter ? ComputeRoundSteps(times) : steps;
}

// The steps of a job's rounds while it runs. Measured times are noisy: what they call for counts
// when they have called for a change without a break for as long as it takes to measure all anew.
class RoundLength {
 public:
  static constexpr Duration kSampleEvery = std::chrono::seconds(2);  // of what is measured
  static constexpr Duration kPatience = 5 * kSampleEvery;

  int64_t Follow(Instant now, int64_t steps, const RoundTimes& times) {
    const int64_t wanted = FollowRoundTimes(steps, times);
    if (wanted != steps && !wanted_since_) wanted_since_ = now;
    if (wanted != steps && now < *wanted_since_ + kPatience) return steps;
    wanted_since_.reset();
    return wanted;
  }

  template <class V>
  void VisitFields(V& v) {
    v(wanted_since_);
  }

 private:
  std::optional<Instant> wanted_since_;
};

// Pushes of like numbers of steps have like statistics: 0 of one step, one more for each doubling.
inline int64_t ComputeLengthClass(int64_t steps) {
  return std::bit_width(static_cast<uint64_t>(std::clamp<int64_t>(steps, 1, kStepsPerRoundMax))) -
         1;
}
inline constexpr int64_t kLengthClasses = 21;

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_ROUND_LENGTH_H_
