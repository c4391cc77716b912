// Checkpoints of an island's training state outside its devices, and in which tier (SavedState).

#ifndef ATOLL_COMMON_PROTOCOL_SAVED_STATE_H_
#define ATOLL_COMMON_PROTOCOL_SAVED_STATE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "common/protocol/position_range.h"
#include "proto/control.plain.h"

namespace atl {

// A step of an island.
struct LoggedStep {
  int64_t optimizer_step = 0;  // of the state after it
  std::vector<PositionRange> ranges;
  double learning_rate = 0;
  // StepCall's when the step is replayed: the smallest number if it was skipped, so that it is
  // again.
  double norm_limit = 0;
  std::optional<double> loss_times_tokens = std::nullopt;  // where it is known

  bool operator==(const LoggedStep&) const = default;
};

inline constexpr int kTiers = 3;

inline constexpr int kSavedStatesMax = 4;  // of one island

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_SAVED_STATE_H_
