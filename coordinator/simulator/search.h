// Schedules found by search: event-driven greedy scheduling, perturbed restarts and the zero-bubble
// and V-shaped families built on them.
//
// Greedy scheduling runs the simulator without an order: an idle device starts an operation whose
// inputs are there, by the policy's rules, and the order that results is the schedule. Memory is
// reserved when F starts; F waits while it would not fit, and while it would leave too little
// memory for the oldest micro-batch on the device to finish, so that no schedule can block itself.
//
// Greedy schedules show anomalies (more bandwidth, longer time), so Search() tries many policies
// and keeps the best. All of it is deterministic in the seed.

#ifndef ATOLL_COORDINATOR_SIMULATOR_SEARCH_H_
#define ATOLL_COORDINATOR_SIMULATOR_SEARCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/simulator/problem.h"
#include "coordinator/simulator/simulate.h"

namespace atl::sim {

struct GreedyPolicy {
  enum class Prefer {
    kBackward,     // B, then F, then W: JEEVES
    kForward,      // F, then B, then W
    kCycle,        // F until the first B is ready, then F, B and W in turn
    kWarmForward,  // F until the first B is ready, then B, F, W: SpanTrain's compact zero-bubble
  };
  Prefer prefer = Prefer::kBackward;
  // An operation that is ready is put off while a preferred one (B before F, B or F before W) is
  // known to arrive within this share of its duration. 0: never wait.
  double forward_patience = 0;
  double weight_patience = 0;
  // At most this many micro-batches of a chunk between the start of F and the end of B, on top of
  // the memory limit. Empty: no such limit; otherwise one per chunk, at least 1. It keeps early
  // stages from piling up work that waits downstream, which would make the last round trips long.
  std::vector<int> open_limit;
  // Several chunks of a pipeline on a device: the B nearest the start first, not nearest the end.
  bool shallow_backward = false;
  // Chance of taking F where B was preferred and the other way round.
  double flip_chance = 0;
  uint64_t seed = 0;
};

struct Found {
  Schedule schedule;
  Result result;
  std::string how;  // which policy, in words
};

// One greedy run. The verdict is never kOutOfMemory; kStuck when one micro-batch does not fit;
// kStopped where it would take longer than `latest_end_ns`.
// REQUIRES: Validate(problem) is OK.
Found Greedy(const Problem& problem, const GreedyPolicy& policy, Nanos latest_end_ns = kForever);

// F and B in the order of the schedule, every W where its device would have to wait, or where it
// releases the memory that the next F needs. kStuck when that never comes; kStopped as above.
// REQUIRES: `schedule` is one of this problem.
Found FillWithWeights(const Problem& problem, const Schedule& schedule,
                      Nanos latest_end_ns = kForever);

enum class Objective {
  kMakespan,  // Result::makespan_ns
  kPeriod,    // Result::period_ns: steps follow each other without a barrier
};
Nanos GetObjectiveValue(const Result& result, Objective objective);

struct SearchOptions {
  Objective objective = Objective::kMakespan;
  int restarts = 64;  // simulations to spend, at least 1
  uint64_t seed = 1;
};

// The best of JEEVES's greedy, compact zero-bubble in all three preferences, perturbations of the
// best so far. Never worse than Greedy(problem, {}). Ends early when the lower bound (bounds.h) is
// reached. The error says what does not fit.
absl::StatusOr<Found> Search(const Problem& problem, const SearchOptions& options);

// The placement that a family requires of a device's share of the model.
enum class Placement {
  kAny,
  kOneChunk,
  kInterleaved,  // several chunks, assigned to the devices in turn
  kV,            // two chunks, the second on the way back (MakeUniform's v_shape)
};

struct ScheduleFamily {
  std::string name;
  Placement placement = Placement::kAny;
};

// All families, in the order of their invention. The zb-1p, zb-2p and V families set the memory
// limit that defines them (p, 2p; p, p/2 + 1, p/3 + 2 forwards of a whole stage), but never above
// the device's own.
const std::vector<ScheduleFamily>& ScheduleFamilies();
std::vector<std::string> ScheduleNames();

// A schedule of the family. The V families take the better of the published building blocks
// (VBlockSchedules), which are made for equal F, B and W, and of a search. The verdict of those by
// rule says if they do not fit. The error says which families there are, or what does not fit.
absl::StatusOr<Found> ScheduleByName(const Problem& problem, absl::string_view name,
                                     const SearchOptions& options);

}  // namespace atl::sim

#endif  // ATOLL_COORDINATOR_SIMULATOR_SEARCH_H_
