#include "common/element_ranges.h"

#include <catch2/catch.hpp>

#include "common/rng.h"

namespace atl {
namespace {

TEST_CASE("ranges are a set of elements, whatever the order in which they come") {
  Rng rng(3);
  for (int round = 0; round < 500; ++round) {
    ElementRanges ranges;
    std::vector<bool> set(20, false);
    for (int i = 0; i < 5; ++i) {
      const auto begin = static_cast<int64_t>(rng.Below(20));
      const int64_t end = begin + static_cast<int64_t>(rng.Below(20 - begin + 1));
      ranges.Add({begin, end});
      for (int64_t e = begin; e < end; ++e) set[e] = true;
    }
    std::vector<bool> missing(20, false);
    int64_t last = -1;
    for (const ElementRange& gap : ranges.Missing({2, 17})) {
      CHECK(gap.begin > last);
      CHECK(gap.size() > 0);
      for (int64_t e = gap.begin; e < gap.end; ++e) missing[e] = true;
      last = gap.end;
    }
    bool covers = true;
    for (int64_t e = 0; e < 20; ++e) {
      const bool inside = e >= 2 && e < 17;
      CHECK(missing[e] == (inside && !set[e]));
      covers = covers && (!inside || set[e]);
    }
    CHECK(ranges.Covers({2, 17}) == covers);
  }
}

}  // namespace
}  // namespace atl
