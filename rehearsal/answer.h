// The answer of a rehearsal: distributions over seeds, where device-time went, what cost most, and
// whether one setting is better than another.

#ifndef ATOLL_REHEARSAL_ANSWER_H_
#define ATOLL_REHEARSAL_ANSWER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rehearsal/failures.h"
#include "rehearsal/run.h"
#include "rehearsal/scene.h"

namespace atl::rehearsal {

// Quantiles of the values of all seeds: 5, 50 and 95% quantiles, between neighbours linearly.
struct Spread {
  double low = 0, median = 0, high = 0;
};
Spread GetSpread(std::vector<double> values);

struct Answer {
  std::vector<RunResult> runs;  // by seed
  RunResult bound;              // without failures, with free links
  int64_t finished = 0;         // runs that did within the time
  Spread finish_s;              // of all runs; those that did not finish: infinite
  Spread price, tokens_per_s, goodput;
  UseSums shares{};                  // of all runs' device-time; add up to 1
  std::vector<FailureCost> dearest;  // of all runs, at most kDearest
};
inline constexpr size_t kDearest = 5;

// Plays seeds `first_seed`, ... on all cores. The same arguments give the same answer.
absl::StatusOr<Answer> Rehearse(const Scene& scene, const Failures& failures, Duration until,
                                uint64_t first_seed, int64_t seeds);

// Names what may keep most of its cost off, by what it consists of; it has not been played.
std::string Prevention(const FailureCost& cost, const JobSpec& spec);

// Compares two settings played with the same seeds, the first one the better: how much more the
// other one takes for the same tokens, as a share, and whether that is more than chance (a
// paired t-test by seed, 95%). REQUIRES: as many runs of both.
struct Difference {
  double share = 0;
  bool beyond_noise = false;  // false with one seed, too: nothing is known of chance
};
Difference Compare(const Answer& better, const Answer& other);
// Seconds per token in the model, the mean over seeds: what settings are ordered by.
double SecondsPerToken(const Answer& answer);

}  // namespace atl::rehearsal

#endif  // ATOLL_REHEARSAL_ANSWER_H_
