#include "common/model/outer_cut.h"

#include <catch2/catch.hpp>
#include <map>

#include "common/rng.h"

namespace atl {
namespace {

IslandPlan MakeTestPlan(std::vector<std::vector<PlanStage>> replicas, int32_t copies) {
  IslandPlan plan;
  plan.number = 1;
  plan.optimizer_copies = copies;
  for (std::vector<PlanStage>& stages : replicas) {
    PlanReplica replica;
    replica.stages = std::move(stages);
    plan.replicas.push_back(std::move(replica));
  }
  return plan;
}

ShardPlacement Shard(ShardId shard, int32_t layer, int64_t begin, int64_t elements) {
  ShardPlacement placement;
  placement.shard = shard;
  placement.layer = layer;
  placement.begin = begin;
  placement.elements = elements;
  return placement;
}

TEST_CASE("of a pipeline every worker pushes the layers of its stage whole") {
  const IslandPlan plan = MakeTestPlan({{{0, 1, {"a/0"}, {}}, {1, 1, {"b/0"}, {}}}}, 1);
  const auto parts = CutByOwners(plan, {Shard(0, 0, 0, 1000), Shard(1, 1, 0, 7)}, kQuantBlock);
  CHECK(parts == std::vector<OuterPart>{{0, 0, {0, 1000}, {"a"}}, {1, 1, {0, 7}, {"b"}}});
}

TEST_CASE("copies of the optimizer's state keep copies and share the pushing") {
  const IslandPlan plan = MakeTestPlan({{{0, 1, {"a/0"}, {}}}, {{0, 1, {"b/0"}, {}}}}, 2);
  const auto parts = CutByOwners(plan, {Shard(0, 0, 0, 1024)}, kQuantBlock);
  CHECK(parts ==
        std::vector<OuterPart>{{0, 0, {0, 512}, {"a", "b"}}, {0, 0, {512, 1024}, {"b", "a"}}});
}

TEST_CASE("tensor-parallel ranks cut elements of the whole layer") {
  const IslandPlan plan = MakeTestPlan({{{0, 1, {"a/0", "b/0"}, {}}}}, 1);
  const auto parts = CutByOwners(plan, {Shard(0, 0, 0, 600), Shard(1, 0, 600, 600)}, kQuantBlock);
  CHECK(parts == std::vector<OuterPart>{{0, 0, {0, 600}, {"a"}}, {1, 0, {0, 600}, {"b"}}});
}

TEST_CASE("parts begin at blocks of their shard and are all its elements once, whatever the plan") {
  Rng rng(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::vector<PlanStage>> replicas(1 + rng.Below(4));
    for (size_t r = 0; r < replicas.size(); ++r) {
      std::vector<std::string> devices;
      for (uint64_t rank = 0; rank <= rng.Below(3); ++rank) {
        devices.push_back("w" + std::to_string(r) + std::to_string(rank % 2) + "/" +
                          std::to_string(rank));
      }
      replicas[r] = {{0, 1, devices, {}}};
    }
    const IslandPlan plan = MakeTestPlan(replicas, static_cast<int32_t>(1 + rng.Below(4)));
    std::vector<ShardPlacement> shards;
    int64_t begin = 0;
    for (ShardId shard = 0; shard < 3; ++shard) {
      const auto elements = static_cast<int64_t>(1 + rng.Below(3000));
      shards.push_back(Shard(shard, 0, begin, elements));
      begin += elements;
    }
    std::map<ShardId, int64_t> end;
    const int64_t block = rng.Chance(0.5) ? kQuantBlock : 1024;
    for (const OuterPart& part : CutByOwners(plan, shards, block)) {
      CHECK(part.range.begin == end[part.shard]);
      CHECK(part.range.begin % block == 0);
      CHECK(part.range.size() > 0);
      CHECK(!part.holders.empty());
      end[part.shard] = part.range.end;
    }
    for (const ShardPlacement& shard : shards) CHECK(end[shard.shard] == shard.elements);
  }
}

}  // namespace
}  // namespace atl
