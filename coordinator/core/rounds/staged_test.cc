#include "coordinator/core/rounds/staged.h"

#include <catch2/catch.hpp>

namespace atl::coord {
namespace {

PushId Part(ShardId shard, int64_t begin, int64_t elements) {
  return {"job-1", 0, 1, 1, 0, shard, begin, elements};
}

TEST_CASE(
    "a shard counts when all its elements are staged, by any senders and any number of times") {
  StagedShards staged;
  staged.Add(Part(3, 256, 256), 600);
  staged.Add(Part(3, 256, 256), 600);
  staged.Add(Part(3, 512, 88), 600);
  CHECK_FALSE(staged.Holds(3));
  CHECK(staged.size() == 0);
  CHECK(staged.Missing(3, {0, 600}) == std::vector<ElementRange>{{0, 256}});
  CHECK(staged.Missing(3, {512, 600}).empty());
  staged.Add(Part(3, 0, 512), 600);
  CHECK(staged.Holds(3));
  CHECK(staged.Missing(3, {0, 600}).empty());
  staged.Add(Part(4, 0, 0), 7);
  CHECK(staged.size() == 2);
}

TEST_CASE("what a restarted server holds takes the place of what it had said") {
  StagedShards staged;
  staged.Add(Part(3, 0, 0), 600);
  staged.Add(Part(4, 0, 256), 600);
  for (ShardId shard : {3, 4}) staged.Forget(shard);
  staged.Add(Part(3, 0, 256), 600);
  CHECK_FALSE(staged.Holds(3));
  CHECK(staged.Missing(3, {0, 600}) == std::vector<ElementRange>{{256, 600}});
  CHECK(staged.Missing(4, {0, 600}) == std::vector<ElementRange>{{0, 600}});
}

}  // namespace
}  // namespace atl::coord
