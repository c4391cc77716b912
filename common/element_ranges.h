// Sets of elements [begin, end) of one tensor. Plain values.

#ifndef ATOLL_COMMON_ELEMENT_RANGES_H_
#define ATOLL_COMMON_ELEMENT_RANGES_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

namespace atl {

struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  auto operator<=>(const ElementRange&) const = default;
};

class ElementRanges {
 public:
  // Joins it with what it touches. An empty range changes nothing.
  void Add(ElementRange range) {
    if (range.end <= range.begin) return;
    auto next = end_of_.upper_bound(range.begin);
    if (next != end_of_.begin() && std::prev(next)->second >= range.begin) --next;
    while (next != end_of_.end() && next->first <= range.end) {
      range.begin = std::min(range.begin, next->first);
      range.end = std::max(range.end, next->second);
      next = end_of_.erase(next);
    }
    end_of_[range.begin] = range.end;
  }

  // Returns the parts of `range` that are not in the set, in order.
  std::vector<ElementRange> Missing(ElementRange range) const {
    std::vector<ElementRange> missing;
    auto next = end_of_.upper_bound(range.begin);
    if (next != end_of_.begin()) range.begin = std::max(range.begin, std::prev(next)->second);
    for (; range.begin < range.end; ++next) {
      const int64_t gap_end = next == end_of_.end() ? range.end : std::min(next->first, range.end);
      if (range.begin < gap_end) missing.push_back({range.begin, gap_end});
      if (next == end_of_.end()) break;
      range.begin = std::max(range.begin, next->second);
    }
    return missing;
  }

  std::vector<ElementRange> ranges() const {
    std::vector<ElementRange> ranges;
    for (const auto& [begin, end] : end_of_) ranges.push_back({begin, end});
    return ranges;
  }
  bool Covers(ElementRange range) const { return Missing(range).empty(); }
  bool empty() const { return end_of_.empty(); }

  bool operator==(const ElementRanges&) const = default;

 private:
  std::map<int64_t, int64_t> end_of_;  // by begin; disjoint, and no two touch
};

}  // namespace atl

#endif  // ATOLL_COMMON_ELEMENT_RANGES_H_
