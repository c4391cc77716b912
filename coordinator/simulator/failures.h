// Fault tolerance of a step: what it costs when devices and links fail, and come back or not.
//
// What happens then:
// - A link that is down carries nothing. A message that was under way is sent again when the link
//   is back; devices that do not need it go on (network.h, Outage). If the link never comes back
//   and is needed, the step is lost.
// - A device that fails takes its activations and its part of the gradients with it, and no part of
//   a step may be applied without the rest. So the attempt ends there for all. It is redone from
//   the beginning, in the same order, when the failure has been noticed, all failed devices are
//   back and the state is restored. If one never comes back, the step is lost: it is for the
//   planner to make another plan.

#ifndef ATOLL_COORDINATOR_SIMULATOR_FAILURES_H_
#define ATOLL_COORDINATOR_SIMULATOR_FAILURES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/simulator/problem.h"
#include "coordinator/simulator/simulate.h"

namespace atl::sim {

struct Failure {
  enum class What { kDevice, kLink } what = What::kDevice;
  int index = 0;
  Nanos at_ns = 0;  // from the beginning of the first attempt
  Nanos back_ns = kForever;
};

struct FailureRule {
  Nanos detect_ns = 0;   // from a device's failure until all know of it
  Nanos restore_ns = 0;  // from the last device's return until the step begins again
  int attempts_max = 100;
};

// An attempt that a device's failure ended.
struct Attempt {
  Nanos start_ns = 0;
  Nanos end_ns = 0;
  int device = 0;          // that failed
  int64_t operations = 0;  // that had ended, to be redone
  Nanos busy_ns = 0;       // of all devices together, lost
};

struct FailedStep {
  bool done = false;       // otherwise the step is lost
  std::string reason;      // why it is lost; or that memory runs out
  int failed_device = -1;  // the device that never comes back
  Nanos total_ns = 0;      // until the step is done, or known to be lost
  std::vector<Attempt> redone;
  Nanos last_start_ns = 0;  // of the last attempt
  Result last;              // of the last attempt, in its own time
};

// Errors as Simulate, and for failures that name nothing or end before they begin. Without failures
// `last` is what Simulate returns, and total_ns its makespan.
absl::StatusOr<FailedStep> SimulateWithFailures(const Problem& problem, const Schedule& schedule,
                                                const std::vector<Failure>& failures,
                                                const FailureRule& rule, const Options& options);

}  // namespace atl::sim

#endif  // ATOLL_COORDINATOR_SIMULATOR_FAILURES_H_
