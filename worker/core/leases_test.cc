#include "worker/core/leases.h"

#include <catch2/catch.hpp>

namespace atl::worker {
namespace {

using Ranges = std::vector<PositionRange>;

TEST_CASE("Leases are used in the order in which they came") {
  Leases leases;
  leases.Add({{10, 14}, {14, 15}, {2, 4}, {9, 9}});
  CHECK(leases.size() == 7);
  CHECK(leases.Take(3) == Ranges{{10, 13}});
  CHECK(leases.Take(3) == Ranges{{13, 15}, {2, 3}});
  leases.PutBack({{13, 15}, {2, 3}});
  CHECK(leases.size() == 4);
  CHECK(leases.Take(100) == Ranges{{13, 15}, {2, 4}});
  CHECK(leases.Take(1).empty());
}

TEST_CASE("Consumed ranges are kept sorted and joined") {
  Ranges ranges;
  for (const PositionRange range : Ranges{{4, 6}, {0, 2}, {8, 9}, {6, 8}, {3, 3}, {20, 30}}) {
    Join(ranges, range);
  }
  CHECK(ranges == Ranges{{0, 2}, {4, 9}, {20, 30}});
  Join(ranges, {1, 25});
  CHECK(ranges == Ranges{{0, 30}});
}

}  // namespace
}  // namespace atl::worker
