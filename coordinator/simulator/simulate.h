// Simulates one training step of a problem under a schedule: the discrete-event simulator.
//
// Time is integer nanoseconds. A device runs one operation at a time, without preemption.
// Everything that happens at one instant is applied before any device starts something new, in an
// order fixed by the input alone; so the same input always gives the same output. Some 25 million
// events a second on one core (the planner benchmark measures it).
//
//   auto result = Simulate(problem, schedule, {});
//   if (result.ok() && result->verdict == Verdict::kFits) use(result->makespan_ns);

#ifndef ATOLL_COORDINATOR_SIMULATOR_SIMULATE_H_
#define ATOLL_COORDINATOR_SIMULATOR_SIMULATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/simulator/problem.h"

namespace atl::sim {

enum class Verdict {
  kFits,
  kOutOfMemory,  // it was simulated to the end all the same, so that every peak is known
  kStuck,        // the schedule waits for itself; times are those reached
  kStopped,      // Options::latest_end_ns can no longer be kept
};

struct OpSpan {
  Op op;
  Nanos start_ns = 0;
  Nanos end_ns = 0;
};

// One message. It leaves its sender between start and sent, and arrives a latency later.
struct MessageSpan {
  int link = 0;
  int chunk = 0;  // of the sender
  int micro_batch = 0;
  bool forward = true;
  Nanos ready_ns = 0;
  Nanos start_ns = 0;
  Nanos sent_ns = 0;
  Nanos arrive_ns = 0;
};

struct DeviceUse {
  Nanos busy_ns = 0;   // in F, B, W and optimizer
  Nanos first_ns = 0;  // start of its first operation
  Nanos last_ns = 0;   // end of its last one
  int64_t peak_bytes = 0;
};

struct Result {
  Verdict verdict = Verdict::kFits;
  std::string reason;     // of a verdict other than kFits: which device, how much, when
  Nanos makespan_ns = 0;  // everything done, the optimizer included
  // Longest time from a device's first to its last operation: the time between steps in the long
  // run when each stage may start the next step as soon as it is done with this one.
  Nanos period_ns = 0;
  std::vector<DeviceUse> devices;
  int64_t events = 0;
  int64_t operations = 0;  // F, B, W and optimizer steps that have ended
  // With Options::record; the first with Options::timeline, too.
  std::vector<std::vector<OpSpan>> timeline;  // per device
  std::vector<MessageSpan> messages;          // in the order of requests
};

struct Options {
  bool record = false;
  bool timeline = false;  // of operations alone
  // Ends as soon as some device has more to do than fits before this: for a search, to which a
  // schedule that takes longer is of no use. Times and the schedule are then those of a part.
  Nanos latest_end_ns = kForever;
};

// An error means that the problem or the schedule is malformed (see Validate); a schedule that does
// not fit or that waits for itself is a verdict.
absl::StatusOr<Result> Simulate(const Problem& problem, const Schedule& schedule,
                                const Options& options);

// The same without validating, for inner loops of a search over schedules that are permutations of
// a validated one. REQUIRES: Validate(problem) and Validate(problem, schedule) are OK.
Result SimulateUnchecked(const Problem& problem, const Schedule& schedule, const Options& options);

}  // namespace atl::sim

#endif  // ATOLL_COORDINATOR_SIMULATOR_SIMULATE_H_
