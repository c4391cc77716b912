#include "common/protocol/position_range.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
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
  constexpr size_t kNamed = 8;
  std::string text = "sequences ";
  for (size_t i = 0; i < std::min(ranges.size(), kNamed); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", ranges[i].begin, " to ", ranges[i].end - 1);
  }
  const size_t more = ranges.size() - std::min(ranges.size(), kNamed);
  return more == 0 ? text : absl::StrCat(text, " and ", more, " ranges more");
}

}  // namespace atl
