// A recorded step beside its prediction, as human-readable text. Pure.

#ifndef ATOLL_CLI_TEXT_TRACE_TEXT_H_
#define ATOLL_CLI_TEXT_TRACE_TEXT_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/step_trace.h"
#include "proto/coordinator.pb.h"

namespace atl::cli {

struct TraceAnswer {
  std::string job;
  int32_t island = 0;
  std::string leader;
  int64_t generation = 0;
  std::optional<StepTrace> predicted;
  std::string no_prediction;  // why there is none
  StepTrace measured;
};

// The error names the field that breaks a limit.
absl::StatusOr<TraceAnswer> ToAnswer(v1::TraceReply reply);

// Where a device's step goes; the parts add up to the step's time.
enum class StepPart {
  kForward,
  kBackward,
  kWeights,
  kWait,       // for messages, without what was done meanwhile
  kAllReduce,  // for its all-reduces, when all else is done
  kCommit,     // the exchange at the end, and until the last device is done
  kOptimizer,
  kOther,  // before it begins, and between its operations: sending, starting them
};
inline constexpr int kStepParts = 8;

struct PartTimes {
  std::array<int64_t, kStepParts> ns{};
  int64_t step_ns = 0;

  int64_t of(StepPart part) const { return ns[static_cast<size_t>(part)]; }
  double bubble() const;  // share of the step without F, B, W or optimizer
};

// `joined`: B and W as one, in kBackward; where one of two steps that are compared has them so.
PartTimes ComputePartTimes(const StepTrace& trace, const TraceDevice& device, bool joined);

// The largest differences of any device, and what was measured that explains them: "w2/0 waits
// 41.0 ms longer for activations from w1/0: messages take 134 ms, planned 84 (62 Mbit/s, planned
// 100)". Differences below half a percent of the step are none.
std::vector<std::string> Differences(const StepTrace& predicted, const StepTrace& measured,
                                     size_t most);

// Step times, a table by device, and the three largest differences.
std::string TraceText(const TraceAnswer& answer);

}  // namespace atl::cli

#endif  // ATOLL_CLI_TEXT_TRACE_TEXT_H_
