// How far another worker's clock is ahead of ours, from requests and replies. Hosts' steady clocks
// have nothing in common: they count from when their host started. Pure.
//
// A reply was sent between the request's departure and its own arrival, both on our clock. So each
// request bounds the difference from both sides, however unlike the two directions were; all
// together bound it at least as well as the quickest of them. The middle is taken, and half of what
// is left is how wrong it can be. (NTP's round-trip rule, without its assumption of equal
// directions.)

#ifndef ATOLL_WORKER_ISLAND_CONTROL_CLOCKS_H_
#define ATOLL_WORKER_ISLAND_CONTROL_CLOCKS_H_

#include <cstdint>
#include <span>

namespace atl::worker {

// Nanoseconds: `requested` and `received` on our clock, `answered` on the other one.
struct ClockSample {
  int64_t requested = 0;
  int64_t answered = 0;
  int64_t received = 0;
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
