// What is kept of an island's training state beside its devices, and where.

#ifndef ATOLL_COMMON_PROTOCOL_SAVED_STATE_H_
#define ATOLL_COMMON_PROTOCOL_SAVED_STATE_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/ids.h"

namespace atl {

// Sequences of the training data on one endless axis: position p is sequence p % N of epoch p / N
// in that epoch's shuffled order, N being the data set's number of sequences. Half open. Where
// sites hold different data (DataSpec::sites), each has an axis of its own: site k's position i is
// k * kAxisPositions + i. A range lies on one axis.
inline constexpr int64_t kAxisPositions = int64_t{1} << 48;
struct PositionRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  auto operator<=>(const PositionRange&) const = default;
};

// An island's state at a step, as its owners have saved it.
struct LocalCheckpoint {
  JobId job;
  IslandId island = 0;
  Version base_version = kNoVersion;
  int64_t inner_step = 0;               // steps of this island since the job began
  std::vector<PositionRange> consumed;  // since base_version, not yet pushed
  int64_t save = 0;                     // its number; 0: it has none yet
  double loss_times_tokens = 0;         // of `consumed`, that the loss counts
  // Besides `consumed`, in an order to go on from it: what was leased to the island until then.
  std::vector<PositionRange> leased = {};

  bool operator==(const LocalCheckpoint&) const = default;
};

// A step of an island.
struct LoggedStep {
  int64_t optimizer_step = 0;  // of the state after it
  std::vector<PositionRange> ranges;
  double learning_rate = 0;
  std::optional<double> loss_times_tokens = std::nullopt;  // where it is known

  bool operator==(const LoggedStep&) const = default;
};

// Where copies of units lie: in a worker's memory, on its disk, or in an object store or shared
// folder that all workers reach.
enum class Tier { kMemory, kDisk, kRemote };
inline constexpr int kTiers = 3;

// What one owner has saved of a layer or its tensor-parallel part: these elements.
struct SavedUnit {
  int32_t layer = 0;
  int32_t rank = 0;
  std::vector<int32_t> tensor_shares = {1};
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const SavedUnit&) const = default;
};

struct SavedHolder {
  NodeId worker;
  Incarnation incarnation = 0;
  Tier tier = Tier::kMemory;
  std::vector<uint64_t> units;  // bitmap: unit u is bit u % 64 of word u / 64

  bool operator==(const SavedHolder&) const = default;
};

// An island's state at one step: all units that make it up, and who holds which.
struct SavedState {
  LocalCheckpoint about;
  std::vector<SavedUnit> units;
  std::vector<SavedHolder> holders;

  bool operator==(const SavedState&) const = default;
};
inline constexpr int kSavedStatesMax = 4;  // of one island

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_SAVED_STATE_H_
