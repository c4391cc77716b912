#include "common/protocol/position_range.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/element_ranges.h"

namespace atl {

bool Contains(const std::vector<PositionRange>& ranges, const std::vector<PositionRange>& some) {
  ElementRanges all;
  for (const PositionRange& range : ranges) all.Add({range.begin, range.end});
  return std::all_of(some.begin(), some.end(), [&](const PositionRange& range) {
    return range.size() <= 0 || all.Covers({range.begin, range.end});
  });
}

std::string DescribeSequences(const std::vector<PositionRange>& ranges) {
  return absl::StrCat("sequences ",
                      absl::StrJoin(ranges, ", ", [](std::string* text, const PositionRange& r) {
                        absl::StrAppend(text, r.begin, " to ", r.end - 1);
                      }));
}

}  // namespace atl
