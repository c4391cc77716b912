// How far another worker's clock is ahead of ours, from questions and answers. Hosts' steady clocks
// have nothing in common: they count from when their host started. Pure.
//
// An answer was given between the question's departure and its own arrival, both on our clock. So
// each question bounds the difference from both sides, however unlike the two ways were; all
// together bound it at least as well as the quickest of them. The middle is taken, and half of what
// is left is how wrong it can be. (NTP's round-trip rule, without its assumption of equal ways.)

#ifndef ATOLL_WORKER_ISLAND_CONTROL_CLOCKS_H_
#define ATOLL_WORKER_ISLAND_CONTROL_CLOCKS_H_

#include <cstdint>
#include <span>

namespace atl::worker {

// Nanoseconds: `asked` and `heard` on our clock, `answered` on the other one.
struct ClockSample {
  int64_t asked = 0;
  int64_t answered = 0;
  int64_t heard = 0;
};

// other clock = our clock + ahead, to within the uncertainty.
struct ClockOffset {
  int64_t ahead_ns = 0;
  int64_t uncertainty_ns = 0;
};

// REQUIRES: at least one sample. Samples that contradict each other (a clock that was set) give the
// middle of the contradiction, with all of it as uncertainty.
ClockOffset EstimateOffset(std::span<const ClockSample> samples);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_CONTROL_CLOCKS_H_
