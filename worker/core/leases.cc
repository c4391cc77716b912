#include "worker/core/leases.h"

#include <algorithm>

#include "common/element_ranges.h"

namespace atl::worker {

void Leases::Add(const std::vector<PositionRange>& ranges) {
  for (const PositionRange& range : ranges) {
    if (range.size() <= 0) continue;
    size_ += range.size();
    if (!ranges_.empty() && ranges_.back().end == range.begin) {
      ranges_.back().end = range.end;
    } else {
      ranges_.push_back(range);
    }
  }
}

std::vector<PositionRange> Leases::Take(int64_t sequences) {
  std::vector<PositionRange> taken;
  while (sequences > 0 && !ranges_.empty()) {
    PositionRange& first = ranges_.front();
    const int64_t count = std::min(sequences, first.size());
    taken.push_back({first.begin, first.begin + count});
    first.begin += count;
    if (first.size() == 0) ranges_.pop_front();
    sequences -= count;
    size_ -= count;
  }
  return taken;
}

void Leases::PutBack(const std::vector<PositionRange>& ranges) {
  for (auto range = ranges.rbegin(); range != ranges.rend(); ++range) {
    if (range->size() <= 0) continue;
    size_ += range->size();
    if (!ranges_.empty() && range->end == ranges_.front().begin) {
      ranges_.front().begin = range->begin;
    } else {
      ranges_.push_front(*range);
    }
  }
}

void Leases::Remove(const std::vector<PositionRange>& ranges) {
  const std::vector<PositionRange> left = Without(this->ranges(), ranges);
  ranges_.assign(left.begin(), left.end());
  size_ = Sequences(left);
}

void Leases::Clear() {
  ranges_.clear();
  size_ = 0;
}

int64_t Sequences(const std::vector<PositionRange>& ranges) {
  int64_t sum = 0;
  for (const PositionRange& range : ranges) sum += std::max<int64_t>(range.size(), 0);
  return sum;
}

std::vector<PositionRange> Without(const std::vector<PositionRange>& ranges,
                                   const std::vector<PositionRange>& without) {
  ElementRanges removed;
  for (const PositionRange& range : without) removed.Add({range.begin, range.end});
  std::vector<PositionRange> left;
  for (const PositionRange& range : ranges) {
    for (const ElementRange& part : removed.Missing({range.begin, range.end})) {
      left.push_back({part.begin, part.end});
    }
  }
  return left;
}

void Join(std::vector<PositionRange>& ranges, PositionRange range) {
  if (range.size() <= 0) return;
  // All ranges that touch or overlap the new one become one with it.
  auto first = std::lower_bound(
      ranges.begin(), ranges.end(), range,
      [](const PositionRange& a, const PositionRange& b) { return a.end < b.begin; });
  auto last = first;
  for (; last != ranges.end() && last->begin <= range.end; ++last) {
    range.begin = std::min(range.begin, last->begin);
    range.end = std::max(range.end, last->end);
  }
  first = ranges.erase(first, last);
  ranges.insert(first, range);
}

}  // namespace atl::worker
