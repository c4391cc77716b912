// One rehearsed run: a scene, the failures that a seed draws, and what came of it.

#ifndef ATOLL_REHEARSAL_RUN_H_
#define ATOLL_REHEARSAL_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rehearsal/accounts.h"
#include "rehearsal/failures.h"
#include "rehearsal/planner.h"
#include "rehearsal/scene.h"

namespace atl::rehearsal {

// The cost of one failure, in device-seconds that were not computing.
struct FailureCost {
  Failure failure;
  uint64_t seed = 0;
  UseSums uses{};
  double total() const;
};

struct RunResult {
  uint64_t seed = 0;
  bool finished = false;  // all tokens are in the model
  bool failed = false;    // the job did
  std::string state;      // of the job at the end, and why
  Duration took{0};       // until it was done, or played
  int64_t tokens = 0;     // in the model
  double price = 0;
  UseSums uses{};  // add up to the devices times `took`
  int64_t rounds = 0;
  int64_t failures = 0;
  std::vector<FailureCost> costs;  // the dearest first, at most five
  // Counts of the rehearsal itself.
  int64_t steps = 0;
  int64_t leaps = 0;
  int64_t events = 0;
  int64_t plans = 0;
  uint64_t decisions = 0;  // fingerprint of the coordinator's log, without times

  double device_seconds() const;
  double goodput() const;  // computing, of all device-time
  double tokens_per_s() const;
};

// Plays until the job has ended, or for so long. The same arguments give the same result, bit by
// bit. INTERNAL: the rehearsal itself has failed.
absl::StatusOr<RunResult> Play(const Scene& scene, Searches& searches,
                               const std::vector<Failure>& failures, Duration until, uint64_t seed);

}  // namespace atl::rehearsal

#endif  // ATOLL_REHEARSAL_RUN_H_
