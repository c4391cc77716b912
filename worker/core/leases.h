// Positions of training data that the island may use, in the order in which it will.

#ifndef ATOLL_WORKER_CORE_LEASES_H_
#define ATOLL_WORKER_CORE_LEASES_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "common/protocol/control.h"

namespace atl::worker {

class Leases {
 public:
  int64_t size() const { return size_; }  // sequences
  std::vector<PositionRange> ranges() const { return {ranges_.begin(), ranges_.end()}; }

  // Empty and reversed ranges are ignored.
  void Add(const std::vector<PositionRange>& ranges);
  // The first `sequences`, or all where there are fewer.
  std::vector<PositionRange> Take(int64_t sequences);
  // Back to the front: they will be taken next.
  void PutBack(const std::vector<PositionRange>& ranges);
  // They are used; others stay in their order.
  void Remove(const std::vector<PositionRange>& ranges);
  void Clear();

 private:
  std::deque<PositionRange> ranges_;
  int64_t size_ = 0;
};

int64_t Sequences(const std::vector<PositionRange>& ranges);

// Returns `ranges` without what is in `without`.
std::vector<PositionRange> Without(const std::vector<PositionRange>& ranges,
                                   const std::vector<PositionRange>& without);

// Adds `range` to `ranges`, which are sorted and joined where they touch, and stay so.
void Join(std::vector<PositionRange>& ranges, PositionRange range);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_CORE_LEASES_H_
