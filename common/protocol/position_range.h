// Sequences of the training data on one endless axis.

#ifndef ATOLL_COMMON_PROTOCOL_POSITION_RANGE_H_
#define ATOLL_COMMON_PROTOCOL_POSITION_RANGE_H_

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace atl {

// Position p is sequence p % N of epoch p / N in that epoch's shuffled order, N being the data
// set's number of sequences. Half open. Where sites hold different data (DataSpec::sites), each has
// an axis of its own: site k's position i is k * kAxisPositions + i. A range lies on one axis.
inline constexpr int64_t kAxisPositions = int64_t{1} << 48;
struct PositionRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  auto operator<=>(const PositionRange&) const = default;
};

// Returns whether all of `some` is in `ranges`.
bool Contains(const std::vector<PositionRange>& ranges, const std::vector<PositionRange>& some);

// Returns "sequences 8 to 15, 40 to 47", by their positions: at most 8 ranges, and how many more.
std::string DescribeSequences(const std::vector<PositionRange>& ranges);

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_POSITION_RANGE_H_
