// How many inner steps there are between two pushes where the job leaves that to measurements
// (outer.steps_per_round = 0): the fewest that keep exchanges from costing time. At equal bytes few
// steps and few bits lose less than many steps and many bits (docs/design/rounds.md).
//
// Pure functions.

#ifndef ATOLL_COMMON_PROTOCOL_ROUND_LENGTH_H_
#define ATOLL_COMMON_PROTOCOL_ROUND_LENGTH_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace atl {

inline constexpr int64_t kFirstRoundSteps = 2;  // until an exchange is measured
inline constexpr int64_t kStepsPerRoundMax = 1 << 20;
// Where H is chosen, what is scheduled by rounds is scheduled by rounds of so many steps.
inline constexpr int64_t kScheduleSteps = 64;

// The times that a round consists of, in seconds; those of the slowest island where they differ.
struct RoundTimes {
  double exchange_s = 0;        // at least 0
  double exchange_least_s = 0;  // surely
  double exchange_most_s = 0;   // surely
  double step_s = 0;            // of the fastest island, above 0
  bool overlap = false;         // islands train on during an exchange
  int64_t least_steps = 1;      // CountLeastSteps, where islands make as many as they are fast
};

// Returns the steps of the fastest island in which the slowest one makes one; at most 64.
inline int64_t CountLeastSteps(double slowest_over_fastest) {
  constexpr double kMost = 64;
  const double ratio = slowest_over_fastest > 0 ? 1 / slowest_over_fastest : kMost;
  return static_cast<int64_t>(std::ceil(std::clamp(ratio - 0.5, 1.0, kMost)));
}

// Without overlap exchanges take at most a twentieth of the time that steps take; with overlap a
// round lasts four exchanges, so that what is exchanged is not old when it is adopted.
inline int64_t ComputeRoundSteps(double exchange_s, const RoundTimes& times) {
  constexpr double kShare = 0.05, kExchanges = 4;
  const double steps =
      times.overlap ? kExchanges * exchange_s / times.step_s : exchange_s / (kShare * times.step_s);
  const int64_t least = std::max<int64_t>(times.overlap ? 2 : 1, times.least_steps);
  if (!(steps < static_cast<double>(kStepsPerRoundMax))) return kStepsPerRoundMax;
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(steps)),
                             std::min(least, kStepsPerRoundMax), kStepsPerRoundMax);
}
inline int64_t ComputeRoundSteps(const RoundTimes& times) {
  return ComputeRoundSteps(times.exchange_s, times);
}

// The same while a round has `steps`, which change only where even the most favourable of the
// measured times calls for others, and by more than a quarter.
inline int64_t FollowRoundTimes(int64_t steps, const RoundTimes& times) {
  const bool surely = steps < ComputeRoundSteps(times.exchange_least_s, times) ||
                      steps > ComputeRoundSteps(times.exchange_most_s, times);
  const int64_t wanted = ComputeRoundSteps(times);
  return surely && 4 * std::abs(wanted - steps) > steps ? wanted : steps;
}

// Pushes of like numbers of steps have like statistics: 0 of one step, one more for each doubling.
inline int64_t ComputeLengthClass(int64_t steps) {
  return std::bit_width(static_cast<uint64_t>(std::clamp<int64_t>(steps, 1, kStepsPerRoundMax))) -
         1;
}
inline constexpr int64_t kLengthClasses = 21;

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_ROUND_LENGTH_H_
