#include "coordinator/core/shards/whole_job.h"

#include <catch2/catch.hpp>

#include "coordinator/core/shards/replicas.h"

namespace atl::coord {
namespace {

constexpr int64_t kElements = 10;
const ContributionId kPush = {.island = 1, .generation = 1, .incarnation = 1, .base_version = 0};

// Two layers, a shard each; version 1 is made of one push, and every shard has two copies.
JobDescribed Describe(const std::vector<ShardId>& shards, Version version) {
  JobDescribed described;
  JobDefinition& definition = described.assignment.definition;
  definition.spec.name = "lm";
  definition.spec.model.hidden = 64;
  definition.spec.model.layers = 2;
  definition.spec.model.heads = 4;
  definition.spec.data.path = "corpus.txt";
  definition.spec.schedule.train_tokens = 1 << 20;
  definition.spec.outer.shard_copies = 2;
  definition.facts.layers = {{.name = "first", .elements = kElements},
                             {.name = "second", .elements = kElements}};
  definition.facts.train_sequences = 100;
  definition.facts.validation_sequences = 10;
  definition.facts.model = definition.spec.model;
  for (const ShardId shard : shards) {
    described.assignment.shards.push_back({shard, shard, kElements, 0});
  }
  described.held.version = version;
  described.newest.version = version;
  described.newest.image.round = version;
  if (version == 1) {
    described.newest.terms = {{.contribution = kPush, .weight = 1}};
    described.newest.image.islands.push_back({.island = kPush.island});
  }
  return described;
}

void Stage(JobDescribed& described, ShardId shard) {
  described.held.staged.push_back({.island = kPush.island,
                                   .generation = kPush.generation,
                                   .incarnation = kPush.incarnation,
                                   .base_version = kPush.base_version,
                                   .shard = shard});
}

std::vector<NodeId> Holders(const ShardDescriptor& shard) {
  std::vector<NodeId> servers;
  for (const ShardReplica& replica : shard.replicas) servers.push_back(replica.server);
  return servers;
}

TEST_CASE("copy_that_cannot_catch_up_is_done_without_and_its_server_keeps_its_other_shards") {
  const JobDescribed newest = Describe({0}, 1);
  JobDescribed behind = Describe({0, 1}, 0);
  JobDescribed other = Describe({1}, 0);
  Stage(behind, 1);
  Stage(other, 1);
  const auto whole = AddUp({{"a", &newest}, {"b", &behind}, {"c", &other}});
  INFO(whole.status());
  REQUIRE(whole.ok());
  CHECK(whole->version == 1);
  CHECK(Holders(whole->shards[0]) == std::vector<NodeId>{"a"});
  CHECK(Holders(whole->shards[1]) == std::vector<NodeId>{"b", "c"});
}

TEST_CASE("shard_that_nobody_can_bring_to_the_newest_version_is_missing") {
  const JobDescribed newest = Describe({0}, 1);
  const JobDescribed behind = Describe({1}, 0);
  CHECK(AddUp({{"a", &newest}, {"b", &behind}}).status().code() ==
        absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace atl::coord
