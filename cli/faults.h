// Faults and rounds that `atoll simulate` plays besides a plain step: devices and links that fail,
// and outer rounds.

#ifndef ATOLL_CLI_FAULTS_H_
#define ATOLL_CLI_FAULTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/islands.h"
#include "coordinator/planner/planner.h"

namespace atl::cli {

struct FaultFlags {
  std::vector<std::string> fail;    // DEVICE@FROM or DEVICE@FROM-UNTIL, seconds
  std::vector<std::string> outage;  // FROM>TO@FROM-UNTIL
  double detect_s = 6;              // from a failure until all know of it
  double restore_s = 0;             // from the last device's return until the step begins again
  std::optional<int64_t> rounds;    // none: a step
  double grace_s = 10;              // of a round's window, as jobs have it
};

// "paris>oslo@1.5-2": what fails, and when.
struct Fault {
  std::string what, to;  // `to`: of a link; empty: a device or a site
  double from_s = 0;
  double until_s = 0;  // infinite: for good
};

// The error says how it is written. `link`: FROM>TO is meant.
absl::StatusOr<Fault> ParseFault(const std::string& text, bool link);

// Returns what is wrong with the flags themselves; empty: nothing.
std::string BadFaultFlag(const FaultFlags& flags);

// The plan's step during which devices and links fail: human-readable text, or JSON. What replicas'
// all-reduces and the commit exchange between sites take is left out. REQUIRES: BadFaultFlag is
// empty; so below.
absl::StatusOr<std::string> PlayFailures(const plan::Cluster& cluster, const plan::Plan& plan,
                                         const FaultFlags& flags, bool json);

// An island per site that trains under its plan, and the parameter server where it belongs, for as
// long as the slowest island takes for flags.rounds rounds. REQUIRES: flags.rounds.
absl::StatusOr<std::string> PlayRounds(const plan::Cluster& cluster, const plan::Costs& costs,
                                       const plan::IslandChoice& choice,
                                       const plan::IslandOptions& options,
                                       int64_t tokens_per_sample, const FaultFlags& flags,
                                       bool json);

}  // namespace atl::cli

#endif  // ATOLL_CLI_FAULTS_H_
