#include "common/model/ownership.h"

#include <catch2/catch.hpp>
#include <vector>

namespace atl {
namespace {

IslandPlan MakeTestPlan(int replicas, int copies) {
  IslandPlan plan;
  plan.replicas.resize(static_cast<size_t>(replicas));
  plan.optimizer_copies = copies;
  return plan;
}

TEST_CASE("every element has at least as many owners as the plan wants, or all replicas") {
  for (int replicas = 1; replicas <= 9; ++replicas) {
    for (int copies = 0; copies <= 10; ++copies) {
      const Ownership ownership = OwnershipFromPlan(MakeTestPlan(replicas, copies));
      for (const int64_t elements : {9, 100, 5'000, 123'457}) {
        CAPTURE(replicas, copies, elements);
        std::vector<int> owners(static_cast<size_t>(elements));
        for (int r = 0; r < replicas; ++r) {
          const Range owned = ownership.Owned(r, elements);
          for (int64_t i = owned.begin; i < owned.end; ++i) ++owners[static_cast<size_t>(i)];
        }
        const int wanted = copies == 0 ? replicas : std::min(copies, replicas);
        // Groups are as even as they can be: none has more than twice what was wanted.
        for (const int count : owners) REQUIRE((count >= wanted && count <= 2 * wanted));
      }
    }
  }
}

TEST_CASE("what replicas add up covers a layer once, in order, within what they own") {
  for (int replicas = 1; replicas <= 9; ++replicas) {
    for (const int copies : {0, 1, 2, 3}) {
      const Ownership ownership = OwnershipFromPlan(MakeTestPlan(replicas, copies));
      for (const int64_t elements : {9, 100, 5'000, 123'457}) {
        CAPTURE(replicas, copies, elements);
        int64_t end = 0;
        for (int r = 0; r < replicas; ++r) {
          const Range summed = ownership.Summed(r, elements), owned = ownership.Owned(r, elements);
          REQUIRE(summed.begin == end);
          REQUIRE((owned.begin <= summed.begin && summed.end <= owned.end));
          end = summed.end;
        }
        REQUIRE(end == elements);
      }
    }
  }
}

// Then a reduce-scatter to the owners is one plain operation.
TEST_CASE("parts are equal where all of them can begin at 64 bytes of bf16") {
  for (const int replicas : {2, 3, 8}) {
    const Ownership ownership = OwnershipFromPlan(MakeTestPlan(replicas, 1));
    const int64_t each = 32 * 50'257;
    for (int r = 0; r < replicas; ++r) {
      CHECK(ownership.Owned(r, replicas * each) == Range{r * each, (r + 1) * each});
    }
  }
}

TEST_CASE("undivided_ranges_have_one_owner_and_every_element_is_owned_and_summed_once") {
  const std::vector<Range> undivided = {{0, 1000}, {1000, 1700}, {2000, 5000}};
  for (int replicas = 1; replicas <= 9; ++replicas) {
    const Ownership ownership = OwnershipFromPlan(MakeTestPlan(replicas, 1));
    int64_t end = 0, summed_end = 0;
    for (int r = 0; r < replicas; ++r) {
      CAPTURE(replicas, r);
      const Range owned = ownership.Owned(r, 5'123, undivided);
      const Range summed = ownership.Summed(r, 5'123, undivided);
      REQUIRE(owned.begin == end);
      REQUIRE(summed.begin == summed_end);
      REQUIRE((owned.begin <= summed.begin && summed.end <= owned.end));
      end = owned.end;
      summed_end = summed.end;
      for (const Range& range : undivided) {
        const bool inside = range.begin < owned.end && owned.end < range.end;
        REQUIRE_FALSE(inside);
      }
    }
    REQUIRE(end == 5'123);
    REQUIRE(summed_end == 5'123);
  }
}

TEST_CASE("one replica of a shard speaks for it") {
  const Ownership five = OwnershipFromPlan(MakeTestPlan(5, 2));
  REQUIRE(five.shards == 2);
  std::vector<int> leaders;
  for (int r = 0; r < 5; ++r) {
    if (five.Leads(r)) leaders.push_back(five.GetShardIndex(r));
  }
  REQUIRE(leaders == std::vector<int>{0, 1});
}

}  // namespace
}  // namespace atl
